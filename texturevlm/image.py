"""An image of any kind → a float tensor (B, C, H, W), values 0 to 1. Data enters the library here and is checked here.

Files and PIL images become red, green, blue: grey is repeated, palettes and CMYK are converted, transparency is laid
over white, 16-bit grey keeps its precision, the orientation tag of a camera is applied.
"""

import io
import os
import re
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from texturevlm.check import check_finite
from texturevlm.paths import is_url
from texturevlm.staging import image_bytes, stage_jpeg

MAX_PIXELS = 1 << 27  # 134 million: an A0 page at 200 dpi; a larger file is more likely a mistake or an attack
MAX_BYTES = 1 << 28  # of a download: what that many pixels take as a camera's JPEG, and more
BYTE = 255  # the largest value of 8 bits
PATIENCE = 10  # seconds without an answer from a server
SCHEMES = re.compile(r"(https?:/|data:)", re.IGNORECASE)
ImageLike = str | os.PathLike[str] | bytes | Image.Image | np.ndarray[Any, Any] | Tensor


def to_tensor(source: Any, device: torch.device | str | None = None) -> Tensor:
    """Read an image.

    source: a path, a URL (http, https, data), the bytes of a file, a PIL image, an array (H, W) or (H, W, C), or a
            tensor (H, W), (C, H, W) or (B, C, H, W)
    device: where the result is: that of a tensor, else the CPU, if None. Bytes are moved as bytes and scaled there
    returns (B, C, H, W) floating point. 8-bit and 16-bit integers are scaled by the largest value of their type, arrays
            of floats become float32, a float tensor is returned as it is, not copied
    """
    if isinstance(source, (str, os.PathLike)):
        name = os.fspath(source)
        if SCHEMES.match(name):
            return _from_bytes(_downloaded(name), f"{name:.80}", device)
        if is_url(name):
            raise ValueError(f"Texture.open: source must be a path or a URL of http, https or data, got {name:.80}")
        with _opened(Path(name), name) as image:
            return _from_pil(image, name, device, own=True)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _from_bytes(bytes(source), f"source of {len(source)} bytes", device)
    if isinstance(source, Image.Image):
        return _from_pil(source, "image", device)
    if isinstance(source, np.ndarray):
        if source.ndim not in (2, 3):
            raise ValueError(f"Texture.open: an array must be (H, W) or (H, W, C), got {source.shape}")
        if source.dtype.kind not in "uifb":
            raise TypeError(f"Texture.open: an array must hold numbers, got {source.dtype}")
        array = source if source.ndim == 3 else source[..., None]
        native = np.dtype(np.float32) if array.dtype.kind == "f" else array.dtype.newbyteorder("=")
        pixels = torch.from_numpy(np.require(array, native, ("C", "W"))).to(device)
        return _from_tensor(pixels.permute(2, 0, 1).contiguous())
    if isinstance(source, Tensor):
        return _from_tensor(source.to(device))
    got = type(source).__name__
    raise TypeError(f"Texture.open: source must be a path, a URL, bytes, a PIL image, an array or a tensor, got {got}")


def _from_bytes(content: bytes, name: str, device: torch.device | str | None) -> Tensor:
    with _opened(io.BytesIO(content), name) as image:
        return _from_pil(image, name, device, own=True)


def _downloaded(url: str) -> bytes:
    """What lies at a URL."""
    url = re.sub(r"^(https?):/+", r"\1://", url, flags=re.IGNORECASE)  # a Path drops a slash
    try:
        with urlopen(Request(url, headers={"User-Agent": "texturevlm"}), timeout=PATIENCE) as answer:
            content: bytes = answer.read(MAX_BYTES + 1)
    except HTTPError as error:
        reason = f"the server answers {error.code} {error.reason}"
    except (OSError, HTTPException, ValueError) as error:
        reason = str(error.reason if isinstance(error, URLError) else error) or type(error).__name__
    else:
        if len(content) <= MAX_BYTES:
            return content
        reason = f"it has more than {MAX_BYTES} bytes"
    raise ConnectionError(f"Texture.open: {url:.80} cannot be downloaded: {' '.join(reason.split())}")


def _opened(file: Path | io.BytesIO, name: str) -> Image.Image:
    """Read the header of a file, not its pixels."""
    try:
        return Image.open(file)
    except FileNotFoundError:
        raise FileNotFoundError(f"Texture.open: no such file: {name}") from None
    except IsADirectoryError:
        raise ValueError(f"Texture.open: {name} is a folder, not an image") from None
    except Image.DecompressionBombError:
        raise ValueError(f"Texture.open: {name} has pixels beyond {MAX_PIXELS}; {_by_pages(name)}") from None
    except UnidentifiedImageError:
        if _begins_as_pdf(file):
            wanted = "is a PDF, not an image: give it alone to VLM.ask or choose_pages, which take documents"
            raise ValueError(f"Texture.open: {name} {wanted}") from None
        raise ValueError(f"Texture.open: {name} is not an image that Pillow can read") from None
    except Exception as error:  # Pillow's decoders raise anything for damaged files
        raise ValueError(f"Texture.open: {name} cannot be read: {error}") from error


