"""What clients upload: bytes → an image, a document or a video, told by its content, never by its name.

Only a few well-known formats are opened. Pillow knows others that run programs (EPS), and FFmpeg others that read files
and addresses named inside them (playlists), so the format is fixed before either sees the bytes.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import is_dataclass
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from texturevlm.pdfium import is_pdf
from texturevlm.placement import open_image
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import ApiError, Limits
from texturevlm.serve.pdfs import SafePdf
from texturevlm.types import Texture
from texturevlm.video import FrameSource, Moment, bytes_source, keep_moments, open_video

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
LONGEST_NAME = 200  # characters of a file's name that are kept, to be shown
PAGE_PIXELS = 1 << 22  # of a rendered page at most: a letter page at 200 dots per inch
VIDEO_FPS = 2.0  # frames per second that are looked at
SCAN = b"\xff\xda"  # begins a scan of a JPEG, and is nowhere else in its data
MOST_SCANS = 100  # of a JPEG: every one is a pass over all its pixels, and takes a few bytes


class Upload:
    """A file as it came. pages: of an image 1, of a video its moments; name: to be shown, and for nothing else"""

    kind = "image"

    def __init__(self, content: bytes, name: str, limits: Limits) -> None:
        self.content, self.name, self.limits = content, name[:LONGEST_NAME], limits
        self.key = hashlib.sha256(content).hexdigest()  # what was made of it is kept by this

    @property
    def nbytes(self) -> int:
        return len(self.content)

    @property
    def pages(self) -> int:
        return 1

    def open(self, page: int, device: torch.device) -> Texture:
        """A page without mip levels."""
        return open_image(opened_image(self.content, self.limits), device)

    def check(self, stop: Stop) -> None:
        """Refuse what cannot be opened, or is too large, before it is kept."""
        opened_image(self.content, self.limits)

    def about(self) -> dict[str, Any]:
        """What the page shows."""
        return {"kind": self.kind, "name": self.name, "pages": self.pages}


class Document(Upload):
    """A PDF."""

    kind = "document"

    @cached_property
    def pdf(self) -> SafePdf:
        return SafePdf(self.content, self.limits.page_seconds)

    @property
    def pages(self) -> int:
        return len(self.pdf)

    def open(self, page: int, device: torch.device) -> Texture:
        return self.pdf.texture(page, min(PAGE_PIXELS, self.limits.pixels), device)

    def check(self, stop: Stop) -> None:
        if self.pages > self.limits.pages:
            raise ApiError(413, f"a document must have at most {self.limits.pages} pages, got {self.pages}")


class Video(Upload):
    """A video, of which the moments that show something new are kept."""

    kind = "video"

    def __init__(self, content: bytes, name: str, limits: Limits) -> None:
        super().__init__(content, name, limits)
        self.readings: dict[Any, Any] = {}  # what scorers read of its moments
        self.moments: list[Moment] = []  # after `check`

    @property
    def nbytes(self) -> int:
        return len(self.content) + held_bytes([self.readings, self.moments])

    @property
    def pages(self) -> int:
        return len(self.moments)

    def open(self, page: int, device: torch.device) -> Texture:
        return Texture((self.moments[page].frames[:1].to(device).float() / 255,))

    def source(self, stop: Stop) -> FrameSource:
        """All frames, as `VLM.prepare` takes them."""
        kind = video_format(self.content)
        frames = bytes_source(self.content, kind, VIDEO_FPS, self.limits.pixels, before_packet=stop.check)
        return open_video(frames, seconds=self.limits.video_seconds)

    def check(self, stop: Stop) -> None:
        self.moments = keep_moments(self.source(stop), together=1).moments
        if not self.moments:
            raise ApiError(400, "the video has no frame that can be read")

    def about(self) -> dict[str, Any]:
        return {**super().about(), "times": [round(moment.time, 3) for moment in self.moments]}


def held_bytes(held: Any) -> int:
    """Bytes of all tensors, each counted once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors_in(held)}.values())


def tensors_in(held: Any) -> Iterable[Tensor]:
    """All tensors in what a scorer read, in dataclasses such as a Texture, and in lists and dicts of those."""
    if isinstance(held, Tensor):
        yield held
    elif isinstance(held, (list, tuple)):
        for part in held:
            yield from tensors_in(part)
    elif isinstance(held, dict):
        yield from tensors_in(list(held.values()))
    elif is_dataclass(held):
        yield from tensors_in(list(vars(held).values()))


def opened_image(content: bytes, limits: Limits) -> Image.Image:
    """An image whose header was read; its pixels are not decoded yet."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our own limit follows
            image = Image.open(io.BytesIO(content), formats=IMAGE_FORMATS)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        if isinstance(error, Image.DecompressionBombError):
            raise ApiError(413, f"an image must have at most {limits.pixels} pixels") from None
        wanted = "PNG, JPEG, WebP, GIF, BMP or TIFF, a PDF, or an MP4, WebM, MKV or AVI video"
        raise ApiError(415, f"the file must be an image ({wanted}), got something else") from None
    except Exception as error:  # Pillow's decoders raise anything for damaged files
        raise ApiError(400, f"the image cannot be read: {error}") from None
    got = f"{image.width}×{image.height}"
    if image.width * image.height > limits.pixels:
        raise ApiError(413, f"an image must have at most {limits.pixels} pixels, got {got}")
    if max(image.size) > limits.along:
        raise ApiError(413, f"an image must have at most {limits.along} pixels along a side, got {got}")
    if content.count(SCAN) > MOST_SCANS and image.format in ("JPEG", "MPO", "TIFF"):
        raise ApiError(413, f"a JPEG must have at most {MOST_SCANS} scans, got {content.count(SCAN)}")
    return image


def video_format(content: bytes) -> str:
    """FFmpeg's name of a video's format, by its first bytes; empty for anything else."""
    if content[4:8] == b"ftyp":
        return "mp4"
    if content[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    return "avi" if content[:4] == b"RIFF" and content[8:12] == b"AVI " else ""


def upload_of(content: bytes, name: str, limits: Limits, stop: Stop) -> Upload:
    """An upload, checked."""
    if not content:
        raise ApiError(400, "the file is empty")
    if len(content) > limits.upload_bytes:
        raise ApiError(413, f"a file must have at most {limits.upload_bytes} bytes, got {len(content)}")
    kind = Document if is_pdf(content) else Video if video_format(content) else Upload
    found = kind(content, name, limits)
    found.check(stop)
    return found


Kind = TypeVar("Kind", bound=Upload)


class Uploads:
    """Uploads by ids that cannot be guessed; the oldest leave when there are too many bytes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._kept: OrderedDict[str, Upload] = OrderedDict()
        self._lock = Lock()

    def add(self, upload: Upload) -> str:
        """Keep an upload; returns its id."""
        identity = secrets.token_urlsafe(16)
        with self._lock:
            self._kept[identity] = upload
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > self.limits.kept_bytes:
                self._kept.popitem(last=False)
        return identity

    def get(self, identity: str) -> Upload:
        with self._lock:
            if identity not in self._kept:
                raise ApiError(404, "no such image: it was never uploaded, or has left the server's memory")
            self._kept.move_to_end(identity)
            return self._kept[identity]

    def of_kind(self, identity: str, kind: type[Kind]) -> Kind:
        """An upload that must be, say, a Video."""
        found = self.get(identity)
        if not isinstance(found, kind):
            raise ApiError(400, f"id must be of a {kind.kind}, got {found.kind}")
        return found
