"""Bytes of a file → pixels. What is installed decides how JPEGs are decoded; Pillow reads all that others do not.

JPEGs may be decoded by a GPU (nvImageCodec, TorchCodec). Pixels come back to the host, as from any decoder: a machine
decodes a few hundred images per second and core, and copying three bytes per pixel both ways costs little beside that.
"""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor

from texturevlm.check import check_choice
from texturevlm.image import MAX_PIXELS, file_pixels

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
JPEG = b"\xff\xd8\xff"
HEADER = 1 << 16  # bytes in which an Exif segment begins
MODULES = {"nvimgcodec": "nvidia.nvimgcodec", "torchcodec": "torchcodec.decoders"}
_own = threading.local()  # a decoder of a GPU is for one thread


def pixel_digest(content: bytes | Pixels) -> str:
    """BLAKE2b of a file, or of the pixels where there is no file of its own."""
    held = content.tobytes() if isinstance(content, np.ndarray) else content
    return hashlib.blake2b(held, digest_size=16).hexdigest()


def to_bytes(image: Tensor) -> Pixels:
    """(1, 3, H, W), values 0 to 1 → (H, W, 3) uint8, exact for images of 8 bits."""
    return image[0].mul(255).round_().byte().permute(1, 2, 0).contiguous().numpy()


def pillow(content: bytes) -> Pixels:
    """What `Texture.open` makes of a file, in 8 bits."""
    return np.ascontiguousarray(file_pixels(content).numpy())


def simplejpeg(content: bytes) -> Pixels:
    """Decode by libjpeg-turbo without detours; what it does not take (no JPEG, turned, CMYK, damaged), Pillow reads."""
    import simplejpeg as turbo

    try:
        if content[:3] != JPEG or (b"Exif" in content[:HEADER] and _is_turned(content)):
            return pillow(content)
        height, width, colours, _ = turbo.decode_jpeg_header(content)
        if colours not in ("RGB", "YCbCr", "Gray") or height * width > MAX_PIXELS:
            return pillow(content)
        pixels: Pixels = turbo.decode_jpeg(content, "RGB")
        return pixels
    except (ValueError, OSError):
        return pillow(content)


def _is_turned(content: bytes) -> bool:
    """Whether the camera was held in another way, as Exif says."""
    with Image.open(io.BytesIO(content)) as header:  # not the pixels
        return bool(header.getexif().get(ExifTags.Base.Orientation, 1) != 1)


def nvimgcodec(content: bytes, device: torch.device) -> Any:
    """Decode a JPEG to (H, W, 3) uint8, as something that numpy takes."""
    if not hasattr(_own, "decoder"):
        _own.decoder = import_module(MODULES["nvimgcodec"]).Decoder(device_id=device.index or 0)
    return _own.decoder.decode(content).cpu()


def torchcodec(content: bytes, device: torch.device) -> Any:
    """Decode a JPEG to (H, W, 3) uint8, as something that numpy takes."""
    return import_module(MODULES["torchcodec"]).decode_jpeg(content, device=device).permute(1, 2, 0).cpu()


DECODERS: dict[str, Callable[[bytes], Pixels]] = {"simplejpeg": simplejpeg, "pillow": pillow}
GPU_DECODERS: dict[str, Callable[[bytes, torch.device], Any]] = {"nvimgcodec": nvimgcodec, "torchcodec": torchcodec}


def can_import(name: str) -> bool:
    """Whether a decoder's module can be imported: TorchCodec is found beside a torch that it cannot be used with."""
    try:
        import_module(MODULES[name])
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def find_decoder(name: str = "auto", device: str = "cpu") -> str:
    """The best decoder that is installed, or the one named, if it is; those of a GPU come first, where there is one."""
    check_choice("corpus", "decoder", name, ("auto", *GPU_DECODERS, *DECODERS))
    on_gpu = device.startswith("cuda")
    if name in GPU_DECODERS and not on_gpu:
        raise ValueError(f"corpus: decoder {name!r} needs --device cuda, got {device}")
    installed = [known for known in GPU_DECODERS if on_gpu and can_import(known)]
    installed += [known for known in DECODERS if known == "pillow" or find_spec(known) is not None]
    if name in GPU_DECODERS and name not in installed:
        raise ImportError(f"corpus: decoder {name!r} needs the package {MODULES[name]}, which cannot be imported here")
    if name != "auto" and name not in installed:
        raise ImportError(f"corpus: decoder {name!r} needs the extra corpus: pip install 'texturevlm[corpus]'")
    return installed[0] if name == "auto" else name


def decoder_of(name: str, device: torch.device) -> Callable[[bytes], Pixels]:
    """What decodes by this name."""
    return partial(_decode_by_gpu, name, device) if name in GPU_DECODERS else DECODERS[name]


def _decode_by_gpu(name: str, device: torch.device, content: bytes) -> Pixels:
    """The pixels of a JPEG of three colours that is upright; Pillow reads all else, and what the GPU refuses."""
    try:
        with Image.open(io.BytesIO(content)) as header:
            (width, height), plain = header.size, header.format == "JPEG" and header.mode == "RGB"
            if not plain or _is_turned(content) or width * height > MAX_PIXELS:
                return pillow(content)
        pixels = np.ascontiguousarray(GPU_DECODERS[name](content, device))
    except Exception:  # codecs raise anything for what they do not take, and Pillow says what is wrong with it
        return pillow(content)
    return pixels if pixels.shape == (height, width, 3) and pixels.dtype == np.uint8 else pillow(content)
