"""Training steps as CUDA graphs: forward, backward and optimiser in one launch.

A small network spends more time in Python than on the GPU. Batches of one shape are the same kernels every time, so
each shape is captured once, after a few ordinary steps, and replayed from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from texturevlm.cuda.graph import WARM_UP_CALLS, nothing_collected

Run = Callable[[Any], Mapping[str, Tensor]]


class CapturedSteps:
    """Call `run` with batches; those of a shape that came before are replayed.

    run:       trains on a batch, a structure of tensors of one device; what it returns is overwritten by the next call.
               Nothing that changes between two steps may be a number of Python: rates are tensors
    optimiser: with `capturable`, whose rates become tensors here
    """

    def __init__(self, run: Run, optimiser: torch.optim.Optimizer, device: torch.device) -> None:
        self.run, self._stream, self._pool = run, torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        for group in optimiser.param_groups:
            group["lr"] = torch.zeros((), device=device)
        self._warm: dict[str, int] = {}
        self._kept: dict[str, tuple[torch.cuda.CUDAGraph, list[Any], Mapping[str, Tensor]]] = {}

    def __call__(self, batch: Any) -> Mapping[str, Tensor]:
        leaves, form = tree_flatten(batch)
        key = str((form, [(one.shape, one.dtype) if isinstance(one, Tensor) else one for one in leaves]))
        if key not in self._kept:
            self._warm[key] = self._warm.get(key, 0) + 1
            if self._warm[key] <= WARM_UP_CALLS:
                return self._beside(batch)
            self._kept[key] = self._captured(leaves, form)
        graph, inputs, found = self._kept[key]
        for buffer, given in zip(inputs, leaves):
            if isinstance(given, Tensor):
                buffer.copy_(given)
        graph.replay()
        return found

    def _beside(self, batch: Any) -> Mapping[str, Tensor]:
        """An ordinary step, on a stream of its own as a capture needs it."""
        here = torch.cuda.current_stream()
        self._stream.wait_stream(here)
        with torch.cuda.stream(self._stream):
            found = self.run(batch)
        here.wait_stream(self._stream)
        return found

    def _captured(self, leaves: list[Any], form: Any) -> tuple[torch.cuda.CUDAGraph, list[Any], Mapping[str, Tensor]]:
        inputs = [one.clone() if isinstance(one, Tensor) else one for one in leaves]
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile: they bring the next data.
        with (
            nothing_collected(),
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            found = self.run(tree_unflatten(inputs, form))
        return graph, inputs, found
