"""Which implementation runs an operation, and why not a faster one.

Three backends: `reference` (plain PyTorch, any device, the specification), `cuda` (our kernels, compiled by NVRTC
at first use) and `texture` (the GPU's texture units). Automatic choice takes the fastest that can run here; one
asked for by name that cannot run raises with the reason.
"""

from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.check import check_choice

# What exists for each operation. `texture` is the first choice only for levels that are in a hardware texture already,
# or where `texture_pays`.
BACKENDS: dict[str, tuple[str, ...]] = {
    "mipmap": ("cuda", "reference"),
    "update_region": ("cuda", "reference"),
    "lookup": ("cuda", "texture", "reference"),
    "lookup_grad": ("cuda", "texture", "reference"),
    "sample_patches": ("cuda", "texture", "reference"),
    "distance_field": ("cuda", "reference"),
    "superpixels": ("cuda", "reference"),
    "region_statistics": ("cuda", "reference"),
    "boundaries": ("cuda", "reference"),
}
# Kernels that compile and agree with the reference in an emulator, but have not run on a GPU yet: only by name.
UNPROVEN = {"distance_field", "superpixels", "region_statistics", "boundaries"}
MAX_EXTENT = 1 << 20  # the kernels' tables hold 20 levels
# Measured on an H200, float32: `texturevlm bench engine`, results/engine-h200.md.
MICROSECONDS = {
    "kernel, a million values": 9.4,
    "texture units, a million values": 3.8,
    "making, filling and dropping a texture": 177.0,
    "the same, a million texels more": 6.6,
}
KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@lru_cache(maxsize=None)
def no_cuda_because() -> str | None:
    """Why our kernels cannot run on this machine; None if they can."""
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA GPU"
    try:
        from cuda.bindings import driver, nvrtc  # noqa: F401
    except ImportError as error:
        return f"cuda-bindings is not installed ({error}): pip install 'texturevlm[cuda]'"
    try:
        from texturevlm.ops.cuda.compiler import nvrtc_version

        nvrtc_version()
    except RuntimeError as error:
        return str(error)
    return None


def no_kernel_because(tensor: Tensor) -> str | None:
    """Why the kernels cannot take this tensor; None if they can."""
    if tensor.device.type != "cuda":
        return f"the tensor is on {tensor.device}, not on a CUDA GPU"
    if tensor.dtype not in KERNEL_DTYPES:
        return f"the kernels take float32, float16 and bfloat16, not {str(tensor.dtype).removeprefix('torch.')}"
    if max(tensor.shape[-2:]) >= MAX_EXTENT:
        return f"the kernels take extents below {MAX_EXTENT}, not {max(tensor.shape[-2:])}"
    return no_cuda_because()


def choose(operation: str, tensor: Tensor, asked: str = "auto") -> str:
    """The backend that runs `operation` on data like `tensor`."""
    if asked == "auto":
        return "reference" if operation in UNPROVEN or no_kernel_because(tensor) else "cuda"
    check_choice(operation, "backend", asked, ("auto", *BACKENDS[operation]))
    if asked != "reference":
        require_kernels(operation, tensor, asked)
    return asked


def require_kernels(function: str, tensor: Tensor, asked: str = "texture") -> None:
    """Raise with the reason if the kernels cannot take this tensor."""
    if reason := no_kernel_because(tensor):
        raise ValueError(f"{function}: backend {asked!r} cannot run here: {reason}")


def texture_pays(finest: Tensor, samples: int) -> bool:
    """Whether to make a hardware texture, sample it once and drop it, rather than sample the levels where they are.

    finest:  level 0, (B, C, H, W)
    samples: an image
    The times are those of results/engine-h200.md. Making a texture costs so much that it seldom pays for one call; a
    texture that is sampled again is worth making at once (Texture.on_device).
    """
    batch, channels, height, width = finest.shape
    if samples < height * width:  # it never pays so early, and this is the hot path
        return False
    values = batch * channels / 1e6
    in_place = values * samples * MICROSECONDS["kernel, a million values"]
    making = MICROSECONDS["making, filling and dropping a texture"]
    making += values * height * width * MICROSECONDS["the same, a million texels more"]
    return in_place > making + values * samples * MICROSECONDS["texture units, a million values"]
