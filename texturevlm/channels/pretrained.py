"""Models of transformers from a hub id or a folder, with clear errors where one cannot be loaded."""

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_choice

HUB_OPTIONS = ("revision", "trust_remote_code", "token", "cache_dir", "local_files_only", "subfolder", "force_download")
ModelPath = str | os.PathLike[str] | None  # a hub id or a folder; None raises


def optional(function: str, package: str) -> Any:
    """A package of the extra `hf`, imported when it is needed."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(f"{function}: needs {package}; pip install 'texturevlm[hf]' ({error})") from error


def load_rapidocr(function: str, **parameters: Any) -> Any:
    """RapidOCR (extra `ocr`), which comes with its models; parameters: its settings, by their full names."""
    try:
        from rapidocr import RapidOCR
    except ImportError:
        raise ImportError(f"{function}: needs the extra ocr: pip install 'texturevlm[ocr]'") from None
    return RapidOCR(params={"Global.log_level": "critical", **parameters})


def model_pixels(
    network: Any, image: Tensor, size: tuple[int, int], mean: Tensor, std: Tensor, *, mode: str = "bilinear"
) -> Tensor:
    """(B, 3 or 1, H, W) → (B, 3, *size), resized and normalised as a model's own image processor does."""
    pixels = image.to(network.device, torch.float32)
    if pixels.shape[2:] != size:
        pixels = functional.interpolate(pixels, size, mode=mode, align_corners=False, antialias=True)
    mean, std = (values.to(pixels.device)[:, None, None] for values in (mean, std))
    normalised: Tensor = ((pixels.clamp(0, 1) - mean) / std).to(network.dtype)
    return normalised


def load_pretrained(
    function: str,
    model: ModelPath,
    architectures: dict[str, str],
    device: torch.device | str | None,
    dtype: torch.dtype | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, Any, str]:
    """A model of transformers in evaluation mode, its image processor and the digest of its weights.

    model:         a hub id or a folder
    architectures: the class for each model_type that will do
    dtype:         the checkpoint's own if None
    options:       further ones of `from_pretrained`; with device_map the device is not used
    """
    options = dict(options or {})
    shared = {one: options[one] for one in HUB_OPTIONS if one in options}
    if not model or not isinstance(model, (str, os.PathLike)):
        raise ValueError(f"{function}: model must be a hub id or a folder with a model of transformers, got {model!r}")
    name = os.fspath(model)
    if (os.path.isabs(name) or name.startswith((".", "~")) or name.count("/") > 1) and not os.path.isdir(name):
        raise FileNotFoundError(f"{function}: no such folder: {name}")
    place = torch_device(function, device)
    transformers = optional(function, "transformers")
    with model_errors(function, f"a hub id or a folder, got {name}"):
        kind = transformers.AutoConfig.from_pretrained(name, **shared).model_type
    check_choice(function, f"model_type of {name}", kind, architectures)
    with model_errors(function, f"complete and undamaged, got {name}"):
        # by its module: in 5.10 the name in `transformers` itself wants torchvision
        auto = optional(function, "transformers.models.auto.image_processing_auto").AutoImageProcessor
        processor = auto.from_pretrained(name, backend="pil", **shared)
        architecture = getattr(transformers, architectures[kind])
        # straight to the device where accelerate is installed: a large model need not fit into the memory of the host
        if "device_map" not in options and place.type != "cpu" and importlib.util.find_spec("accelerate"):
            options["device_map"] = {"": place}
        network, report = architecture.from_pretrained(name, dtype=dtype or "auto", output_loading_info=True, **options)
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{function}: model must be complete, {name} lacks {len(missing)} weights: {missing[0]} …")
    digest = weight_digest(network)
    # Moved by device only: a cast would round the rotary frequencies, which transformers keeps in float32.
    network = network if "device_map" in options else network.to(place)
    return network.eval().requires_grad_(False), processor, digest


@contextmanager
def model_errors(function: str, wanted: str) -> Iterator[None]:
    """What transformers raises for a model it cannot read, as one line in our style."""
    try:
        yield
    except ImportError as error:  # of a package that only this model needs, such as SigLIP's sentencepiece
        raise ImportError(f"{function}: pip install 'texturevlm[hf]' ({' '.join(str(error).split())})") from error
    except (OSError, ValueError, RuntimeError, optional(function, "safetensors").SafetensorError) as error:
        raise ValueError(f"{function}: model must be {wanted}: {' '.join(str(error).split())}") from error


def torch_device(function: str, device: torch.device | str | None) -> torch.device:
    """The device, if this machine has it; the CPU if None."""
    try:
        found = torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise ValueError(
            f"{function}: device must be one of torch's, such as cpu, cuda or cuda:1, got {device!r}"
        ) from None
    count = torch.cuda.device_count()
    if found.type == "cuda" and (found.index or 0) >= count:
        raise ValueError(f"{function}: device must be one of this machine's {count} GPUs or cpu, got {device}")
    return found


def weight_digest(network: torch.nn.Module) -> str:
    """Of the first numbers of every weight; sorted, so that neither names nor their order matter."""
    parts = (weight.detach().flatten()[:64].cpu().contiguous().view(torch.uint8) for weight in network.parameters())
    return hashlib.sha256(b"".join(sorted(part.numpy().tobytes() for part in parts))).hexdigest()
