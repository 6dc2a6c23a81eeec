"""Muon: momentum whose matrices are orthogonalised before each step; AdamW for everything that is not a matrix.

Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024); coefficients of Newton-Schulz's
iteration by You et al. Steps are scaled to the size of AdamW's, so that both take one learning rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

_ITERATIONS = (
    (4.0848, -6.8946, 2.9270),
    (3.9505, -6.3029, 2.6377),
    (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
)


def orthogonalised(matrices: Tensor) -> Tensor:
    """(N, rows, columns) → the same with all singular values near 1, in bfloat16."""
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    length: Tensor = x.norm(dim=(-2, -1), keepdim=True)
    x = x / (length + 1e-7)
    for a, b, c in _ITERATIONS:
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.mT if tall else x


class Muon(torch.optim.AdamW):
    """AdamW, with the matrices of `module` by Muon; embeddings, heads and all else by AdamW.

    decay:      weight decay of the matrices
    capturable: as for AdamW: whether steps may be captured in a graph
    """

    def __init__(
        self, module: nn.Module, *, lr: float, decay: float = 0.02, momentum: float = 0.95, capturable: bool = False
    ) -> None:
        names = dict(module.named_parameters())
        own = {name: one for name, one in names.items() if one.requires_grad}
        matrices = [one for name, one in own.items() if one.dim() == 2 and not ("embed" in name or "head" in name)]
        chosen = {id(one) for one in matrices}
        groups = [
            {"params": [one for one in own.values() if id(one) not in chosen], "weight_decay": 0.0, "muon": False},
            {"params": matrices, "weight_decay": decay, "muon": True},
        ]
        self.momentum = momentum
        super().__init__(
            [group for group in groups if group["params"]], lr=lr, betas=(0.9, 0.98), capturable=capturable
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        groups, self.param_groups = self.param_groups, [one for one in self.param_groups if not one["muon"]]
        try:
            super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["muon"]:
                self._step_matrices(group)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape.setdefault(tuple(parameter.shape), []).append(parameter)
        for shape, parameters in by_shape.items():  # one product for all matrices of a shape
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            moments = [self._moment(parameter) for parameter in parameters]
            torch._foreach_lerp_(moments, gradients, 1 - self.momentum)
            ahead = torch.stack(torch._foreach_lerp(gradients, moments, self.momentum))
            change = orthogonalised(ahead).float() * (-0.2 * max(shape) ** 0.5 * group["lr"])
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(parameters, list(change.unbind(0)))

    def _moment(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state.update(step=torch.zeros(()), moment=torch.zeros_like(parameter))  # AdamW's loading wants a step
        moment: Tensor = state["moment"]
        return moment
