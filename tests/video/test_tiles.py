import numpy as np
import pytest
import torch

from texturevlm.sampling import sample
from texturevlm.types import Allocation, Texture
from texturevlm.video.change import grow_mask, reads_marked, rectangles


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_rectangles_hold_the_marked_tiles_exactly_once(share):
    random = np.random.default_rng(3)
    mask = random.random((7, 11)) < share
    size = (7 * 32 - 5, 11 * 32 - 9)
    painted = np.zeros(size, dtype=int)
    boxes = rectangles(mask, 32, size)
    for left, top, right, bottom in boxes:
        painted[top:bottom, left:right] += 1
    wanted = mask.repeat(32, 0).repeat(32, 1)[: size[0], : size[1]]
    assert np.array_equal(painted, wanted.astype(int))


def test_growing_reaches_every_tile_within_reach():
    mask = np.zeros((6, 6), dtype=bool)
    mask[2, 3] = True
    assert grow_mask(mask, 0, 32).sum() == 1
    assert grow_mask(mask, 1, 32).sum() == 9
    assert grow_mask(mask, 33, 32).sum() == 25
    assert grow_mask(mask, 500, 32).all()


@pytest.mark.parametrize("size", [(128, 192), (97, 131), (33, 257), (255, 127), (160, 160)])
def test_a_footprint_that_is_not_touched_reads_nothing_of_the_change(size):
    random = torch.Generator().manual_seed(sum(size))
    before = torch.rand(1, 3, *size, generator=random)
    rows, columns = -(-size[0] // 32), -(-size[1] // 32)
    mask = torch.rand(rows, columns, generator=random) < 0.15
    wide = mask.repeat_interleave(32, 0)[: size[0]].repeat_interleave(32, 1)[:, : size[1]]
    after = torch.where(wide, 1 - before, before)
    centre = torch.rand(1, 200, 2, generator=random) * torch.tensor([size[1] + 40.0, size[0] + 40.0]) - 20
    step = torch.exp2(torch.rand(1, 200, 2, generator=random) * 3.5 - 1)
    boxes = torch.cat([centre - step * 4, centre + step * 4], -1)
    allocation = Allocation.of_boxes(boxes, size, 8)
    same = ~reads_marked(allocation, mask, 32)
    old, new = (sample(Texture.open(image).mipmapped(), allocation).pixels[0] for image in (before, after))
    assert torch.equal(old[same], new[same])
    assert 10 < int(same.sum()) < 190
