"""`texturevlm bench serve`: a load test on this machine alone: plans of a page, and chats, by 1, 8 and 32 clients.

The server runs in this process, the clients in another. The model has random weights: a tiny one on a CPU,
Qwen3-VL-4B's architecture on a GPU. The last row has a queue of four: what is too much must be refused, and nothing
may fall over.

Before a row is timed as many clients as it has send a few requests, which pay for what is made once: the scout,
kernels, the graphs for one, two, four and eight answers at once. On a GPU, where device time is dear, a row takes fewer
seconds, and all rows together at most GPU_SECONDS: a row that comes too late says so.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from texturevlm.bench.pictures import page
from texturevlm.bench.report import Report, Row, begin
from texturevlm.bench.timing import Timing
from texturevlm.bench.vlm_file import asked_model
from texturevlm.bench.vlm_theirs import random_model
from texturevlm.defaults import BUDGET
from texturevlm.draw import to_pil

CLIENTS, QUICK_CLIENTS = (1, 8, 32), (1, 4)
REQUESTS, GPU_REQUESTS, QUICK_REQUESTS = 96, 256, 8  # per row
ROW_SECONDS, GPU_ROW_SECONDS = 40.0, 7.0  # after which a row sends no more
GPU_SECONDS = 75.0  # of all rows; loading Python's modules comes before it
LEAST_SECONDS = 2.0  # that a row needs
A4, QUICK_SIZE = (3508, 2480), (350, 248)
PLAN_BAR = 150e3  # microseconds, of a plan of an A4 page for one client on two cores
ANSWER_LENGTH = 8  # tokens
CHAT = "/v1/chat/completions"
FEW_WAITING = 4


def bench_serve(device: str | None = None, *, quick: bool = False) -> Report:
    """Time requests; `quick` takes a small page, a small model and few requests."""
    began = time.monotonic()
    report = begin(__name__, "Server" + (", a small page" if quick else ""), device, quick)
    on_gpu = report.device == "cuda"
    ends = began + (GPU_SECONDS if on_gpu else math.inf)
    model = asked_model(random_model(report.device, small=quick or not on_gpu), 24 if quick else BUDGET)
    size = QUICK_SIZE if quick else A4
    report.notes.append(f"{model!r}; answers of {ANSWER_LENGTH} tokens; the page has {size[1]}×{size[0]} pixels.  ")
    print(f"the model is made: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    file = io.BytesIO()
    to_pil(page(1, *size)).save(file, "PNG")
    chats = [_chat(file.getvalue(), f"what is the total {index} ?") for index in range(4)]
    with serving(model, report.device) as address:
        identity = _uploaded(address, file.getvalue())
        slid = [{"id": identity, "question": "total", "budget": budget} for budget in (64, 96, 144, 216, 273, 324)]
        bar = None if on_gpu or quick else PLAN_BAR
        _row(report, "plan of the page, budgets 64 to 324", address, "/api/plan", slid, 1, ends=ends, bar=bar)
        for clients in QUICK_CLIENTS if quick else CLIENTS:
            _row(report, "chat about the page", address, CHAT, chats, clients, ends=ends)
    with serving(model, report.device, waiting=FEW_WAITING) as address:
        _overload(report, address, chats, ends)
    return report


def _overload(report: Report, address: str, chats: list[Any], ends: float) -> None:
    """More clients than may wait, then one more chat."""
    work = f"chat, {FEW_WAITING} may wait"
    statuses = _row(report, work, address, CHAT, chats, max(CLIENTS), ends=ends, all_answers=True)
    if not statuses:
        return
    again = _sent(address, CHAT, chats, 1, 1)["statuses"]
    refused, failed = statuses[429], statuses.total() - statuses[200] - statuses[429]
    said = f"{refused} of {statuses.total()} were refused with 429, {failed} failed otherwise"
    report.notes.append(f"Overload: {said}; a chat after it was answered {again[0]}.  ")


def _row(
    report: Report,
    work: str,
    address: str,
    path: str,
    bodies: list[Any],
    clients: int,
    *,
    ends: float,
    bar: float | None = None,
    all_answers: bool = False,
) -> Counter[int]:
    """Send and add a row; all_answers: also refusals are timed. Returns how often each status came."""
    on_gpu, who = report.device == "cuda", f"{clients} client{'s' if clients > 1 else ''}"
    requests = QUICK_REQUESTS if report.quick else GPU_REQUESTS if on_gpu else REQUESTS
    left = ends - time.monotonic()
    if left < LEAST_SECONDS:
        report.add_missing(work, who, "no time was left")
        return Counter()
    before = 2 * clients if on_gpu else len(bodies)
    seconds = min(left, GPU_ROW_SECONDS if on_gpu else ROW_SECONDS)
    found = _sent(address, path, bodies, clients, requests, seconds=seconds, before=before)
    statuses = Counter(found["statuses"])
    times = [1e6 * taken for taken, status in zip(found["seconds"], found["statuses"]) if all_answers or status == 200]
    if not times:
        raise RuntimeError(f"bench serve: no {work} was answered, got {dict(statuses)}; the server said why above")
    p50, p99 = (sorted(times)[math.ceil(share * len(times)) - 1] / 1e3 for share in (0.5, 0.99))
    rate = statuses[200] / found["all"]
    said = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
    report.notes.append(
        f"{work}, {who}: {rate:.1f} requests/s answered, p50 {p50:.0f} ms, p99 {p99:.0f} ms ({said}).  "
    )
    report.append(Row(work, who, "clock", Timing.of(times), bar=bar))
    return statuses


def _sent(
    address: str,
    path: str,
    bodies: list[Any],
    clients: int,
    requests: int,
    *,
    seconds: float = ROW_SECONDS,
    before: int = 0,
) -> dict[str, Any]:
    """What the clients found. before: requests that they send first, for what is made once; not counted"""
    asked = {
        "address": address,
        "path": path,
        "bodies": bodies,
        "clients": clients,
        "requests": requests,
        "seconds": seconds,
        "before": before,
    }
    command = [sys.executable, "-m", "texturevlm.bench.serve_clients"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"bench serve: the clients failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _chat(image: bytes, question: str) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": ANSWER_LENGTH}


def _uploaded(address: str, content: bytes) -> str:
    import httpx

    answer = httpx.post(f"{address}/api/images", files={"file": ("page.png", content)}, timeout=120, trust_env=False)
    return str(answer.json()["id"])


@contextmanager
def serving(model: Any, device: str, *, name: str = "random", waiting: int = 64) -> Iterator[str]:
    """The address of a server in this process, on a free port of the loopback address."""
    import torch
    import uvicorn

    from texturevlm.serve.app import Settings, create_app
    from texturevlm.serve.limits import Limits

    settings = Settings(model=model, name=name, device=torch.device(device), limits=Limits(waiting=waiting))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_level="warning", access_log=False))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
