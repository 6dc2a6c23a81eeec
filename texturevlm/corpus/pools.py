"""Workers that are given units and report what became of them: in this process, or in processes of this machine.

A worker that dies (killed, out of memory, crashed in a decoder) costs a try of the unit that it was working at; another
one takes its place. The pool of a Ray cluster is in ray_pool.py.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Protocol

import torch

from texturevlm.corpus.items import said
from texturevlm.corpus.ledger import Done
from texturevlm.corpus.worker import UnitWorker

PATIENCE = 1.0  # seconds until `next` gives up
LEAVING = 10.0  # seconds that a worker without a unit has to end by itself
DEVICE_LOST = 70  # status of a worker that ended because its GPU does


class Told(NamedTuple):
    """Progress within a unit."""

    images: int
    errors: int
    seconds: dict[str, float]


class Finished(NamedTuple):
    number: int
    done: Done


class Failed(NamedTuple):
    """A unit could not be done. stop: nor will others, since nothing can be written"""

    number: int
    error: str
    stop: bool


class Died(NamedTuple):
    """A worker died while it worked at a unit."""

    number: int
    how: str


class CannotBegin(OSError):
    """A worker could not be made: the model or the codebook is wrong, and every other worker would fail, too."""

    def __init__(self, why: str) -> None:
        super().__init__(f"corpus: a worker could not begin: {why}")


Event = Told | Finished | Failed | Died


class Pool(Protocol):
    """room: whether another unit can be given now; next: what happened, if anything did within PATIENCE"""

    workers: int

    @property
    def room(self) -> bool: ...
    def submit(self, number: int, tries: int) -> None: ...
    def next(self) -> Event | None: ...
    def close(self) -> None: ...


def attempt(worker: UnitWorker, number: int, tries: int, tell: Any = None) -> Finished | Failed:
    """Run a unit; what it raises becomes an event."""
    try:
        return Finished(number, worker(number, tries, tell))
    except OSError as error:  # sources' errors are rows; this is the corpus itself: a full disk, a lost permission
        return Failed(number, said(error), True)
    except Exception as error:  # the unit stays undone, and the run says so at its end
        return Failed(number, said(error), False)


class HerePool:
    """No other process: the unit is done when it is submitted."""

    workers = 1

    def __init__(self, url: str, *, device: str, threads: int) -> None:
        self._threads = torch.get_num_threads()
        self.worker = UnitWorker(url, device=device, threads=threads)
        self.events: deque[Event] = deque()

    @property
    def room(self) -> bool:
        return not self.events

    def submit(self, number: int, tries: int) -> None:
        self.events.append(attempt(self.worker, number, tries, lambda *told: self.events.append(Told(*told))))

    def next(self) -> Event | None:
        return self.events.popleft() if self.events else None

    def close(self) -> None:
        self.worker.pool.shutdown()
        torch.set_num_threads(self._threads)  # the worker took one, and this process is the caller's


def process_context() -> Any:
    """How processes are begun: forked from one that has imported all and done nothing, where there is such a thing.

    A fork of this process would inherit the locks of torch's threads.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@dataclass
class _Process:
    process: Any
    pipe: Connection
    units: list[int]


class LocalPool:
    """Processes of this machine.

    devices: of each worker
    slots:   units that a worker has at once: on a GPU two, so that one is brought and written while the other computes
    """

    def __init__(self, url: str, *, devices: Sequence[str], threads: int, slots: int) -> None:
        self.url, self.threads, self.slots = url, threads, slots
        self.workers = len(devices)
        self._context: Any = process_context()
        self._events: deque[Event] = deque()
        self._running = [self._started(device) for device in devices]
        self._devices = list(devices)

    def _started(self, device: str) -> _Process:
        ours, theirs = self._context.Pipe()
        arguments = (theirs, self.url, device, self.threads, self.slots)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Process(process, ours, [])

    @property
    def room(self) -> bool:
        return any(len(one.units) < self.slots for one in self._running)

    def submit(self, number: int, tries: int) -> None:
        idle = min(self._running, key=lambda one: len(one.units))
        idle.units.append(number)
        with suppress(OSError):  # it died; `next` finds out
            idle.pipe.send((number, tries))

    def next(self) -> Event | None:
        if self._events:
            return self._events.popleft()
        pipes = {one.pipe: place for place, one in enumerate(self._running)}
        for pipe in wait(list(pipes), PATIENCE):
            place = pipes[pipe]  # type: ignore[index]
            one = self._running[place]
            try:
                event = one.pipe.recv()
            except (EOFError, OSError):
                self._replace(place)
                continue
            if isinstance(event, str):
                raise CannotBegin(event)
            if isinstance(event, (Finished, Failed)):
                one.units.remove(event.number)
            self._events.append(event)
        return self._events.popleft() if self._events else None

    def _replace(self, place: int) -> None:
        one = self._running[place]
        one.process.join()
        code = one.process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        how = "its GPU failed" if code == DEVICE_LOST else how
        self._events += [Died(number, how) for number in one.units]
        self._running[place] = self._started(self._devices[place])

    def close(self) -> None:
        """Workers without a unit end by themselves, so that what libraries hold is given back; others are stopped."""
        for one in self._running:
            with suppress(OSError):
                one.process.terminate() if one.units else one.pipe.send(None)
        for one in self._running:
            one.process.join(LEAVING)
            one.process.terminate()
            one.process.join()


def _serve(pipe: Connection, url: str, device: str, threads: int, slots: int) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver is asked to stop, and stops its workers
    try:
        worker = UnitWorker(url, device=device, threads=threads)
    except Exception as error:  # said by the driver
        pipe.send(said(error))
        return
    sending = threading.Lock()

    def send(event: Event) -> None:
        with sending:
            pipe.send(event)

    def run(number: int, tries: int) -> None:
        event = attempt(worker, number, tries, lambda *told: send(Told(*told)))
        if worker.device_lost:  # nothing works in this process any more, but in another one it may
            os._exit(DEVICE_LOST)
        send(event)

    with ThreadPoolExecutor(slots) as pool:
        while True:
            try:
                given = pipe.recv()
            except (EOFError, OSError):
                os._exit(1)  # the driver is gone; what is under way is not done
            if given is None:
                return
            pool.submit(run, *given)
