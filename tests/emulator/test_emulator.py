"""The emulator finds the errors that it is for: kernels of ours with one mistake each must fail."""

import pytest
import torch

from tests.emulator import Emulator, replace_launch
from tests.ops.test_cover import maps_of
from texturevlm.allocate.density import density
from texturevlm.ops import mipmap
from texturevlm.ops.distance import distance_field
from texturevlm.types import Texture
from texturevlm_lab.allocators.select import Plan, Stage, select


def tile():
    relevance = maps_of(2, (24, 33), (200, 264), 0.5)
    density(Texture((torch.zeros(2, 3, 200, 264),)), relevance, budget=20, patch=16, backend="cuda")


def choose():
    parts = torch.rand(1, 1, 20, 30), torch.full((1, 20, 30), 4.0), torch.ones(1, 20, 30, dtype=torch.bool)
    plans = [Plan(2, 2, (Stage(2, 2, 4),))]
    select(*parts, plans, size=(160, 240), budget=20, patch=8, backend="cuda")


def shrink():
    mipmap(torch.rand(1, 2, 65, 129), backend="cuda")


def measure():
    distance_field(torch.rand(2, 40, 64) > 0.9, backend="cuda")


@pytest.fixture
def mutated(emulated, emulator_folder, monkeypatch):
    """Replaces text of a source or header from here on."""

    def mutate(*mutation):
        broken = Emulator(emulator_folder, mutation)
        monkeypatch.undo()
        replace_launch(monkeypatch, broken.launch)
        monkeypatch.setattr("texturevlm.ops.backend.no_kernel_because", lambda tensor: None)

    return mutate


WAIT = "    wait_for_previous();\n"
NEVER = "launched early, but no thread calls wait_for_previous"


@pytest.mark.parametrize(
    ("work", "source", "text", "replacement", "kernel"),
    [
        (tile, "density.cu", WAIT, "", "density_rows"),
        (choose, "select.cu", WAIT, "", "select_tokens"),
        (shrink, "mip.cuh", "        wait_for_previous();\n", "", "mip_even"),
    ],
)
def test_a_kernel_that_does_not_wait_is_found(mutated, work, source, text, replacement, kernel):
    work()
    mutated(source, text, replacement)
    with pytest.raises(RuntimeError, match=f"emulated kernel {kernel}: {NEVER}"):
        work()


@pytest.mark.parametrize(
    ("work", "source", "text", "replacement", "kernel"),
    [
        (tile, "density.cu", "cell < cells; cell += 256", "cell < cells + 1024; cell += 256", "density_scale"),
        (measure, "distance.cu", "x < width && __ldg(line + x)", "__ldg(line + x)", "distance_rows"),
        (choose, "select.cu", "x < columns && __ldg(ink + x)", "__ldg(ink + 2000 + x)", "select_sums"),
    ],
)
def test_a_read_beyond_the_end_is_found(mutated, work, source, text, replacement, kernel):
    work()
    mutated(source, text, replacement)
    with pytest.raises(RuntimeError, match=f"emulated kernel {kernel}: an access outside of all tensors"):
        work()


def test_shared_memory_that_is_not_initialised_is_found(mutated):
    image = torch.rand(1, 1, 20, 30), torch.full((1, 20, 30), 4.0), torch.ones(1, 20, 30, dtype=torch.bool)
    options = {"size": (160, 240), "budget": 20, "patch": 8}
    plans = [Plan(2, 2, (Stage(2, 2, 4),)), Plan(1, 1, (Stage(2, 2, 4),))]
    wanted = select(*image, plans, **options, backend="cuda")
    mutated("select.cu", "    if (threadIdx.x == 0) tiles.candidates = 0;\n", "")
    got = select(*image, plans, **options, backend="cuda")
    assert not torch.equal(got.valid, wanted.valid)


def test_a_write_around_a_tensor_is_found(mutated, guard):
    guard.check()
    mutated(
        "density.cu", "if (lane == 0) sums[0] = 0;", "if (lane == 0) sums[0] = 0, job.table[-3] = 0, job.scale[-1] = 0;"
    )
    tile()
    with pytest.raises(AssertionError, match="a kernel wrote outside of a tensor"):
        guard.check()


def test_new_memory_is_nan_and_a_broken_kernel_leaves_the_process_alive(emulated):
    assert torch.empty(5).isnan().all() and torch.rand(2).new_empty(7).isnan().all()
    mipmap(torch.rand(1, 1, 8, 8), backend="cuda")
