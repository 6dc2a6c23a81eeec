"""What the tests share: seeds, the skipping of GPU tests without a GPU, and how close each backend must come."""

import os
import shutil

import pytest
import torch

from tests.emulator import Emulator

# The largest difference from the float64 reference, relative to the data's range. The texture unit blends with
# 8 fractional bits; half and bfloat16 results are rounded once when stored.
TOLERANCE = {
    ("cuda", torch.float32): 2e-6,
    ("cuda", torch.float16): 1e-3,
    ("cuda", torch.bfloat16): 8e-3,
    ("texture", torch.float32): 1e-2,
    ("texture", torch.float16): 1e-2,
    ("texture", torch.bfloat16): 2e-2,
    ("reference", torch.float32): 1e-6,
    ("reference", torch.float16): 1e-3,
    ("reference", torch.bfloat16): 8e-3,
    ("reference", torch.float64): 1e-14,
}


# Many small operations: threads that wait for one another cost more than they bring, most of all on a busy machine.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    # Fresh input for every run of the GPU tests, the same one for CI, so that CI is reproducible.
    seed = int(os.environ.get("TEXTUREVLM_SEED", "0"))
    torch.manual_seed(seed + sum(map(ord, request.node.name)))


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """Runs kernels on the CPU; each source is compiled once for all tests."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    return Emulator(tmp_path_factory.mktemp("emulator"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def worst(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference; infinite where anything was left unwritten (NaN)."""
    difference = (got.detach().double().cpu() - wanted.detach().double().cpu()).abs()
    return float("inf") if torch.isnan(difference).any() else float(difference.max()) if difference.numel() else 0.0


def poison(device: str = "cuda") -> None:
    """Fill the memory that the next allocations will get with NaN, so that an unwritten output shows."""
    blocks = [torch.full((size,), float("nan"), device=device) for size in (1 << 8, 1 << 12, 1 << 16, 1 << 20, 1 << 22)]
    del blocks
