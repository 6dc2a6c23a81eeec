"""The newest frame of a source that does not wait: what comes meanwhile is dropped and counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Condition, Thread

from texturevlm.video.frames import Frame


class LatestFrames:
    """Frames of a source, read in a thread; iterating gives the newest one that was not given yet.

    dropped: frames that came and were never given. At most one frame waits, so the latency is that of one frame
    """

    def __init__(self, source: Iterable[Frame]) -> None:
        self.source, self.dropped = source, 0
        self._newest: Frame | None = None
        self._failed: BaseException | None = None
        self._over = self._stopped = False
        self._changed = Condition()

    def __iter__(self) -> Iterator[Frame]:
        thread = Thread(target=self._read, name="texturevlm-frames", daemon=True)
        thread.start()
        try:
            while (frame := self._next()) is not None:
                yield frame
        finally:
            with self._changed:
                self._stopped = True
        if self._failed is not None:
            raise self._failed

    def _next(self) -> Frame | None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._over)
            frame, self._newest = self._newest, None
            return frame

    def _read(self) -> None:
        try:
            for frame in self.source:
                with self._changed:
                    if self._stopped:
                        return
                    self.dropped += self._newest is not None
                    self._newest = frame
                    self._changed.notify()
        except BaseException as error:  # raised where frames are taken
            self._failed = error
        finally:
            with self._changed:
                self._over = True
                self._changed.notify()
