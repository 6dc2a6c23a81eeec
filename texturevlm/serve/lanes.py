"""Work in threads, queued with a limit: one lane per kind of work.

A full lane answers 429 at once. Work that waits is dropped when its client leaves; work that runs is asked to stop, at
the next place where it checks. Its place is free when it has ended, not before, so that a lane never does more than it
was given threads for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

from starlette.requests import Request

from texturevlm.serve.limits import ApiError

Result = TypeVar("Result")


class Stopped(Exception):
    """The client has left, or the time is over."""


class Stop(Event):
    """Tells running work that nobody waits for it."""

    def check(self) -> None:
        """Raise if nobody waits."""
        if self.is_set():
            raise Stopped


class Lane:
    """Threads of one kind of work.

    waiting: requests that may wait, beside those that run
    seconds: of one request, from its arrival to its end
    """

    def __init__(self, name: str, *, workers: int, waiting: int, seconds: float) -> None:
        self.name, self.most, self.seconds = name, workers + waiting, seconds
        self.inside = 0
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix=f"texturevlm-{name}")

    async def run(self, request: Request, work: Callable[[Stop], Result]) -> Result:
        """The result of `work(stop)`; raises if the lane is full, the client leaves or the time is over."""
        if self.inside >= self.most:
            raise ApiError(429, "the server is busy; try again in a moment")
        stop, loop = Stop(), asyncio.get_running_loop()

        def unless_stopped() -> Result:
            stop.check()
            return work(stop)

        future = self._threads.submit(unless_stopped)
        self.inside += 1
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended))
        return await until_left(request, asyncio.wrap_future(future), stop, self.seconds, future)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self) -> None:
        self.inside -= 1


async def until_left(
    request: Request, result: asyncio.Future[Result], stop: Stop, seconds: float, queued: Future[Any] | None = None
) -> Result:
    """Wait for a result, but not longer than the client does, nor than `seconds`.

    queued: what is dropped if it has not begun
    """
    leaving = asyncio.ensure_future(client_left(request))
    try:
        both: set[asyncio.Future[Any]] = {result, leaving}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if result.done():
            return result.result()
        if leaving.done():
            raise Stopped
        raise ApiError(504, f"this took longer than {seconds:g} s")
    finally:
        leaving.cancel()
        if not result.done():
            stop.set()
            if queued is not None:
                queued.cancel()
            result.cancel()


async def client_left(request: Request) -> None:
    """Return when the client closes the connection; the body of the request must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
