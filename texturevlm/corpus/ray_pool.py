"""Workers on a Ray cluster: one actor per worker. Units go out by number, statistics come back; pixels never travel.

The folder of the corpus and the source must be reachable from every node under the same name.
"""

from __future__ import annotations

import sys
from typing import Any

from texturevlm.corpus.pools import PATIENCE, Died, Event, Failed, Finished, attempt
from texturevlm.corpus.worker import UnitWorker

START = 120.0  # seconds until a cluster that has no room for a single worker is given up


class _Actor:
    """Lives on a node."""

    def __init__(self, url: str, device: str, threads: int) -> None:
        self.worker = UnitWorker(url, device=device, threads=threads)

    def ready(self) -> bool:
        return True

    def run(self, number: int, tries: int) -> Finished | Failed:
        return attempt(self.worker, number, tries)


class RayPool:
    """address: of a cluster, auto for the one that this machine belongs to; None begins one on this machine."""

    def __init__(
        self, url: str, *, workers: int, device: str, threads: int, address: str | None, **options: Any
    ) -> None:
        try:
            import ray
        except ImportError:
            raise ImportError("corpus: engine 'ray' needs the extra ray: pip install 'texturevlm[ray]'") from None
        self.ray, self.workers = ray, workers
        self._began = not ray.is_initialized()
        if self._began:
            if address is None:
                options = {"include_dashboard": False, "num_cpus": max(4, workers * threads), **options}
            try:
                ray.init(address=address, log_to_driver=False, logging_level="warning", **options)
            except ConnectionError as error:
                raise ConnectionError(f"corpus: no Ray cluster at {address}: {error}") from None
        gpus = 1 if device.startswith("cuda") else 0
        self._made = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(_Actor)
        self._arguments = (url, device, threads)
        self._actors = [self._made.remote(*self._arguments) for _ in range(workers)]
        self._running: dict[Any, tuple[int, int]] = {}  # reference → place of the actor, unit
        self._check_room()

    def _check_room(self) -> None:
        """At least one worker must begin; Ray itself would wait in silence."""
        ready, _ = self.ray.wait([actor.ready.remote() for actor in self._actors], num_returns=1, timeout=START)
        if not ready:
            has = self.ray.cluster_resources()
            self.close()
            raise RuntimeError(f"corpus: the Ray cluster has no room for a worker after {START:g} s; it has {has}")
        try:
            self.ray.get(ready[0])
        except self.ray.exceptions.RayError as error:
            self.close()
            raise RuntimeError(f"corpus: a worker could not begin: {str(error).strip().splitlines()[-1]}") from None

    @property
    def room(self) -> bool:
        return len(self._running) < self.workers

    def submit(self, number: int, tries: int) -> None:
        busy = {place for place, _ in self._running.values()}
        place = next(place for place in range(self.workers) if place not in busy)
        self._running[self._actors[place].run.remote(number, tries)] = place, number

    def next(self) -> Event | None:
        ready, _ = self.ray.wait(list(self._running), num_returns=1, timeout=PATIENCE)
        if not ready:
            return None
        place, number = self._running.pop(ready[0])
        try:
            event: Event = self.ray.get(ready[0])
            return event
        except self.ray.exceptions.RayActorError as error:
            self._actors[place] = self._made.remote(*self._arguments)
            return Died(number, " ".join(str(error).split())[:120])
        except self.ray.exceptions.RayError as error:
            print(error, file=sys.stderr)
            return Failed(number, f"{type(error).__name__}", False)

    def close(self) -> None:
        for actor in self._actors:
            self.ray.kill(actor)
        if self._began:
            self.ray.shutdown()
