"""Which implementation runs an operation, and why not a faster one.

Three backends: `reference` (plain PyTorch, any device, the specification), `cuda` (our kernels, compiled by NVRTC
at first use) and `texture` (the GPU's texture units). Automatic choice takes the fastest that can run here; one
asked for by name that cannot run raises with the reason.
"""

from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.check import check_choice
from texturevlm.cuda import LOWEST, nvrtc_version

_KERNEL_OR_REFERENCE = ("cuda", "reference")
# The operations that `texturevlm doctor` lists, with their backends. Others have a kernel and a reference.
# `texture` is the first choice only for levels that are in a hardware texture already, or where `texture_pays`.
_OPERATIONS = ("mipmap", "update_region", "lookup", "lookup_grad", "sample_patches", "distance_field", "superpixels",
               "region_statistics", "boundaries", "build", "select", "cell_maps", "layers", "density")  # fmt: skip
_BY_TEXTURE = ("lookup", "lookup_grad", "sample_patches")
BACKENDS: dict[str, tuple[str, ...]] = {
    name: ("cuda", "texture", "reference") if name in _BY_TEXTURE else _KERNEL_OR_REFERENCE for name in _OPERATIONS
}
MAX_TEXTURE_EXTENT, MAX_LAYERS = 32768, 2048  # of a hardware texture
MAX_EXTENT = 1 << 20  # the kernels' tables hold 20 levels
# Measured on an H200, float32: `texturevlm bench engine`, results/engine-h200.md.
MICROSECONDS = {
    "kernel, a million values": 9.3,
    "texture units, a million values": 3.8,
    "making, filling and dropping a texture": 202.0,
    "the same, a million texels more": 7.5,
}
KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@lru_cache(maxsize=None)
def no_cuda_because() -> str | None:
    """Why our kernels cannot run on this machine; None if they can."""
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA GPU"
    try:
        from cuda.bindings import driver
    except ImportError as error:
        return f"cuda-bindings is not installed ({error}): pip install 'texturevlm[cuda]'"
    try:
        nvrtc_version()
    except RuntimeError as error:
        return str(error)
    status, version = driver.cuDriverGetVersion()
    if int(status) != 0 or version < 13000:
        return f"the GPU driver is for CUDA {version // 1000}, and the kernels need one for CUDA 13"
    return None


@lru_cache(maxsize=None)
def _too_old(device: torch.device, dtype: torch.dtype) -> str | None:
    wanted = LOWEST[str(dtype).removeprefix("torch.")]
    found = torch.cuda.get_device_capability(device)
    if found >= wanted:
        return None
    return f"the kernels need compute capability {wanted[0]}.{wanted[1]} for {dtype}, not {found[0]}.{found[1]}"


def no_kernel_because(tensor: Tensor) -> str | None:
    """Why the kernels cannot take this tensor; None if they can."""
    if tensor.device.type != "cuda":
        return f"the tensor is on {tensor.device}, not on a CUDA GPU"
    if tensor.dtype not in KERNEL_DTYPES:
        return f"the kernels take float32, float16 and bfloat16, not {str(tensor.dtype).removeprefix('torch.')}"
    if max(tensor.shape[-2:]) >= MAX_EXTENT:
        return f"the kernels take extents below {MAX_EXTENT}, not {max(tensor.shape[-2:])}"
    return no_cuda_because() or _too_old(tensor.device, tensor.dtype)


def choose(operation: str, tensor: Tensor, asked: str = "auto", limit: str | None = None) -> str:
    """The backend that runs `operation` on data like `tensor`; limit: another reason why its kernel cannot."""
    if asked == "auto":
        return "reference" if limit or no_kernel_because(tensor) else "cuda"
    check_choice(operation, "backend", asked, ("auto", *BACKENDS.get(operation, _KERNEL_OR_REFERENCE)))
    if asked != "reference":
        require_kernels(operation, tensor, asked, limit)
    return asked


def require_kernels(function: str, tensor: Tensor, asked: str = "texture", limit: str | None = None) -> None:
    """Raise with the reason if the kernels cannot take this tensor."""
    if reason := no_kernel_because(tensor) or limit:
        raise ValueError(f"{function}: backend {asked!r} cannot run here: {reason}")


def texture_pays(finest: Tensor, samples: int) -> bool:
    """Whether to make a hardware texture, sample it once and drop it, rather than sample the levels where they are.

    finest:  level 0, (B, C, H, W)
    samples: per image
    The texture units' filter weights have 8 fractional bits, so values then differ by up to 0.007 on white noise; ask
    for backend="cuda" to rule that out. The times are those of results/engine-h200.md: making a texture costs so much
    that it rarely pays for one call. Make one that is sampled again beforehand (Texture.on_device).
    """
    batch, channels, height, width = finest.shape
    if samples < height * width:  # it never pays so early, and this is the hot path
        return False
    if max(height, width) > MAX_TEXTURE_EXTENT or batch * -(-channels // 4) > MAX_LAYERS // 2:
        return False
    if torch.cuda.is_current_stream_capturing():  # no texture can be made then
        return False
    values = batch * channels / 1e6
    in_place = values * samples * MICROSECONDS["kernel, a million values"]
    making = MICROSECONDS["making, filling and dropping a texture"]
    making += values * height * width * MICROSECONDS["the same, a million texels more"]
    return in_place > making + values * samples * MICROSECONDS["texture units, a million values"]
