"""Functions of static shapes: compiled if possible, captured once in a CUDA graph, then replayed.

A function that cannot be compiled or captured runs eagerly; `reason` says why. Everything runs on the device of the
tensors, which need not be the current one, and in any thread (a new thread starts on device 0).
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

WARM_UP_CALLS = 3  # calls before a capture: libraries choose their kernels, torch.compile does its work

_capturing = Lock()  # a process may capture one graph at a time
# Two streams per device, to warm up and to capture on: torch's own capture stream belongs to the first device that
# captured. They are kept, because libraries hold memory for every stream that they ran on.
_streams: dict[torch.device, tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}


class Compiled:
    """A function through torch.compile, or eager if that fails.

    dynamic: False: compile once per shape; None: the second shape makes one version for all shapes
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
                self.reason = f"torch.compile failed: {_first_line(error)}"
        return self.function(*inputs)


class Replay:
    """Call a function of tensors; on a GPU by replaying a CUDA graph of it.

    function: tensors in, a tuple of tensors out; shapes and dtypes never change
    example:  tensors like those that will be passed; CPU tensors stay on the CPU, pinned, for the function to read
    device:   where the function runs (default: the device of the first tensor)
    in_place: the graph reads the tensors of `example` themselves, which are on the device and will be passed every time
    reason:   why there is no graph; None if there is one
    The next call overwrites what the last one returned.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        example: Sequence[Tensor],
        *,
        device: torch.device | None = None,
        in_place: bool = False,
    ) -> None:
        self.function = function
        self.reason: str | None = None
        self._read: torch.cuda.Event | None = None  # after it, pinned inputs may be overwritten
        self.device = device or example[0].device
        if self.device.type != "cuda":
            self.reason = f"graphs are for a GPU, and this runs on {self.device.type}"
            return
        # Tensors made in inference mode could not be written to outside of it.
        with torch.cuda.device(self.device), torch.inference_mode(False), torch.no_grad(), _capturing:
            self.inputs = [one if in_place else _like(one) for one in example]
            if not all(buffer.is_cuda for buffer in self.inputs):
                self._read = torch.cuda.Event()
            self._capture()

    def _capture(self) -> None:
        if self.device not in _streams:
            _streams[self.device] = torch.cuda.Stream(), torch.cuda.Stream()
        warming, capturing = _streams[self.device]
        here = torch.cuda.current_stream()
        warming.wait_stream(here)
        with torch.cuda.stream(warming):
            for _ in range(WARM_UP_CALLS):
                self.function(*self.inputs)
        here.wait_stream(warming)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(capturing):  # around the capture: torch does not restore the stream if it fails
            try:
                # Other threads may use the GPU meanwhile.
                graph = torch.cuda.graph(self.graph, stream=capturing, capture_error_mode="thread_local")
                with nothing_collected(), graph:
                    self.outputs = self.function(*self.inputs)
            except RuntimeError as error:
                self.reason = f"the capture failed: {_first_line(error)}"

    def finish(self) -> None:
        """Wait until the GPU has read all inputs. They may be freed after that."""
        if self._read is not None:
            self._read.synchronize()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.reason is not None:
            with torch.no_grad():
                return self.function(*inputs)
        with torch.cuda.device(self.device), torch.no_grad():
            self.finish()
            for buffer, given in zip(self.inputs, inputs, strict=True):
                if buffer.data_ptr() != given.data_ptr():
                    buffer.copy_(given, non_blocking=True)
            self.graph.replay()
            if self._read is not None:
                self._read.record()
        return self.outputs


class BranchingReplay(Replay):
    """A graph whose results say which of several others comes next: a graph itself cannot choose.

    function, example: as for Replay
    which:             what `function` returned → the branch, any key; this may wait for the GPU
    then:              the branch, and what `function` returned → tensors
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        example: Sequence[Tensor],
        *,
        which: Callable[..., Hashable],
        then: Callable[..., tuple[Tensor, ...]],
    ) -> None:
        super().__init__(function, example)
        self.which, self.then = which, then
        self.branches: dict[Hashable, Replay] = {}

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        made = super().__call__(*inputs)
        branch = self.which(*made)
        if branch not in self.branches:
            self.branches[branch] = Replay(partial(self.then, branch), made, in_place=True)
            self.reason = self.reason or self.branches[branch].reason
        return self.branches[branch](*made)


class KeptReplays(OrderedDict[Any, Replay]):
    """Graphs by key, at most `most`: the one that was used longest ago makes room."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def find(
        self,
        key: Any,
        function: Callable[..., tuple[Tensor, ...]],
        example: Sequence[Tensor],
        make: Callable[..., Replay] = Replay,
    ) -> Replay:
        """The graph of a key, captured if there is none: make(function, example)."""
        if key not in self:
            while len(self) >= self.most:
                _, oldest = self.popitem(last=False)
                oldest.finish()
            self[key] = make(function, example)
        self.move_to_end(key)
        return self[key]

    def release(self) -> None:
        """Forget all graphs, and with them their memory."""
        for one in self.values():
            one.finish()
        self.clear()


def _like(tensor: Tensor) -> Tensor:
    """Memory for an input: on its GPU, or pinned."""
    return tensor.clone() if tensor.is_cuda else tensor.clone().pin_memory()


@contextmanager
def nothing_collected() -> Iterator[None]:
    """No garbage collection inside: captures fail if another graph is destroyed meanwhile, and imports take longer."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
