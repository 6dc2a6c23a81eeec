"""Workers that are given units and report what became of them: in this process, in processes of this machine, or actors
of a Ray cluster.

A worker that dies (killed, out of memory, crashed in a decoder) costs a try of the unit that it was working at; another
one takes its place. On a cluster units go out by number and statistics come back; pixels never travel. The folder of
the corpus and the source must be reachable from every node under the same name.
"""

from __future__ import annotations

import logging
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

from texturevlm.corpus.ledger import Manifest
from texturevlm.corpus.sources import said
from texturevlm.corpus.worker import UnitWorker
from texturevlm.extras import extra

PATIENCE = 1.0  # seconds until `next` gives up
LEAVING = 10.0  # seconds that a worker without a unit has to end by itself
OCR_LOG = logging.getLogger("texturevlm.relevance.words")
DEVICE_LOST = 70  # status of a worker that ended because its GPU does


class Progress(NamedTuple):
    """Progress within a unit."""

    images: int
    errors: int
    seconds: dict[str, float]


class Finished(NamedTuple):
    """A unit is done."""

    number: int
    done: Manifest


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


Event = Progress | Finished | Failed | Died


class Pool(Protocol):
    """room: whether another unit can be given now; next: what happened, if anything did within PATIENCE"""

    workers: int

    @property
    def room(self) -> bool: ...
    def submit(self, number: int, tries: int) -> None: ...
    def next(self) -> Event | None: ...
    def close(self) -> None: ...


def quiet_worker(url: str, **options: Any) -> UnitWorker:
    """A worker that does not announce each page that is read by OCR."""
    OCR_LOG.setLevel(logging.ERROR)
    return UnitWorker(url, **options)


def attempt(worker: UnitWorker, number: int, tries: int, tell: Any = None) -> Finished | Failed:
    """Run a unit; what it raises becomes an event."""
    try:
        return Finished(number, worker(number, tries, tell))
    except OSError as error:  # sources' errors are rows; this is the corpus itself: a full disk, a lost permission
        return Failed(number, said(error), True)
    except Exception as error:  # the unit stays undone, and the run says so at its end
        return Failed(number, said(error), False)


class InProcessPool:
    """No other process: the unit is done when it is submitted."""

    workers = 1

    def __init__(self, url: str, *, device: str, threads: int) -> None:
        self._before = torch.get_num_threads(), OCR_LOG.level
        self.worker = quiet_worker(url, device=device, threads=threads)
        self.events: deque[Event] = deque()

    @property
    def room(self) -> bool:
        return not self.events

    def submit(self, number: int, tries: int) -> None:
        self.events.append(attempt(self.worker, number, tries, lambda *since: self.events.append(Progress(*since))))

    def next(self) -> Event | None:
        return self.events.popleft() if self.events else None

    def close(self) -> None:
        self.worker.pool.shutdown()
        threads, level = self._before  # the worker took one and said nothing, and this process is the caller's
        torch.set_num_threads(threads)
        OCR_LOG.setLevel(level)


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
    """A worker process, and the units that it has."""

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
        return any(len(worker.units) < self.slots for worker in self._running)

    def submit(self, number: int, tries: int) -> None:
        idle = min(self._running, key=lambda worker: len(worker.units))
        idle.units.append(number)
        with suppress(OSError):  # it died; `next` finds out
            idle.pipe.send((number, tries))

    def next(self) -> Event | None:
        if self._events:
            return self._events.popleft()
        pipes = {worker.pipe: place for place, worker in enumerate(self._running)}
        for pipe in wait(list(pipes), PATIENCE):
            place = pipes[pipe]  # type: ignore[index]
            worker = self._running[place]
            try:
                event = worker.pipe.recv()
            except (EOFError, OSError):
                self._replace(place)
                continue
            if isinstance(event, str):
                raise CannotBegin(event)
            if isinstance(event, (Finished, Failed)):
                worker.units.remove(event.number)
            self._events.append(event)
        return self._events.popleft() if self._events else None

    def _replace(self, place: int) -> None:
        dead = self._running[place]
        dead.process.join()
        code = dead.process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        how = "its GPU failed" if code == DEVICE_LOST else how
        self._events += [Died(number, how) for number in dead.units]
        self._running[place] = self._started(self._devices[place])

    def close(self) -> None:
        """Workers without a unit end by themselves, so that what libraries hold is given back; others are stopped."""
        for worker in self._running:
            with suppress(OSError):
                worker.process.terminate() if worker.units else worker.pipe.send(None)
        for worker in self._running:
            worker.process.join(LEAVING)
            worker.process.terminate()
            worker.process.join()


