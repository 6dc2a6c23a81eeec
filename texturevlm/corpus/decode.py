"""Bytes of a file → pixels. What is installed decides how JPEGs are decoded; Pillow reads all that others do not."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import torch
from PIL import ExifTags, Image
from torch import Tensor

from texturevlm.check import check_choice
from texturevlm.corpus.decode_gpu import GPU_DECODERS, MODULES, can_import, decode_by_gpu
from texturevlm.corpus.items import Pixels
from texturevlm.image import MAX_PIXELS, file_pixels

JPEG = b"\xff\xd8\xff"
HEADER = 1 << 16  # bytes in which an Exif segment begins


def pixel_digest(content: bytes | Pixels) -> str:
    """Of the file, or of the pixels where there is no file of its own."""
    return hashlib.blake2b(
        content.tobytes() if isinstance(content, np.ndarray) else content, digest_size=16
    ).hexdigest()


def to_bytes(image: Tensor) -> Pixels:
    """(1, 3, H, W), values 0 to 1 → (H, W, 3) uint8, exact for images of 8 bits."""
    return image[0].mul(255).round_().byte().permute(1, 2, 0).contiguous().numpy()


def pillow(content: bytes) -> Pixels:
    """What `Texture.open` makes of it, in 8 bits."""
    return np.ascontiguousarray(file_pixels(content).numpy())


def simplejpeg(content: bytes) -> Pixels:
    """libjpeg-turbo without detours; what it does not take as it is (no JPEG, turned, CMYK, damaged), Pillow reads."""
    import simplejpeg as turbo

    try:
        if content[:3] != JPEG or (b"Exif" in content[:HEADER] and _turned(content)):
            return pillow(content)
        height, width, colours, _ = turbo.decode_jpeg_header(content)
        if colours not in ("RGB", "YCbCr", "Gray") or height * width > MAX_PIXELS:
            return pillow(content)
        pixels: Pixels = turbo.decode_jpeg(content, "RGB")
        return pixels
    except (ValueError, OSError):
        return pillow(content)


def _turned(content: bytes) -> bool:
    """Whether the camera was held in another way, as Exif says."""
    with Image.open(io.BytesIO(content)) as image:
        return bool(image.getexif().get(ExifTags.Base.Orientation, 1) != 1)


DECODERS: dict[str, Callable[[bytes], Pixels]] = {"simplejpeg": simplejpeg, "pillow": pillow}


def find_decoder(name: str = "auto", device: str = "cpu") -> str:
    """The best decoder that is installed, or the one named, if it is; those of a GPU come first, where there is one."""
    check_choice("corpus", "decoder", name, ("auto", *GPU_DECODERS, *DECODERS))
    on_gpu = device.startswith("cuda")
    if name in GPU_DECODERS and not on_gpu:
        raise ValueError(f"corpus: decoder {name!r} needs --device cuda, got {device}")
    installed = [one for one in GPU_DECODERS if on_gpu and can_import(one)]
    installed += [one for one in DECODERS if one == "pillow" or find_spec(one) is not None]
    if name in GPU_DECODERS and name not in installed:
        raise ImportError(f"corpus: decoder {name!r} needs the package {MODULES[name]}, which cannot be imported here")
    if name != "auto" and name not in installed:
        raise ImportError(f"corpus: decoder {name!r} needs the extra corpus: pip install 'texturevlm[corpus]'")
    return installed[0] if name == "auto" else name


def decoder_of(name: str, device: torch.device) -> Callable[[bytes], Pixels]:
    """What decodes by this name."""
    if name not in GPU_DECODERS:
        return DECODERS[name]

    def decode(content: bytes) -> Pixels:
        found = decode_by_gpu(name, device, content)
        return pillow(content) if found is None else found

    return decode
