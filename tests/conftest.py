"""What the tests share: seeds, the skipping of GPU tests without a GPU, and how close each backend must come."""

import os
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.emulator import Emulator, Guard, replace_launch
from tests.graphs import Captures
from texturevlm.cuda import graph
from texturevlm.cuda.compiler import cache_folder
from texturevlm.ops import backend
from texturevlm.scout.scout import Scout, shipped_parts

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
def emulator_folder(request: pytest.FixtureRequest) -> Path:
    """Where the emulator keeps what it compiled, for all runs, all parallel workers and all checkouts of this user."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    shared = cache_folder()
    folder = Path(request.config.cache.mkdir("emulator")) if shared is None else shared / "emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def guard(emulator_folder: Path) -> Guard:
    """Guard pages around tensors, and NaN in new ones, inside `with guard`."""
    return Guard(emulator_folder)


@pytest.fixture(scope="session")
def emulator(emulator_folder: Path) -> Emulator:
    """Runs kernels on the CPU."""
    return Emulator(emulator_folder)


@lru_cache
def scout_in_float32(path: str, device: torch.device) -> Scout:
    return Scout(*shipped_parts(path)).to(device)


@pytest.fixture
def emulated(emulator: Emulator, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """Tensors on the CPU pass for tensors on a GPU, launches are emulated, and wrong accesses to memory are found."""
    replace_launch(monkeypatch, emulator.launch)
    refused = {torch.float64: "float64 is for the reference"}
    monkeypatch.setattr(backend, "no_kernel_because", lambda tensor: refused.get(tensor.dtype))
    monkeypatch.setattr(backend, "texture_pays", lambda *given: False)  # textures are not emulated, nor is bfloat16
    monkeypatch.setattr("texturevlm.scout.scout._loaded", scout_in_float32)
    emulator.launches.clear()
    with guard:
        yield emulator
    guard.check()


@pytest.fixture
def captured_on_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Captures:
    """What is captured on a GPU is captured on a CPU, by a double that finds what would go wrong there."""
    captures = Captures()
    monkeypatch.setitem(graph.GRAPHS, "cpu", captures)
    if "emulated" in request.fixturenames:
        watchers = request.getfixturevalue("emulated").watchers
        monkeypatch.setattr(request.getfixturevalue("emulated"), "watchers", [*watchers, captures.launched])
    return captures


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


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of one step, and what it writes when it is replayed."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        written = step()
    return graph, written
