"""Work on fixed buffers, captured once in a CUDA graph and replayed after that; elsewhere it just runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class Captured(Generic[Result]):
    """Calls a function without arguments, of buffers that stay where they are; running it twice must not matter.

    reason: why there is no graph, if there is none; what it returns is overwritten by the next call
    """

    def __init__(self, work: Callable[[], Result], device: torch.device) -> None:
        self.work, self.device = work, device
        self.reason = None if device.type == "cuda" else f"graphs are for a GPU, and this runs on {device.type}"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result | None = None

    @torch.no_grad()
    def __call__(self) -> Result:
        if self._graph is None and self.reason is None:
            self._capture()
        if self._graph is None or self._result is None:
            return self.work()
        self._graph.replay()
        return self._result

    def _capture(self) -> None:
        beside = torch.cuda.Stream(self.device)
        beside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(beside):
            self.work()  # kernels are compiled and tables uploaded before the capture
        torch.cuda.current_stream(self.device).wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # another thread may be at work
                self._result = self.work()
        except RuntimeError as error:
            self.reason = f"the capture failed: {str(error).splitlines()[0]}"
        else:
            self._graph = graph


class Branch:
    """Work that may run beside what follows, until `join`; on a GPU on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, work: Callable[[], object]) -> None:
        """Start it once all that was started before is done."""
        if self._stream is None:
            work()
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            work()

    def join(self) -> None:
        """What is started from here on waits for it."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
