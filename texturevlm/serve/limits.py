"""What a client may ask for, and the errors that say so."""

from __future__ import annotations

from dataclasses import dataclass

MEBI = 1 << 20
LONGEST_QUESTION = 4000  # characters
LARGEST_BUDGET = 4096  # tokens
SIDES = (8, 64)  # of a token in samples, from and to


@dataclass(frozen=True)
class Limits:
    """Limits of one server.

    upload_bytes:  of a file, and of the body of a request
    held_bytes:    of the bodies of all requests that are not answered yet; one more is answered 429
    pixels:        of an image, a page or a frame
    along:         pixels along a side of an image
    pages:         of a document
    page_seconds:  of drawing a page of a document
    video_seconds: of a video; the rest is not read
    kept_bytes:    of all uploads, as they came; the oldest leave
    cache_bytes:   of what was made of them: textures, maps, looks; the oldest leave
    seconds:       of a request
    waiting:       requests that wait for each kind of work; one more is answered 429
    images:        of a chat request
    answer_tokens: of an answer
    """

    upload_bytes: int = 64 * MEBI
    held_bytes: int = 512 * MEBI
    pixels: int = 40_000_000
    along: int = 1 << 15
    pages: int = 200
    page_seconds: float = 20.0
    video_seconds: float = 120.0
    kept_bytes: int = 512 * MEBI
    cache_bytes: int = 1024 * MEBI
    seconds: float = 120.0
    waiting: int = 64
    images: int = 8
    answer_tokens: int = 1024


class ApiError(Exception):
    """An error that the client gets: its HTTP status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    @property
    def kind(self) -> str:
        """The type of the error, in OpenAI's words."""
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        return kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def body(self) -> dict[str, object]:
        """The answer, in OpenAI's form."""
        return {"error": {"message": self.message, "type": self.kind, "code": self.status}}
