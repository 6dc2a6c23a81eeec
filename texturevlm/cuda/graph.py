"""Functions of static shapes: compiled if possible, captured once in a CUDA graph, then replayed.

A function that cannot be compiled or captured runs eagerly: a warning says it once, and `reason` says why. All of it
runs on the device of the tensors, which need not be the current one, and in any thread (new ones start on device 0).
"""

from __future__ import annotations

import gc
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

NO_GRAPH = "a function runs step by step, which is slower"  # begins the warning; the tests make it an error
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
                self.reason = _fallen_back("torch.compile failed", error)
        return self.function(*inputs)


class CudaGraph:
    """The work of a function on a GPU, recorded once and started again as it was.

    An input on the CPU stays there, in pinned memory, for the function to read.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._read: torch.cuda.Event | None = None  # after it, pinned inputs may be overwritten

    def current(self) -> AbstractContextManager[Any]:
        """Inside, the device is the current one."""
        return torch.cuda.device(self.device)

    def buffer(self, tensor: Tensor) -> Tensor:
        """Memory at a fixed address for an input like `tensor`, with its values."""
        if tensor.is_cuda:
            return tensor.clone()
        self._read = self._read or torch.cuda.Event()
        return tensor.clone().pin_memory()

    def warm_up(self, function: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        """Call the function a few times, before it is recorded."""
        warming, _ = self._streams()
        here = torch.cuda.current_stream()
        warming.wait_stream(here)
        with torch.cuda.stream(warming):
            for _ in range(WARM_UP_CALLS):
                function(*inputs)
        here.wait_stream(warming)

    def capture(self, function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Record what the function starts; RuntimeError if it cannot. Returns its outputs, which `replay` writes."""
        _, capturing = self._streams()
        # Other threads may use the GPU meanwhile.
        self._graph = torch.cuda.CUDAGraph()
        graph = torch.cuda.graph(self._graph, stream=capturing, capture_error_mode="thread_local")
        # The stream is around the capture, because torch does not restore it if that fails.
        with torch.cuda.stream(capturing), nothing_collected(), graph:
            return function(*inputs)

    def replay(self) -> None:
        """Start all of it again."""
        self._graph.replay()
        if self._read is not None:
            self._read.record()

    def finish(self) -> None:
        """Wait until the buffers of inputs have been read, and may be overwritten or freed."""
        if self._read is not None:
            self._read.synchronize()

    def _streams(self) -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
        if self.device not in _streams:
            _streams[self.device] = torch.cuda.Stream(), torch.cuda.Stream()
        return _streams[self.device]


GRAPHS: dict[str, type[CudaGraph]] = {"cuda": CudaGraph}  # by the type of the device


def can_capture(device: torch.device) -> bool:
    """Whether work on this device is captured in graphs. It must not read anything back then, since that waits."""
    return device.type in GRAPHS


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
        self.device = device or example[0].device
        if not can_capture(self.device):
            self.reason = f"graphs are for a GPU, and this runs on {self.device.type}"
            return
        self.graph = GRAPHS[self.device.type](self.device)
        # Tensors made in inference mode could not be written to outside of it.
        with self.graph.current(), torch.inference_mode(False), torch.no_grad(), _capturing:
            self.inputs = [tensor if in_place else self.graph.buffer(tensor) for tensor in example]
            self.graph.warm_up(function, self.inputs)
            try:
                self.outputs = self.graph.capture(function, self.inputs)
            except RuntimeError as error:
                self.reason = _fallen_back("the capture failed", error)

    def finish(self) -> None:
        """Wait until the GPU has read all inputs. They may be freed after that."""
        if self.reason is None:
            self.graph.finish()

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        if self.reason is not None:
            with torch.no_grad():
                return self.function(*inputs)
        with self.graph.current(), torch.no_grad():
            self.graph.finish()
            for buffer, given in zip(self.inputs, inputs, strict=True):
                if buffer.data_ptr() != given.data_ptr():
                    buffer.copy_(given, non_blocking=True)
            self.graph.replay()
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
        for replay in self.values():
            replay.finish()
        self.clear()


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


def _fallen_back(what: str, error: Exception) -> str:
    """Say once, by a warning, that a function runs eagerly from now on; returns the reason."""
    reason = f"{what}: {(str(error).strip().splitlines() or [type(error).__name__])[0][:120]}"
    warnings.warn(f"{NO_GRAPH}: {reason}", RuntimeWarning, stacklevel=3)
    return reason
