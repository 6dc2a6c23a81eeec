"""A report on what runs on this machine, and why not something faster; useful in bug reports."""

import importlib.metadata
import platform

import torch

import texturevlm
from texturevlm.ops import backend, mipmap

PACKAGES = ("torch", "numpy", "pillow", "cuda-bindings", "nvidia-cuda-nvrtc", "triton")


def report() -> str:
    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    lines = [f"texturevlm {texturevlm.__version__}, {system}"]
    lines += [f"  {package:18} {_version(package)}" for package in PACKAGES]
    lines += ["", "GPU", *_gpus(), "", "operation           backend by default on this machine"]
    reason = backend.no_cuda_because()
    for operation, known in backend.BACKENDS.items():
        lines.append(f"  {operation:18}{'reference' if reason else 'cuda':10} (known: {', '.join(known)})")
    if reason:
        return "\n".join([*lines, "", f"why not cuda: {reason}"])
    lines += [
        "",
        "float32, float16 and bfloat16 tensors on the GPU run our kernels; anything else runs the reference.",
        "A texture made resident by Texture.on_device() is sampled by the texture units.",
        _kernel_check(),
    ]
    return "\n".join(lines)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gpus() -> list[str]:
    if not torch.cuda.is_available():
        return ["  none that PyTorch can use"]
    rows = []
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        rows.append(f"  {index}: {found.name}, {found.total_memory / 2**30:.0f} GiB, sm_{found.major}{found.minor}")
    return rows


def _kernel_check() -> str:
    """Run one kernel, to find installations that are complete but broken."""
    try:
        ones = mipmap(torch.ones(1, 1, 64, 64, device="cuda"), backend="cuda")[-1].item()
    except RuntimeError as error:
        return f"kernel check: FAILED: {error}"
    return f"kernel check: {'passed' if ones == 1.0 else 'FAILED: wrong result'}"
