"""Selection: exact budgets, tiles that cover the image once, and the kernels against the reference."""

from functools import partial

import pytest
import torch

from tests.conftest import captured, poison, worst
from texturevlm.cuda.struct import definitions
from texturevlm_lab.allocators import select as selection
from texturevlm_lab.allocators.cascade import PLAN_FAMILIES, plans_for
from texturevlm_lab.allocators.select import Plan, Stage, pack_plans, select

# size of the image, its cells, budget, patch, stages, maps
CASES = [
    ((1024, 1024), (256, 256), 273, 32, 3, 1),
    ((300, 170), (150, 85), 50, 8, 5, 1),
    ((700, 900), (87, 112), 96, 32, "continuous", 2),
    ((1, 1), (1, 1), 5, 32, 3, 1),
    ((40, 3000), (3, 187), 40, 32, 3, 2),
    ((64, 64), (32, 32), 1, 32, 3, 1),
    ((64, 64), (64, 64), 300, 2, 3, 1),
    ((2200, 1700), (275, 212), 1024, 32, 3, 1),
]
SMALLER = [((512, 512), (128, 128), 110, 16, 3, 1), *CASES[1:-1], ((1100, 850), (69, 53), 400, 32, 3, 1)]


def maps_of(batch, maps, grid, device="cpu"):
    """Masses in blobs, content of mixed fineness, and a part that is blank."""
    blobs = torch.nn.functional.interpolate(torch.rand(batch, maps, 7, 7) ** 4, grid, mode="bilinear")
    mass = blobs * torch.rand(batch, maps, *grid) + 1e-6
    fineness = torch.nn.functional.interpolate(torch.rand(batch, 1, 5, 5) * 4, grid, mode="bilinear")[:, 0]
    ink = torch.nn.functional.interpolate(torch.rand(batch, 1, 9, 9), grid)[:, 0] > 0.3
    return [part.to(device) for part in (mass / mass.sum((2, 3), keepdim=True), torch.exp2(fineness), ink)]


def plans_of(size, budget, patch, stages, maps):
    return plans_for(size, budget=budget, patch=patch, stages=stages, last_map=maps - 1)


def boxes_of(tokens, patch):
    side = torch.stack([tokens.ddx[..., 0], tokens.ddy[..., 1]], -1) * patch
    return torch.cat([tokens.centre - side / 2, tokens.centre + side / 2], -1)


