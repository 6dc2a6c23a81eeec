"""Which implementation runs an operation, and why not a faster one.

Three backends: `reference` (plain PyTorch, any device, the specification), `cuda` (our kernels, compiled by NVRTC
at first use) and `texture` (the GPU's texture units). Automatic choice takes the fastest that can run here; one
asked for by name that cannot run raises with the reason.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.check import check_choice

# What exists for each operation, fastest first where it can run. `texture` is never the first choice for levels in
# plain memory: see `texture_pays` for when filling a hardware texture is worth it.
BACKENDS: dict[str, tuple[str, ...]] = {
    "mipmap": ("cuda", "reference"),
    "update_region": ("cuda", "reference"),
    "lookup": ("cuda", "texture", "reference"),
    "lookup_grad": ("cuda", "texture", "reference"),
    "sample_patches": ("cuda", "texture", "reference"),
}
MAX_EXTENT = 1 << 20  # the kernels' tables hold 20 levels
SAMPLES_A_TEXEL = 1.0  # the measured crossover, see results/
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
        return "reference" if no_kernel_because(tensor) else "cuda"
    check_choice(operation, "backend", asked, ("auto", *BACKENDS[operation]))
    if asked != "reference":
        require_kernels(operation, tensor, asked)
    return asked


def require_kernels(function: str, tensor: Tensor, asked: str = "texture") -> None:
    """Raise with the reason if the kernels cannot take this tensor."""
    if reason := no_kernel_because(tensor):
        raise ValueError(f"{function}: backend {asked!r} cannot run here: {reason}")


def texture_pays(levels: Sequence[Tensor], samples: int) -> bool:
    """Whether filling a hardware texture, to sample it once, beats sampling the levels where they are."""
    return samples > SAMPLES_A_TEXEL * levels[0].shape[-2] * levels[0].shape[-1]
