"""Clients of `texturevlm bench serve`, in a process of their own: `python -m texturevlm.bench.serve_clients < JSON`.

They send a bounded number of requests to a server on this machine, and to no other, and print what came back.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from texturevlm.serve.guard import is_loopback

MOST_REQUESTS, MOST_CLIENTS, PATIENCE = 10_000, 256, 120.0


async def send(
    address: str,
    path: str,
    bodies: list[Any],
    clients: int,
    requests: int,
    seconds: float = PATIENCE,
    before: int = 0,
) -> dict[str, Any]:
    """Send requests, `clients` at a time, none after `seconds`; returns seconds and status of each.

    before: requests that are sent first, one by one, and not counted
    """
    import httpx

    if not is_loopback(urlsplit(address).hostname or ""):
        raise ValueError(f"serve_clients: address must be on this machine, got {address}")
    if not (1 <= requests <= MOST_REQUESTS and 1 <= clients <= MOST_CLIENTS):
        raise ValueError(f"serve_clients: at most {MOST_REQUESTS} requests of {MOST_CLIENTS} clients, got {requests}")
    taken: list[float] = []
    statuses: list[int] = []
    left = iter(range(requests))

    async def client() -> None:
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as own:
            for index in left:
                if (began := time.perf_counter()) > first + seconds:
                    return
                answer = await own.post(address + path, json=bodies[index % len(bodies)])
                taken.append(time.perf_counter() - began)
                statuses.append(answer.status_code)

    async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as alone:
        for index in range(before):
            await alone.post(address + path, json=bodies[index % len(bodies)])
    first = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return {"seconds": taken, "statuses": statuses, "all": time.perf_counter() - first}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(send(**json.load(sys.stdin)))))
