"""The relevance pyramid gives the same answer as testing every cell, and says truly how much it read."""

import pytest
import torch

from texturevlm.allocate.prune import above, relevance_pyramid


@pytest.mark.parametrize("size", [(1, 1), (1, 37), (64, 64), (275, 213), (31, 100)])
def test_the_same_answer_as_testing_every_cell(size):
    values = torch.rand(size) ** 4
    pyramid = relevance_pyramid(values)
    for threshold in (-1.0, 0.0, 0.3, 0.99, float(values.max()), float(values.flatten()[0])):
        assert torch.equal(above(pyramid, threshold).cells, (values > threshold).nonzero())


def test_work_is_saved_where_little_is_above_the_threshold():
    values = torch.zeros(256, 256)
    values[100:104, 60:64] = 1.0
    pyramid = relevance_pyramid(values)
    found = above(pyramid, 0.5)
    assert len(found.cells) == 16
    assert found.tested == 1 + 6 * 4 + 4 + 16  # one of four at each level down to a 4×4 block, which is all above
    assert above(pyramid, 1.0).tested == 1
    assert above(pyramid, -1.0).tested == sum(level.numel() for level in pyramid)


def test_bad_maps():
    with pytest.raises(ValueError, match=r"relevance_pyramid: values must be \(h, w\), got \(1, 2, 2\)"):
        relevance_pyramid(torch.rand(1, 2, 2))
    with pytest.raises(TypeError, match="relevance_pyramid: values must be floating point"):
        relevance_pyramid(torch.ones(2, 2, dtype=torch.int64))
