"""`texturevlm bench serve`: a load test on this machine alone: plans of a page, and chats, by 1, 8 and 32 clients.

The server runs in this process, the clients in another. The model has random weights: a tiny one on a CPU,
Qwen3-VL-4B's architecture on a GPU. The last row has a queue of four: what is too much must be refused, and nothing
may fall over.

Chats that are not counted come first. They pay for what is made once: the scout, kernels, and on a GPU the graphs for
one, two, four and eight answers at once. There device time is dear: a row takes fewer seconds, and all rows together at
most GPU_SECONDS. A row that fails or comes too late says so, and the next one follows.
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

from texturevlm.defaults import BUDGET
from texturevlm.draw import to_pil
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.report import Report, Row
from texturevlm_lab.bench.timing import Timing
from texturevlm_lab.bench.vlm_model import asked_model, random_model

TITLE = "Server"
CLIENTS, QUICK_CLIENTS = (1, 8, 32), (1, 4)
REQUESTS, GPU_REQUESTS, QUICK_REQUESTS = 96, 256, 8  # per row
ROW_SECONDS, GPU_ROW_SECONDS = 40.0, 6.0  # after which a row sends no more
GPU_SECONDS = 75.0  # of all rows; loading Python's modules comes before it
LEAST_SECONDS = 2.0  # that a row needs
LONGEST = 600.0  # seconds of a row, with the answers to what was sent
A4, QUICK_SIZE = (3508, 2480), (350, 248)
PLAN_BAR = 150e3  # microseconds, of a plan of an A4 page for one client on two cores
ANSWER_LENGTH = 8  # tokens
BUDGETS = (64, 96, 144, 216, 273, 324)  # of plans, as a slider moves
CHAT = "/v1/chat/completions"
FEW_WAITING = 4


def bench(report: Report) -> None:
    """Time requests; a quick run takes a small page, a small model and few requests."""
    began, quick, on_gpu = time.monotonic(), report.quick, report.device == "cuda"
    report.title += ", a small page" if quick else ""
    model = asked_model(random_model(report.device, small=quick or not on_gpu), 24 if quick else BUDGET)
    size = QUICK_SIZE if quick else A4
    report.notes.append(f"{model!r}; answers of {ANSWER_LENGTH} tokens; the page has {size[1]}×{size[0]} pixels.  ")
    print(f"the model is made: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    file = io.BytesIO()
    to_pil(page(1, *size)).save(file, "PNG")
    chats = [_chat(file.getvalue(), f"what is the total {index} ?") for index in range(4)]
    rows = _Rows(report, chats, began + (GPU_SECONDS if on_gpu else math.inf))
    with serving(model, report.device) as address:
        counts = QUICK_CLIENTS if quick else CLIENTS
        rows.warm(address, max(counts))
        for clients in counts:
            rows.add("chat about the page", address, CHAT, chats, clients)
    with serving(model, report.device, waiting=FEW_WAITING) as address:
        rows.warm(address, 1)
        _overload(rows, address)
        identity = _uploaded(address, file.getvalue())
        slid = [{"id": identity, "question": "total", "budget": budget} for budget in BUDGETS]
        bar = None if on_gpu or quick else PLAN_BAR
        rows.add(f"plan of the page, budgets {BUDGETS[0]} to {BUDGETS[-1]}", address, "/api/plan", slid, 1, bar=bar)


def _overload(rows: _Rows, address: str) -> None:
    """More clients than may wait, then one more chat."""
    work = f"chat, {FEW_WAITING} may wait"
    statuses = rows.add(work, address, CHAT, rows.chats, max(CLIENTS), all_answers=True)
    if not statuses:
        return
    again = rows.sent(address, CHAT, rows.chats, 1, 1)["statuses"]
    refused, failed = statuses[429], statuses.total() - statuses[200] - statuses[429]
    said = f"{refused} of {statuses.total()} were refused with 429, {failed} failed otherwise"
    rows.report.notes.append(f"Overload: {said}; a chat after it was answered {again[0]}.  ")


class _Rows:
    """Adds rows to a report. chats: bodies of requests; ends: when no more is sent, by `time.monotonic`"""

    def __init__(self, report: Report, chats: list[Any], ends: float) -> None:
        self.report, self.chats, self.ends = report, chats, ends

    def warm(self, address: str, clients: int) -> None:
        """Chats that are not counted: one, and on a GPU then two per client, which are answered together."""
        try:
            self.sent(address, CHAT, self.chats, 1, 1)
            if self.report.device == "cuda":
                self.sent(address, CHAT, self.chats, clients, 2 * clients)
        except RuntimeError as error:
            print(error, file=sys.stderr, flush=True)  # the rows will say it, too

    def add(
        self,
        work: str,
        address: str,
        path: str,
        bodies: list[Any],
        clients: int,
        *,
        bar: float | None = None,
        all_answers: bool = False,
    ) -> Counter[int]:
        """Send and add a row; all_answers: also refusals are timed. Returns how often each status came."""
        report, on_gpu, who = self.report, self.report.device == "cuda", f"{clients} client{'s' if clients > 1 else ''}"
        requests = QUICK_REQUESTS if report.quick else GPU_REQUESTS if on_gpu else REQUESTS
        try:
            found = self.sent(address, path, bodies, clients, requests)
        except RuntimeError as error:
            report.add_missing(work, who, error)
            return Counter()
        statuses = Counter(found["statuses"])
        pairs = zip(found["seconds"], found["statuses"])
        times = [1e6 * taken for taken, status in pairs if all_answers or status == 200]
        if not times:
            report.add_missing(work, who, f"none was answered 200, got {dict(statuses)}")
            return Counter()
        p50, p99 = (sorted(times)[math.ceil(share * len(times)) - 1] / 1e3 for share in (0.5, 0.99))
        rate = statuses[200] / found["all"]
        said = ", ".join(f"{count} × {status}" for status, count in sorted(statuses.items()))
        report.notes.append(
            f"{work}, {who}: {rate:.1f} requests/s answered, p50 {p50:.0f} ms, p99 {p99:.0f} ms ({said}).  "
        )
        report.append(Row(work, who, "clock", Timing.of(times), bar=bar))
        return statuses

    def sent(self, address: str, path: str, bodies: list[Any], clients: int, requests: int) -> dict[str, Any]:
        """What the clients found; raises if they failed, or if there is no time."""
        left = min(self.ends - time.monotonic(), LONGEST)
        if left < LEAST_SECONDS:
            raise RuntimeError("no time was left")
        seconds = min(left, GPU_ROW_SECONDS if self.report.device == "cuda" else ROW_SECONDS)
        asked: dict[str, Any] = {"address": address, "path": path, "bodies": bodies}
        asked |= {"clients": clients, "requests": requests, "seconds": seconds}
        command = [sys.executable, "-m", "texturevlm_lab.bench.serve_clients"]
        try:
            done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=left)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no end after {left:.0f} s") from None
        if done.returncode:
            raise RuntimeError(f"the clients failed: {done.stderr.strip().splitlines()[-1]}")
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

    from texturevlm.serve.app import Settings, create_app
    from texturevlm.serve.connections import server_of
    from texturevlm.serve.limits import Limits

    settings = Settings(model=model, name=name, device=torch.device(device), limits=Limits(waiting=waiting))
    listening = socket.create_server(("127.0.0.1", 0))
    server = server_of(create_app(settings))
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