@pytest.mark.parametrize("size, grid, budget, patch, stages, maps", CASES)
def test_tiles_cover_the_image_within_the_budget(size, grid, budget, patch, stages, maps):
    tokens = select(
        *maps_of(2, maps, grid), plans_of(size, budget, patch, stages, maps), size=size, budget=budget, patch=patch
    )
    for boxes, valid in zip(boxes_of(tokens, patch), tokens.valid):
        assert 1 <= valid.sum() <= budget and valid[: valid.sum()].all()
        covered = torch.zeros(size, dtype=torch.int32)
        for x0, y0, x1, y1 in boxes[valid].double().round(decimals=3).tolist():
            rows, columns = (slice(*(-int(-(edge - 0.5) // 1) for edge in pair)) for pair in ((y0, y1), (x0, x1)))
            covered[rows, columns] += 1
        assert covered.min() == 1
        if (boxes[valid][:, 2:] - boxes[valid][:, :2]).min() > patch:  # else tokens are widened and overlap
            assert covered.max() == 1


def test_the_whole_budget_is_used_where_there_is_anything_to_see():
    mass, half, ink = maps_of(2, 1, (128, 128))
    for budget in (1, 2, 7, 30, 95, 96, 97, 200):
        plans = plans_of((2048, 2048), budget, 32, 3, 1)
        assert select(mass, half, ink, plans, size=(2048, 2048), budget=budget, patch=32).valid.all()


def test_blank_tiles_are_never_cut():
    mass, half, ink = maps_of(1, 1, (128, 128))
    ink[:] = False
    ink[:, 64:, 64:] = True
    plans = [Plan(4, 4, (Stage(2, 2, 4), Stage(2, 2, 40)))]
    tokens = select(mass, half, ink, plans, size=(2048, 2048), budget=60, patch=32)
    boxes = boxes_of(tokens, 32)[0][tokens.valid[0]]
    blank = (boxes[:, 2] <= 1024) | (boxes[:, 3] <= 1024)
    assert blank.sum() == 12 and tokens.valid.all()  # the overview's own tiles: three quarters of 16
    nothing = select(mass, half, ink & False, plans, size=(2048, 2048), budget=60, patch=32)
    assert nothing.valid.sum() == 16


def test_what_gains_most_is_cut_and_the_best_plan_kept():
    mass, half, ink = torch.full((1, 1, 64, 64), 1e-6), torch.full((1, 64, 64), 4.0), torch.ones(1, 64, 64).bool()
    mass[..., 40:44, 20:24] = 1.0
    mass /= mass.sum()
    useless, useful = Plan(2, 2, ()), Plan(2, 2, (Stage(4, 4, 1), Stage(2, 2, 9)))
    tokens = select(mass, half, ink, [useless, useful], size=(1024, 1024), budget=40, patch=32)
    boxes, scales = boxes_of(tokens, 32)[0], tokens.ddx[0, :, 0]
    x, y = 22 * 16, 42 * 16
    here = (boxes[:, 0] < x) & (x < boxes[:, 2]) & (boxes[:, 1] < y) & (y < boxes[:, 3])
    assert scales[here].min() == scales.min() < 2.01 and tokens.score[0][here].max() > 0.9


def test_stages_go_by_their_own_map():
    first, second = torch.full((64, 64), 1e-7), torch.full((64, 64), 1e-7)
    first[:32] = 1.0  # the scan points up, the last stage right
    second[:, 32:] = 1.0
    maps = torch.stack([first / first.sum(), second / second.sum()])[None]
    half, ink = torch.full((1, 64, 64), 4.0), torch.ones(1, 64, 64).bool()
    plan = Plan(4, 4, (Stage(2, 2, 8, 0), Stage(2, 2, 8, 1)))
    tokens = select(maps, half, ink, [plan], size=(1024, 1024), budget=16 + 24 + 24, patch=32)
    boxes, side = boxes_of(tokens, 32)[0], tokens.ddx[0, :, 0] * 32
    finest = boxes[side < 70]
    assert len(finest) == 32 and (finest[:, 0] >= 512).all() and (finest[:, 3] <= 512).all()


def test_images_of_a_batch_do_not_touch_one_another():
    parts = maps_of(3, 1, (64, 80))
    plans = plans_of((512, 640), 60, 16, 3, 1)
    together = select(*parts, plans, size=(512, 640), budget=60, patch=16)
    for index in range(3):
        alone = select(*(part[index : index + 1] for part in parts), plans, size=(512, 640), budget=60, patch=16)
        for mine, theirs in zip(alone, together):
            assert torch.equal(mine[0], theirs[index])


def test_bad_input_is_named():
    parts = maps_of(1, 1, (8, 8))
    options = {"size": (64, 64), "budget": 4, "patch": 8}
    with pytest.raises(ValueError, match=r"select: plans must not be empty"):
        select(*parts, [], **options)
    with pytest.raises(ValueError, match=r"select: a plan must begin with 1 to 4 tiles, got 3 × 2"):
        select(*parts, [Plan(3, 2, ())], **options)
    with pytest.raises(ValueError, match=r"select: a stage must cut into two or more and use one of 1 maps"):
        select(*parts, [Plan(1, 1, (Stage(2, 2, 1, 1),))], **options)
    with pytest.raises(ValueError, match=r"select: backend 'cuda' cannot run here: the tensor is on cpu"):
        select(*parts, [Plan(1, 1, ())], **options, backend="cuda")


def agree(parts, plans, **options):
    """The kernel takes the reference's tiles; a tie within a rounding may fall the other way, but hardly ever does."""
    got, wanted = (select(*parts, plans, **options, backend=name) for name in ("cuda", "reference"))
    assert torch.equal(got.valid, wanted.valid)
    same = (got.centre == wanted.centre).all(-1) & (got.ddx == wanted.ddx).all(-1) & (got.ddy == wanted.ddy).all(-1)
    assert same.float().mean() > 0.98
    assert worst(got.score[same], wanted.score[same]) < 1e-6


@pytest.mark.parametrize("size, grid, budget, patch, stages, maps", SMALLER)
def test_the_kernels_give_the_references_tiles(emulated, size, grid, budget, patch, stages, maps):
    plans = plans_of(size, budget, patch, stages, maps)
    agree(maps_of(2 if maps == 2 else 1, maps, grid), plans, size=size, budget=budget, patch=patch)


def test_equal_gains_are_cut_in_order(emulated):
    mass, half, ink = torch.full((1, 1, 32, 32), 1 / 1024), torch.full((1, 32, 32), 3.0), torch.ones(1, 32, 32).bool()
    plans = [Plan(4, 4, (Stage(2, 2, 5), Stage(2, 2, 3))), Plan(4, 4, (Stage(2, 2, 5), Stage(2, 2, 3)))]
    got, wanted = (
        select(mass, half, ink, plans, size=(512, 512), budget=45, patch=32, backend=name)
        for name in ("cuda", "reference")
    )
    for mine, truth in zip(got, wanted):
        assert torch.equal(mine, truth)


def test_what_is_too_large_for_the_kernel_goes_by_the_reference(emulated):
    parts = maps_of(1, 1, (64, 64))
    plans = plans_of((4096, 4096), 1100, 32, 3, 1)
    options = {"size": (4096, 4096), "budget": 1100, "patch": 32}
    assert select(*parts, plans, **options).valid.sum() > 1024
    with pytest.raises(ValueError, match=r"'cuda' cannot run here: the kernel takes up to 1024 tokens, not 1100"):
        select(*parts, plans, **options, backend="cuda")


@pytest.mark.parametrize("stages", PLAN_FAMILIES)
def test_every_cascade_fits_the_kernel(stages):
    for size in ((1024, 1024), (2200, 1700), (5000, 300)):
        for budget in (32, 273, 1024):
            todo = pack_plans(plans_of(size, budget, 32, stages, 2), 2, size, 32)
            assert selection._kernel_limit(todo, 2, budget) is None


def test_the_kernels_constants_are_the_references():
    known = definitions("select.cu").constants
    assert known["CUTS"] == selection.CUTS and known["UNIT"] == selection.UNIT


@pytest.mark.gpu
@pytest.mark.parametrize("size, grid, budget, patch, stages, maps", CASES)
@pytest.mark.parametrize("batch", [1, 5])
def test_on_the_gpu(size, grid, budget, patch, stages, maps, batch):
    plans = plans_of(size, budget, patch, stages, maps)
    poison()
    agree(maps_of(batch, maps, grid, "cuda"), plans, size=size, budget=budget, patch=patch)


@pytest.mark.gpu
def test_it_is_captured_and_replayed_on_the_gpu():
    parts = maps_of(2, 1, (128, 128), "cuda")
    plans, options = plans_of((1024, 1024), 273, 32, 3, 1), {"size": (1024, 1024), "budget": 273, "patch": 32}
    graph, replayed = captured(partial(select, *parts, plans, **options))
    for _ in range(3):
        for mine, fresh in zip(parts, maps_of(2, 1, (128, 128), "cuda")):
            mine.copy_(fresh)
        graph.replay()
        for mine, again in zip(replayed, select(*parts, plans, **options)):
            assert torch.equal(mine, again)
