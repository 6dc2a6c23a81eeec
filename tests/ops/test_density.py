"""The kernels of `density`: the same tiling as PyTorch's."""

import pytest
import torch

from tests.conftest import poison, worst
from tests.ops.test_cover import maps_of
from texturevlm.allocate.density import MOST_TOKENS, cutting_rounds, density
from texturevlm.cuda.struct import constants
from texturevlm.types import Texture

# grid of cells, image size, budget, patch
CASES = [
    ((1, 1), (50, 50), 1, 32),
    ((24, 33), (200, 264), 7, 16),
    ((96, 128), (384, 512), 100, 16),
    ((1, 60), (8, 480), 9, 4),
    ((60, 1), (480, 8), 9, 4),
    ((53, 90), (427, 720), 200, 16),
    ((53, 90), (427, 720), 75, 60),
]
LARGE = [((256, 256), (1024, 1024), 273, 32), ((212, 275), (1700, 2200), 1024, 32), ((60, 80), (480, 640), 299, 32)]


def agree(relevance, *, budget, patch):
    texture = Texture((torch.zeros(len(relevance.mass), 3, *relevance.size, device=relevance.mass.device),))
    got, wanted = (
        density(texture, relevance, budget=budget, patch=patch, backend=way) for way in ("cuda", "reference")
    )
    assert got.valid.all() and wanted.valid.all()
    for column in ("centre", "ddx", "ddy"):
        assert worst(getattr(got, column), getattr(wanted, column)) < 1e-3, column
    same = got.score == wanted.score  # a centre on the edge of two cells may fall into either
    assert same.float().mean() > 0.98


@pytest.mark.parametrize("grid, size, budget, patch", CASES)
def test_the_kernels_tile_the_same(emulated, grid, size, budget, patch):
    agree(maps_of(2, grid, size, 0.5), budget=budget, patch=patch)


def test_a_spot_that_is_all_that_matters_is_capped(emulated):
    relevance = maps_of(1, (48, 64), (384, 512), 0.5)
    relevance.mass[:] = 1e-9
    relevance.mass[:, 20:24, 30:34] = 1 / 16
    agree(relevance, budget=100, patch=16)


def test_images_that_are_not_wanted_get_no_tokens(emulated):
    relevance = maps_of(3, (24, 33), (200, 264), 0.5)
    texture, wanted = Texture((torch.zeros(3, 3, 200, 264),)), torch.tensor([True, False, True])
    some = density(texture, relevance, budget=20, patch=16, wanted=wanted)
    every = density(texture, relevance, budget=20, patch=16)
    assert some.valid.any(1).tolist() == wanted.tolist() and torch.equal(some.centre[wanted], every.centre[wanted])


def test_wanted_may_be_strided(emulated):
    relevance, texture = maps_of(3, (24, 33), (200, 264), 0.5), Texture((torch.zeros(3, 3, 200, 264),))
    wanted = torch.tensor([True, False, True, False, True, False])[::2]
    assert density(texture, relevance, budget=20, patch=16, wanted=wanted).valid.all()


def test_too_many_tokens_go_by_the_reference(emulated):
    relevance, texture = maps_of(1, (40, 40), (640, 640), 0.5), Texture((torch.zeros(1, 3, 640, 640),))
    assert density(texture, relevance, budget=1100, patch=16).valid.sum() == 1100
    with pytest.raises(
        ValueError, match=r"density: backend 'cuda' cannot run here: the kernels take up to 1024 tokens"
    ):
        density(texture, relevance, budget=1100, patch=16, backend="cuda")


def test_every_plan_has_room():
    (rounds,) = constants("density.cu", "MOST_ROUNDS")
    assert max(len(cutting_rounds(budget)) for budget in range(1, MOST_TOKENS + 1)) <= rounds


@pytest.mark.gpu
@pytest.mark.parametrize("grid, size, budget, patch", [*CASES, *LARGE])
def test_on_the_gpu(grid, size, budget, patch):
    poison()
    agree(maps_of(3, grid, size, 0.5, "cuda"), budget=budget, patch=patch)
