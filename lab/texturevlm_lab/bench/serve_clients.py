"""Clients of `texturevlm bench serve`, in a process of their own: `python -m texturevlm_lab.bench.serve_clients <
JSON`.

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
    address: str, path: str, bodies: list[Any], clients: int, requests: int, seconds: float = PATIENCE
) -> dict[str, Any]:
    """Send requests, `clients` at a time, none after `seconds`; returns seconds and status of each."""
    if not is_loopback(urlsplit(address).hostname or ""):
        raise ValueError(f"serve_clients: address must be on this machine, got {address}")
    if not (1 <= requests <= MOST_REQUESTS and 1 <= clients <= MOST_CLIENTS):
        raise ValueError(f"serve_clients: at most {MOST_REQUESTS} requests of {MOST_CLIENTS} clients, got {requests}")
    return await _sent(address + path, bodies, clients, requests, seconds)


async def _sent(url: str, bodies: list[Any], clients: int, requests: int, seconds: float) -> dict[str, Any]:
    import httpx

    taken: list[float] = []
    statuses: list[int] = []
    left, first = iter(range(requests)), time.perf_counter()

    async def client() -> None:
        async with httpx.AsyncClient(timeout=PATIENCE, trust_env=False) as own:
            for index in left:
                if (began := time.perf_counter()) > first + seconds:
                    return
                answer = await own.post(url, json=bodies[index % len(bodies)])
                taken.append(time.perf_counter() - began)
                statuses.append(answer.status_code)

    await asyncio.gather(*(client() for _ in range(clients)))
    return {"seconds": taken, "statuses": statuses, "all": time.perf_counter() - first}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(send(**json.load(sys.stdin)))))
