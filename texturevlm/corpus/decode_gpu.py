"""JPEGs decoded by a GPU: nvImageCodec or TorchCodec, where they are installed and can be imported.

Pixels come back to the host, as from any decoder: the cores of a machine decode a few hundred images per second, and
copying three bytes per pixel both ways costs little beside that. What a GPU does not take, Pillow reads.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image

from texturevlm.corpus.items import Pixels
from texturevlm.image import MAX_PIXELS

MODULES = {"nvimgcodec": "nvidia.nvimgcodec", "torchcodec": "torchcodec.decoders"}
_own = threading.local()  # a decoder is for one thread


def nvimgcodec(content: bytes, device: torch.device) -> Any:
    """(H, W, 3) uint8, as something that numpy takes."""
    if not hasattr(_own, "decoder"):
        _own.decoder = import_module(MODULES["nvimgcodec"]).Decoder(device_id=device.index or 0)
    return _own.decoder.decode(content).cpu()


def torchcodec(content: bytes, device: torch.device) -> Any:
    """The same."""
    return import_module(MODULES["torchcodec"]).decode_jpeg(content, device=device).permute(1, 2, 0).cpu()


GPU_DECODERS: dict[str, Callable[[bytes, torch.device], Any]] = {"nvimgcodec": nvimgcodec, "torchcodec": torchcodec}


def can_import(name: str) -> bool:
    """Whether a decoder's module can be imported: TorchCodec is found beside a torch that it cannot be used with."""
    try:
        import_module(MODULES[name])
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def decode_by_gpu(name: str, device: torch.device, content: bytes) -> Pixels | None:
    """The pixels of a JPEG of three colours that is upright; None for all else, and for what the GPU refuses."""
    try:
        with Image.open(io.BytesIO(content)) as header:  # not the pixels
            turned = header.getexif().get(ExifTags.Base.Orientation, 1) != 1
            width, height = header.size
            if header.format != "JPEG" or header.mode != "RGB" or turned or width * height > MAX_PIXELS:
                return None
        pixels = np.ascontiguousarray(GPU_DECODERS[name](content, device))
    except Exception:  # codecs raise anything for what they do not take, and Pillow says what is wrong with it
        return None
    return pixels if pixels.shape == (height, width, 3) and pixels.dtype == np.uint8 else None
