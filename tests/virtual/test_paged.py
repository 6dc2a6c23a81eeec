"""sample_patches through a page table equals sample_patches of whole levels, and reports what was missing."""

import pytest
import torch

from tests.conftest import TOLERANCE, worst
from texturevlm.ops import sample_patches
from texturevlm.ops.mip import level_extents, mipmap
from texturevlm.ops.paged import PagedLevels

SIZE, PAGE, BASE = (301, 410), 32, 3


def pyramid():
    """Levels with texels of whole 255ths, and the same cut into pages."""
    fine = [torch.randint(0, 256, (1, 3, *extent)) / torch.tensor(255.0) for extent in level_extents(*SIZE, BASE)]
    coarse = mipmap(torch.rand(1, 3, *level_extents(*SIZE)[BASE]))
    pages = []
    for level in fine:
        height, width = level.shape[2:]
        padded = torch.nn.functional.pad(level, (0, -width % PAGE, 0, -height % PAGE), mode="replicate")
        cut = padded[0].unfold(1, PAGE, PAGE).unfold(2, PAGE, PAGE)  # (3, rows, columns, PAGE, PAGE)
        pages.append((cut * 255).round().byte().permute(1, 2, 3, 4, 0).flatten(0, 1))
    return [*fine, *coarse], coarse, torch.cat(pages)


def footprints(count=40):
    centre = torch.rand(1, count, 2) * torch.tensor([SIZE[1], SIZE[0]]) * 1.2 - 20
    scale = torch.exp2(torch.rand(1, count) * 6 - 1)
    zero = torch.zeros_like(scale)
    return centre, torch.stack([scale, zero], -1), torch.stack([zero, scale * 1.7], -1)


def test_all_pages_there_equals_the_levels_bit_for_bit():
    levels, coarse, pages = pyramid()
    order = torch.randperm(len(pages))
    pool = torch.empty_like(pages)
    pool[order] = pages
    paged = PagedLevels(SIZE, coarse, pool, order.int())
    where = footprints()
    assert torch.equal(sample_patches(paged, *where, patch=8), sample_patches(levels, *where, patch=8))


def test_a_missing_page_is_reported_and_read_from_the_coarser_level():
    levels, coarse, pages = pyramid()
    table = torch.arange(len(pages), dtype=torch.int32)
    table[0] = -1  # the first page of level 0
    paged = PagedLevels(SIZE, coarse, pages, table)
    axes = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    inside, elsewhere = torch.tensor([[[16.0, 16.0]]]), torch.tensor([[[100.0, 100.0]]])
    paged.watch(torch.ones(1, 1), 8)
    found = sample_patches(paged, inside, *axes, patch=8)
    assert paged.wanted[0] > 0
    # Samples at texel centres of level 0 are whole texels: each is the texel of level 1 above it.
    rows = torch.arange(12, 20) // 2
    assert torch.allclose(found[0, 0], levels[1][0][:, rows[:, None], rows], atol=1e-6)
    paged.wanted.zero_()
    exact = sample_patches(paged, elsewhere, *axes, patch=8)
    assert paged.wanted[0] == 0 and paged.wanted.sum() > 0
    assert torch.equal(exact, sample_patches(levels, elsewhere, *axes, patch=8))


def test_without_any_page_the_coarse_levels_are_read():
    _, coarse, pages = pyramid()
    paged = PagedLevels(SIZE, coarse, pages[:1], torch.full((len(pages),), -1, dtype=torch.int32))
    found = sample_patches(paged, *footprints(), patch=8)
    assert torch.isfinite(found).all() and 0.2 < found.mean() < 0.8


def test_weights_of_zero_want_nothing():
    _, coarse, pages = pyramid()
    paged = PagedLevels(SIZE, coarse, pages, torch.arange(len(pages), dtype=torch.int32))
    paged.watch(torch.zeros(1, 40), 8)
    sample_patches(paged, *footprints(), patch=8)
    assert not paged.wanted.any()


def test_mistakes():
    _, coarse, pages = pyramid()
    table = torch.arange(len(pages), dtype=torch.int32)
    with pytest.raises(ValueError, match="table must have one entry per page"):
        PagedLevels(SIZE, coarse, pages, table[1:])
    with pytest.raises(ValueError, match="coarse must be the last levels"):
        PagedLevels((100, 100), coarse, pages, table)
    paged = PagedLevels(SIZE, coarse, pages, table)
    with pytest.raises(ValueError, match="backend must be one of auto, reference, cuda, got 'texture'"):
        sample_patches(paged, *footprints(), patch=8, backend="texture")
    with pytest.raises(ValueError, match="backend 'cuda' cannot run here: the tensor is on cpu"):
        sample_patches(paged, *footprints(), patch=8, backend="cuda")
    with pytest.raises(ValueError, match=r"points must be \(1, K, 2\)"):
        sample_patches(paged, *(one.expand(2, -1, -1) for one in footprints()), patch=8)


def holes(device="cpu", missing=0.4):
    """A pyramid of which some pages are missing, and shuffled in the pool."""
    _, coarse, pages = pyramid()
    table = torch.randperm(len(pages))
    pool = torch.empty_like(pages)
    pool[table] = pages
    table[torch.rand(len(pages)) < missing] = -1
    return PagedLevels(SIZE, [level.to(device) for level in coarse], pool.to(device), table.int().to(device))


@pytest.mark.parametrize("missing", [0.0, 0.4, 1.0])
def test_the_kernel_reads_what_the_reference_reads(emulated, missing):
    paged, where, weight = holes(missing=missing), footprints(), torch.rand(1, 40)
    paged.watch(weight, 6)
    found = sample_patches(paged, *where, patch=6, backend="cuda")
    asked, kernels = paged.wanted.clone(), emulated.launches["sample_paged"]
    paged.wanted.zero_()
    exact = sample_patches(paged, *where, patch=6, backend="reference")
    assert kernels == 1 and worst(found, exact) < TOLERANCE["cuda", torch.float32]
    assert torch.allclose(asked, paged.wanted, rtol=1e-4) and asked.sum() > 0
    paged.watch(None, 6)
    paged.wanted.zero_()
    sample_patches(paged, *where, patch=6, backend="cuda")
    assert not paged.wanted.any()


def test_the_kernel_without_any_pages_or_footprints(emulated):
    levels = mipmap(torch.rand(1, 3, 20, 30))  # so small that all levels are whole
    paged = PagedLevels((20, 30), levels, torch.empty(1, 32, 32, 3).byte(), torch.empty(0).int())
    where = tuple(one[:, :5] / 12 for one in footprints())
    exact = sample_patches(levels, *where, patch=4, backend="reference")
    assert worst(sample_patches(paged, *where, patch=4, backend="cuda"), exact) < TOLERANCE["cuda", torch.float32]
    assert sample_patches(paged, *(one[:, :0] for one in where), patch=4, backend="cuda").shape == (1, 0, 3, 4, 4)


@pytest.mark.gpu
def test_on_a_gpu_the_same():
    there, where = holes("cuda"), footprints()
    here = PagedLevels(SIZE, [level.cpu() for level in there.coarse], there.pool.cpu(), there.table.cpu())
    for one in (here, there):
        one.watch(torch.ones(1, 40, device=one.table.device), 8)
    found = sample_patches(there, *(one.cuda() for one in where), patch=8, backend="cuda")
    assert worst(found, sample_patches(here, *where, patch=8)) < 1e-5  # positions are rounded differently
    assert torch.allclose(there.wanted.cpu(), here.wanted, rtol=0.01, atol=8)
