"""The one layer that the scout is made of: a convolution, a normalisation, and nothing below zero.

Trained as three steps; `folded` makes one of them, since a normalisation that no longer learns is part of the weights.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Module = TypeVar("Module", bound=nn.Module)


class Layer(nn.Module):
    """A 3×3 convolution whose columns are `reach` apart; what is added comes before the cut at zero."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, reach: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(
            inputs, outputs, 3, stride=stride, padding=(1, reach), dilation=(1, reach), bias=False
        )
        self.normalisation = nn.BatchNorm2d(outputs)

    def forward(self, values: Tensor, added: Tensor | None = None) -> Tensor:
        made = self.normalisation(self.convolution(values))
        return functional.relu(made if added is None else made + added)


class FoldedLayer(nn.Module):
    """A Layer whose normalisation is in its weights; on a GPU one call of cuDNN."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        before, after = layer.convolution, layer.normalisation
        assert after.running_mean is not None and after.running_var is not None
        scale = after.weight / (after.running_var + after.eps).sqrt()
        weight = (before.weight * scale.view(-1, 1, 1, 1)).detach()
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        self.bias = nn.Parameter((after.bias - after.running_mean * scale).detach(), requires_grad=False)
        self.stride, self.reach = before.stride, before.dilation

    def forward(self, values: Tensor, added: Tensor | None = None) -> Tensor:
        if values.is_cuda:
            place = (self.stride, self.reach, self.reach, 1)
            if added is None:
                return torch.cudnn_convolution_relu(values, self.weight, self.bias, *place)
            return torch.cudnn_convolution_add_relu(values, self.weight, added, 1.0, self.bias, *place)
        made = functional.conv2d(values, self.weight, self.bias, self.stride, self.reach, self.reach)
        return (made if added is None else made.add_(added)).relu_()


def widened(layer: FoldedLayer, inputs: int) -> FoldedLayer:
    """A copy that takes `inputs` maps and does not look at the ones that are new: cuDNN likes multiples of eight."""
    made = deepcopy(layer)
    weight = functional.pad(layer.weight, (0, 0, 0, 0, 0, inputs - layer.weight.shape[1]))
    made.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
    return made


class Block(nn.Module):
    """Two layers and a way past them."""

    def __init__(self, width: int, reach: tuple[int, int]) -> None:
        super().__init__()
        self.first = Layer(width, width, reach=reach[0])
        self.second = Layer(width, width, reach=reach[1])

    def forward(self, values: Tensor, page: Tensor | None = None) -> Tensor:
        """page: 1 on the page and 0 beyond it, where there is a beyond; it must stay empty, or a page's edge would
        see something there that is not there where the page comes alone."""
        inner = within(self.first(values), page)
        return within(self.second(inner, values), page)


def within(values: Tensor, page: Tensor | None) -> Tensor:
    """What lies on the page; everything, if there is nothing beyond it."""
    return values if page is None else values * page.to(values.dtype)


def folded(module: Module) -> Module:
    """The module with every Layer in it replaced by its FoldedLayer; for use, not for training."""
    for name, child in module.named_children():
        if isinstance(child, Layer):
            setattr(module, name, FoldedLayer(child))
        else:
            folded(child)
    return module.eval().requires_grad_(False)
