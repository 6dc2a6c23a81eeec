"""Queues: what is too much, what nobody waits for, and what takes too long."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest

from tests.serve.conftest import png
from tests.serve.running import running, wait_for
from texturevlm.serve.app import Settings, create_app
from texturevlm.serve.connections import PunctualProtocol
from texturevlm.serve.limits import Limits


@pytest.fixture
def slow(monkeypatch):
    """Plans that wait for an event; how many began, and which questions."""

    class Slow:
        begun, go = [], threading.Event()

        def plan(self, image, asked, how, stop):
            self.begun.append(asked.question)
            while not self.go.wait(0.01):
                stop.check()
            return {"question": asked.question}

    found = Slow()
    found.begun, found.go = [], threading.Event()
    monkeypatch.setattr("texturevlm.serve.page.plan", found.plan)
    yield found
    found.go.set()


def serving(**limits):
    return running(create_app(Settings(limits=Limits(**limits))))


def upload(address):
    return httpx.post(f"{address}/api/images", files={"file": ("a.png", png())}, timeout=60).json()["id"]


def plan(address, identity, question, timeout=30.0):
    return httpx.post(f"{address}/api/plan", json={"id": identity, "question": question}, timeout=timeout)


def test_too_many_requests_are_answered_429_at_once(slow):
    with serving(waiting=3) as address, ThreadPoolExecutor(8) as threads:
        identity = upload(address)
        waiting = [threads.submit(plan, address, identity, str(index)) for index in range(5)]  # two run, three wait
        wait_for(lambda: len(slow.begun) == 2)
        time.sleep(0.3)
        refused = plan(address, identity, "one too many")
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        assert httpx.get(f"{address}/api/about").status_code == 200  # the server still answers
        slow.go.set()
        assert [one.result().status_code for one in waiting] == [200] * 5
        assert plan(address, identity, "later").status_code == 200


def test_what_waits_for_a_client_who_left_is_never_begun(slow):
    with serving(waiting=8) as address, ThreadPoolExecutor(4) as threads:
        identity = upload(address)
        running_now = [threads.submit(plan, address, identity, str(index)) for index in range(2)]
        wait_for(lambda: len(slow.begun) == 2)
        with pytest.raises(httpx.ReadTimeout):
            plan(address, identity, "stale", timeout=0.3)
        time.sleep(0.3)
        slow.go.set()
        assert [one.result().status_code for one in running_now] == [200, 200]
        assert plan(address, identity, "newest").json()["question"] == "newest"
        assert "stale" not in slow.begun


def test_what_runs_for_a_client_who_left_stops(slow):
    with serving() as address:
        identity = upload(address)
        for index in range(4):  # twice as many as there are threads
            with pytest.raises(httpx.ReadTimeout):
                plan(address, identity, str(index), timeout=0.3)
        wait_for(lambda: len(slow.begun) == 4)


def test_a_request_that_takes_too_long_gets_an_answer(slow):
    with serving(seconds=0.5) as address:
        identity = upload(address)
        late = plan(address, identity, "slow")
        assert late.status_code == 504 and "0.5 s" in late.json()["error"]["message"]
        slow.go.set()
        assert plan(address, identity, "quick").status_code == 200


def sent(address, *parts, path="/api/plan"):
    """The answer, an error, to a request that is sent by hand; the connection stays open."""
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode())
        for part in parts:
            connection.sendall(part)
        answer = b""
        while not answer.endswith(b"}}"):
            answer += connection.recv(65536)
        return answer.decode()


@pytest.mark.parametrize("path", ["/api/plan", "/api/answer", "/v1/chat/completions"])
def test_a_request_that_does_not_arrive_is_answered_408(path):
    with serving(seconds=0.4) as address:
        began = time.monotonic()
        answer = sent(address, b"Content-Length: 100\r\n\r\n", b'{"id": ', path=path)  # and nothing more
        assert answer.startswith("HTTP/1.1 408") and "within 0.4 s" in answer
        assert 0.3 < time.monotonic() - began < 10
        assert httpx.get(f"{address}/api/about").status_code == 200


def test_a_body_that_does_not_say_its_length_is_cut_at_the_limit():
    with serving(upload_bytes=1000) as address:
        chunks = [b"10000\r\n" + b"x" * 0x10000 + b"\r\n"] * 17  # together above the slack of one MiB
        answer = sent(address, b"Transfer-Encoding: chunked\r\n\r\n", *chunks)
        assert answer.startswith("HTTP/1.1 413") and "at most" in answer


def test_a_header_that_does_not_arrive_is_not_waited_for():
    class Impatient(PunctualProtocol):
        seconds = 0.5

    with running(create_app(Settings()), http=Impatient) as address:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: ")
            for _ in range(4):  # a byte now and then does not help
                time.sleep(0.1)
                connection.sendall(b"x")
            assert connection.recv(100) == b""  # closed
        with httpx.Client() as client:
            assert client.get(f"{address}/api/about").status_code == 200
            time.sleep(0.8)  # between two requests uvicorn's own time counts
            assert client.get(f"{address}/api/about").status_code == 200


def test_a_client_that_does_not_read_is_given_up():
    class Impatient(PunctualProtocol):
        reading_seconds = 0.3

    ended = threading.Event()

    async def much(scope, receive, send):
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(64):  # more than the buffers of both sides hold
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        finally:
            ended.set()

    with running(much, http=Impatient, lifespan="off") as address:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            assert ended.wait(10)


def test_too_many_bytes_at_once_are_answered_429():
    app = create_app(Settings(limits=Limits(held_bytes=10_000)))
    with running(app) as address, ThreadPoolExecutor(2) as threads:
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
            head = f"POST /api/plan HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: 9900\r\n\r\n"
            connection.sendall(head.encode() + b" " * 9000)  # held, since more is to come
            wait_for(lambda: app.held == 9000)
            refused = threads.submit(plan, address, "x" * 2000, "").result()
            assert refused.status_code == 429 and "too much is sent" in refused.json()["error"]["message"]
        wait_for(lambda: app.held == 0)
        assert plan(address, "x" * 60, "").status_code == 404