def _serve(pipe: Connection, url: str, device: str, threads: int, slots: int) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver is asked to stop, and stops its workers
    try:
        worker = quiet_worker(url, device=device, threads=threads)
    except Exception as error:  # said by the driver
        pipe.send(said(error))
        return
    sending = threading.Lock()

    def send(event: Event) -> None:
        with sending:
            pipe.send(event)

    def run(number: int, tries: int) -> None:
        event = attempt(worker, number, tries, lambda *since: send(Progress(*since)))
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


class _Actor:
    """A worker on a node of the cluster."""

    def __init__(self, url: str, device: str, threads: int) -> None:
        self.worker = quiet_worker(url, device=device, threads=threads)

    def ready(self) -> bool:
        return True

    def run(self, number: int, tries: int) -> Finished | Failed:
        event = attempt(self.worker, number, tries)
        if self.worker.device_lost:
            os._exit(DEVICE_LOST)  # another actor takes its place
        return event


class RayPool:
    """address: of a cluster, auto for the one that this machine belongs to; None begins one on this machine."""

    def __init__(self, url: str, *, workers: int | None, device: str, threads: int, address: str | None) -> None:
        ray = extra("corpus: engine 'ray' needs", "ray", "ray")
        self.ray = ray
        self._began = not ray.is_initialized()
        if self._began:
            options: dict[str, Any] = {}
            if address is None:
                options = {"include_dashboard": False, "num_cpus": max(4, (workers or 1) * threads)}
            try:
                ray.init(address=address, log_to_driver=False, logging_level="warning", **options)
            except ConnectionError as error:
                raise ConnectionError(f"corpus: no Ray cluster at {address}: {error}") from None
        gpus = 1 if device.startswith("cuda") else 0
        self._made = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(_Actor)
        self._arguments = (url, device, threads)
        self.actors: dict[int, Any] = {}
        self._starting: dict[Any, int] = {}  # reference → place of the actor
        self._idle: list[int] = []
        self._running: dict[Any, tuple[int, int]] = {}  # reference → place of the actor, unit
        room = self._room(threads, gpus)
        self.workers = workers or room
        for place in range(self.workers):
            self._start(place)

    def _room(self, cpus: int, gpus: int) -> int:
        """How many workers the cluster is large enough for: at least one, for Ray would wait in silence."""
        has = self.ray.cluster_resources()
        room = int(min(has.get("CPU", 0) / cpus, has.get("GPU", 0) / gpus if gpus else float("inf")))
        if room < 1:
            self.close()
            got = f"{has.get('CPU', 0):g} and {has.get('GPU', 0):g}"
            raise ValueError(f"corpus: a worker needs {cpus} CPUs and {gpus} GPUs of the Ray cluster, which has {got}")
        return room

    def _start(self, place: int) -> None:
        self.actors[place] = self._made.remote(*self._arguments)
        self._starting[self.actors[place].ready.remote()] = place

    @property
    def room(self) -> bool:
        """Units go only to workers that have begun: one that waits for a place in the cluster would keep its unit."""
        nothing = not self._idle and not self._running
        if self._starting:
            began, _ = self.ray.wait(list(self._starting), num_returns=1, timeout=None if nothing else 0)
            for reference in began:
                place = self._starting.pop(reference)
                try:
                    self.ray.get(reference)
                except self.ray.exceptions.RayError as error:
                    last = str(error).strip().splitlines()[-1]
                    raise CannotBegin(last) from None
                self._idle.append(place)
        return bool(self._idle)

    def submit(self, number: int, tries: int) -> None:
        place = self._idle.pop()
        self._running[self.actors[place].run.remote(number, tries)] = place, number

    def next(self) -> Event | None:
        ready, _ = self.ray.wait(list(self._running), num_returns=1, timeout=PATIENCE)
        if not ready:
            return None
        place, number = self._running.pop(ready[0])
        try:
            event: Event = self.ray.get(ready[0])
            self._idle.append(place)
            return event
        except self.ray.exceptions.RayActorError as error:
            self._start(place)
            return Died(number, " ".join(str(error).split())[:120])
        except self.ray.exceptions.RayError as error:
            self._idle.append(place)
            return Failed(number, said(error), False)

    def close(self) -> None:
        for actor in self.actors.values():
            self.ray.kill(actor)
        if self._began:
            self.ray.shutdown()
