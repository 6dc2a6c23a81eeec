"""The server's connections: their number is limited, and so is the time for which a client is waited for.

uvicorn waits for ever for a header, and for a client that does not read its answer. A body is `guard.py`'s affair.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_CONNECTIONS = 1024  # at once; more are answered 503


def server_of(app: Any) -> uvicorn.Server:
    """What serves an application. Questions are in some addresses and are nobody's business: accesses are not logged"""
    quiet: Any = {"log_level": "warning", "access_log": False, "server_header": False}
    return uvicorn.Server(uvicorn.Config(app, http=PunctualProtocol, limit_concurrency=MOST_CONNECTIONS, **quiet))


class PunctualProtocol(H11Protocol):
    """uvicorn's own.

    seconds:         that a header may take, from the first byte, or from the connection if it is the first
    reading_seconds: that a client may take to read what was sent to it
    """

    seconds = 20.0
    reading_seconds = 120.0
    _giving_up: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        else:
            self._end_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_waiting()
        self._end_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        # Not `close`, which waits until everything was read.
        self._reading = self.loop.call_later(self.reading_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_reading()

    def _wait(self) -> None:
        if self._giving_up is None:  # further bytes do not begin the time anew
            self._giving_up = self.loop.call_later(self.seconds, self.transport.close)

    def _end_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
