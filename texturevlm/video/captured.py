"""Work on fixed buffers, captured once in a CUDA graph and replayed after that; elsewhere it just runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from texturevlm.cuda.graph import Replay

Result = TypeVar("Result")


class Captured(Generic[Result]):
    """Calls a function without arguments, of buffers that stay where they are.

    What it returns is overwritten by the next call.
    """

    def __init__(self, work: Callable[[], Result], device: torch.device) -> None:
        self.work, self.device = work, device
        self._replay: Replay | None = None
        self._result: Result | None = None

    @property
    def reason(self) -> str | None:
        """Why there is no graph, if there is none; it is made by the first call."""
        return None if self._replay is None else self._replay.reason

    @property
    def prepared(self) -> bool:
        return self._replay is not None

    def prepare(self) -> None:
        """Make the graph. On a GPU the function is run a few times for that: see to it that it does not matter."""
        self._replay = Replay(self._run, [], device=self.device)

    def __call__(self) -> Result:
        if self._replay is None:
            self.prepare()
        assert self._replay is not None
        if self._replay.reason is None:
            self._replay.graph.replay()
        else:
            self._run()
        assert self._result is not None
        return self._result

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, ...]:
        self._result = self.work()
        return ()


class Branch:
    """Work that may run beside what follows, until `join`; on a GPU on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def run(self, work: Callable[[], Result]) -> Result:
        """Start it once all that was started before is done."""
        if self._stream is None:
            return work()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            return work()

    def join(self) -> None:
        """What is started from here on waits for it."""
        if self._stream is not None:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)
