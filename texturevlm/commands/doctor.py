"""texturevlm doctor: say what runs on this machine, and why not something faster; useful in bug reports."""

import argparse
import importlib.metadata
import platform

from texturevlm.commands import arguments

PACKAGES = ("torch", "numpy", "pillow", "cuda-bindings", "nvidia-cuda-nvrtc", "triton")
ON_A_GPU = """
float32, float16 and bfloat16 tensors on the GPU run our kernels; anything else runs the reference.
A texture made resident by Texture.on_device() is sampled by the texture units."""


def add_doctor(commands: arguments.Commands) -> None:
    help = "versions, GPUs, and which backend runs each operation and why"
    arguments.add_command(commands, "doctor", _doctor, help)


def _doctor(options: argparse.Namespace) -> int:
    import texturevlm
    from texturevlm.ops import backend

    system = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    print(f"texturevlm {texturevlm.__version__}, {system}")
    for package in PACKAGES:
        print(f"  {package:18} {_version(package)}")
    print("", "GPU", *_gpus(), "", "operation           backend by default on this machine", sep="\n")
    reason = backend.no_cuda_because()
    for operation, known in backend.BACKENDS.items():
        print(f"  {operation:18}{'reference' if reason else 'cuda':10} (known: {', '.join(known)})")
    print(f"\nwhy not cuda: {reason}" if reason else f"{ON_A_GPU}\n{_kernel_check()}")
    return 0


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _gpus() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return ["  none that PyTorch can use"]
    found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return [f"  {i}: {g.name}, {g.total_memory / 2**30:.0f} GiB, sm_{g.major}{g.minor}" for i, g in enumerate(found)]


def _kernel_check() -> str:
    """Run one kernel, to find installations that are complete but broken."""
    import torch

    from texturevlm.ops import mipmap

    try:
        ones = mipmap(torch.ones(1, 1, 64, 64, device="cuda"), backend="cuda")[-1].item()
    except RuntimeError as error:
        return f"kernel check: FAILED: {error}"
    return f"kernel check: {'passed' if ones == 1.0 else 'FAILED: wrong result'}"