def check_header(source: Any) -> None:
    """Refuse a file on this machine, or bytes, that is no image, by its header alone; all else is not looked at."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        _opened(io.BytesIO(source), f"source of {len(source)} bytes").close()
    elif isinstance(source, (str, os.PathLike)) and not (is_url(source) or SCHEMES.match(os.fspath(source))):
        _opened(Path(source), os.fspath(source)).close()


def _by_pages(name: str) -> str:
    return f"make it readable by pages: texturevlm pyramid {name if os.path.isfile(name) else 'FILE'}"


def _begins_as_pdf(file: Path | io.BytesIO) -> bool:
    if isinstance(file, io.BytesIO):
        return file.getvalue().startswith(b"%PDF-")
    with file.open("rb") as opened:
        return opened.read(5) == b"%PDF-"


def file_pixels(content: bytes) -> Tensor:
    """The pixels of an image file, (H, W, 3) uint8: what `to_tensor` makes of it, in 8 bits."""
    name = f"source of {len(content)} bytes"
    with _opened(io.BytesIO(content), name) as image:
        pixels = _pixels(image, name, None, own=True)
    if pixels.dtype == torch.uint8:
        return pixels
    return pixels[0].mul(BYTE).round_().byte().permute(1, 2, 0)


def _from_pil(image: Image.Image, name: str, device: torch.device | str | None, *, own: bool = False) -> Tensor:
    pixels = _pixels(image, name, device, own=own)
    return _scaled(pixels.permute(2, 0, 1)[None].contiguous()) if pixels.dtype == torch.uint8 else pixels


def _pixels(image: Image.Image, name: str, device: torch.device | str | None, *, own: bool) -> Tensor:
    """(H, W, 3) uint8; of grey with 16 bits (1, 3, H, W), 0 to 1. own: nobody else holds the image"""
    target = torch.device(device or "cpu")
    if image.width == 0 or image.height == 0:
        raise ValueError(f"Texture.open: image must not be empty, got {image.height}×{image.width}")
    if image.width * image.height > MAX_PIXELS:
        pixels = f"{image.width}×{image.height} pixels, more than {MAX_PIXELS}"
        raise ValueError(f"Texture.open: {name} has {pixels}; {_by_pages(name)}")
    staged = stage_jpeg(image, target) if own else None
    try:
        image.load()
    except Exception as error:  # Pillow's decoders raise anything for damaged files
        raise ValueError(f"Texture.open: {name} cannot be read: {error}") from error
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # else it would be copied
        image = ImageOps.exif_transpose(image)
    elif staged is not None and staged.filled:
        return staged.on_device()
    if image.mode == "F":
        raise ValueError("Texture.open: a float image has no agreed range; scale it to 0 … 1 and pass an array")
    if image.mode.startswith("I"):
        grey = torch.from_numpy(np.asarray(image).astype(np.float32)) / 65535
        if grey.min() < 0 or grey.max() > 1:
            raise ValueError("Texture.open: a 32-bit image has no agreed range; scale it to 0 … 1 and pass an array")
        return grey.to(device).expand(1, 3, *grey.shape).contiguous()
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        over = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", over.size, "white"), over)
    if image.mode != "RGB":
        image = image.convert("RGB")
    return image_bytes(image, target)


def _scaled(tensor: Tensor) -> Tensor:
    """Whole numbers → float32, the largest value of their type is 1; the same values on every device."""
    most = torch.full((), float(torch.iinfo(tensor.dtype).max), device=tensor.device)
    return tensor.float().div_(most)  # by a number a GPU would multiply by its reciprocal, which rounds differently


def _from_tensor(tensor: Tensor) -> Tensor:
    if tensor.dim() not in (2, 3, 4):
        raise ValueError(f"Texture.open: a tensor must be (H, W), (C, H, W) or (B, C, H, W), got {tuple(tensor.shape)}")
    while tensor.dim() < 4:
        tensor = tensor[None]
    if tensor.numel() == 0:
        raise ValueError(f"Texture.open: image must not be empty, got {tuple(tensor.shape)}")
    if tensor.is_complex():
        raise TypeError(f"Texture.open: a tensor must hold real numbers, got {tensor.dtype}")
    if tensor.dtype == torch.bool:
        return tensor.float()
    if tensor.dtype in (torch.int32, torch.int64, torch.uint32, torch.uint64):
        raise ValueError(f"Texture.open: {tensor.dtype} has no agreed range; scale it to 0 … 1 or make it uint8")
    if not tensor.is_floating_point():
        return _scaled(tensor)
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"Texture.open: a tensor must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    check_finite("Texture.open", image=tensor)
    return tensor
