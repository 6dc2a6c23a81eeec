"""The layer that the scout is made of: convolution, batch normalisation, ReLU.

`folded` merges the normalisation into the convolution's weights after training.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

_Module = TypeVar("_Module", bound=nn.Module)


class ConvLayer(nn.Module):
    """A 3×3 convolution with a horizontal dilation, normalisation and ReLU; `added` comes before the ReLU."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(
            inputs, outputs, 3, stride=stride, padding=(1, dilation), dilation=(1, dilation), bias=False
        )
        self.normalisation = nn.BatchNorm2d(outputs)

    def forward(self, values: Tensor, added: Tensor | None = None) -> Tensor:
        made = self.normalisation(self.convolution(values))
        return functional.relu(made if added is None else made + added)


class FoldedConv(nn.Module):
    """A ConvLayer whose normalisation is merged into its weights; on a GPU one call of cuDNN."""

    def __init__(self, layer: ConvLayer) -> None:
        super().__init__()
        before, after = layer.convolution, layer.normalisation
        assert after.running_mean is not None and after.running_var is not None
        scale = after.weight / (after.running_var + after.eps).sqrt()
        weight = (before.weight * scale.view(-1, 1, 1, 1)).detach()
        self.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
        self.bias = nn.Parameter((after.bias - after.running_mean * scale).detach(), requires_grad=False)
        self.stride, self.dilation = before.stride, before.dilation

    def forward(self, values: Tensor, added: Tensor | None = None) -> Tensor:
        if values.is_cuda:
            geometry = (self.stride, self.dilation, self.dilation, 1)
            if added is None:
                return torch.cudnn_convolution_relu(values, self.weight, self.bias, *geometry)
            return torch.cudnn_convolution_add_relu(values, self.weight, added, 1.0, self.bias, *geometry)
        made = functional.conv2d(values, self.weight, self.bias, self.stride, self.dilation, self.dilation)
        return (made if added is None else made.add_(added)).relu_()


def widen(layer: FoldedConv, inputs: int) -> FoldedConv:
    """A copy with zero weights for more input maps, `inputs` in all: cuDNN is fastest with multiples of eight."""
    made = deepcopy(layer)
    weight = functional.pad(layer.weight, (0, 0, 0, 0, 0, inputs - layer.weight.shape[1]))
    made.weight = nn.Parameter(weight.contiguous(memory_format=torch.channels_last), requires_grad=False)
    return made


class ResidualBlock(nn.Module):
    """Two layers with a residual connection."""

    def __init__(self, width: int, dilation: tuple[int, int]) -> None:
        super().__init__()
        self.first = ConvLayer(width, width, dilation=dilation[0])
        self.second = ConvLayer(width, width, dilation=dilation[1])

    def forward(self, values: Tensor, page: Tensor | None = None) -> Tensor:
        """page: 1 on the page, 0 on its padding, which stays zero, so that padding does not change the result"""
        inner = keep_page(self.first(values), page)
        return keep_page(self.second(inner, values), page)


def keep_page(values: Tensor, page: Tensor | None) -> Tensor:
    """Set the padding to zero; there is none if `page` is None."""
    return values if page is None else values * page.to(values.dtype)


def folded(module: _Module) -> _Module:
    """Replace every ConvLayer in the module by its FoldedConv; for inference, not for training."""
    for name, child in module.named_children():
        if isinstance(child, ConvLayer):
            setattr(module, name, FoldedConv(child))
        else:
            folded(child)
    return module.eval().requires_grad_(False)
