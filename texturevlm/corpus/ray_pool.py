"""Workers on a Ray cluster: one actor per worker. Units go out by number, statistics come back; pixels never travel.

The folder of the corpus and the source must be reachable from every node under the same name.
"""

from __future__ import annotations

import os
from typing import Any

from texturevlm.corpus.items import said
from texturevlm.corpus.pools import DEVICE_LOST, PATIENCE, CannotBegin, Died, Event, Failed, Finished, attempt
from texturevlm.corpus.worker import UnitWorker


class _Actor:
    """Lives on a node."""

    def __init__(self, url: str, device: str, threads: int) -> None:
        self.worker = UnitWorker(url, device=device, threads=threads)

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
        try:
            import ray
        except ImportError:
            raise ImportError("corpus: engine 'ray' needs the extra ray: pip install 'texturevlm[ray]'") from None
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
