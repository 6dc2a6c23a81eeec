"""A server on a loopback port, for tests that need a connection: clients that leave, a browser, an upstream."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import uvicorn


def wait_for(condition, seconds=30):
    """Return when it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


@contextmanager
def running(app, **options):
    """The address of an ASGI application that runs in a thread; it ends with the block. options: of uvicorn"""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2, **options)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), daemon=True)
    thread.start()
    wait_for(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
