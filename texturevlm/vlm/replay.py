"""Functions of static shapes, compiled where that works, captured once in a CUDA graph and replayed after that.

What cannot be compiled or captured runs as it is, and says why in its `reason`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3  # calls before a capture: libraries choose their kernels, torch.compile does its work


class Compiled:
    """A function through torch.compile, or as it is if that fails.

    dynamic: False: once for every shape; None: the second shape makes one version for all
    """

    def __init__(self, function: Callable[..., Any], *, dynamic: bool | None = False) -> None:
        self.function = function
        self.reason: str | None = None
        self._compiled = torch.compile(function, dynamic=dynamic)

    def __call__(self, *inputs: Any) -> Any:
        if self.reason is None:
            try:
                return self._compiled(*inputs)
            except Exception as error:  # a missing compiler shows as many kinds of error
                self.reason = f"torch.compile failed: {str(error).strip().splitlines()[0][:120]}"
        return self.function(*inputs)


class Replay:
    """Calls a function of tensors; on a GPU by replaying a graph of it.

    function: tensors in, a tuple of tensors out; shapes and dtypes never change
    example:  tensors like those that will come
    reason:   why there is no graph, if there is none
    What it returns is overwritten by the next call.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], example: Sequence[Tensor]) -> None:
        self.function = function
        self.reason: str | None = None
        if not example[0].is_cuda:
            self.reason = f"graphs are for a GPU, and this runs on {example[0].device.type}"
            return
        self.inputs = [one.clone() for one in example]
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside), torch.no_grad():
            for _ in range(WARM_UP):
                function(*self.inputs)
        torch.cuda.current_stream().wait_stream(beside)
        self.graph = torch.cuda.CUDAGraph()
        try:
            with torch.no_grad(), torch.cuda.graph(self.graph):
                self.outputs = function(*self.inputs)
        except RuntimeError as error:
            self.reason = f"the capture failed: {str(error).splitlines()[0]}"

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.reason is not None:
            with torch.no_grad():
                return self.function(*inputs)
        for buffer, given in zip(self.inputs, inputs, strict=True):
            if buffer.data_ptr() != given.data_ptr():
                buffer.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.outputs
