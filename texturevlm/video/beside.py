"""Work that goes on beside a stream: what is given to it is done in order in a thread, and an error is raised later."""

from __future__ import annotations

from collections.abc import Callable
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import Any, Self

MOST_WAITING = 2  # things that wait; more make the giver wait


class Beside:
    """Calls `work` with each tuple of arguments that it is given; leaving the context waits until all are done."""

    def __init__(self, work: Callable[..., None]) -> None:
        self.work = work
        self._waiting: Queue[tuple[Any, ...] | None] = Queue(MOST_WAITING)
        self._failed: BaseException | None = None
        self._thread = Thread(target=self._run, name="texturevlm-beside", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __call__(self, *arguments: Any) -> None:
        """Give work; raises what went wrong with earlier work."""
        if self._failed is not None:
            raise self._failed
        self._waiting.put(arguments)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._waiting.put(None)
        self._thread.join()
        if error is None and self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        while (arguments := self._waiting.get()) is not None:
            if self._failed is None:
                try:
                    self.work(*arguments)
                except BaseException as error:  # raised where work is given
                    self._failed = error
