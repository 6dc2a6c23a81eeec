"""Atlas: regions follow colours and are kept whole."""

import pytest
import torch

from tests.allocate.test_hierarchies import photo, relevance_at
from texturevlm import Texture
from texturevlm.allocate.value import delivered_scale
from texturevlm.relevance.maps import Relevance
from texturevlm_lab.allocators.atlas import atlas, colour_regions


def diagonal() -> tuple[Relevance, torch.Tensor]:
    """Two regions that meet in a slanting line; all that matters is in the upper one."""
    relevance = relevance_at()
    y, x = torch.meshgrid(torch.arange(80), torch.arange(60), indexing="ij")
    regions = (3 * y > 4 * x + 60).int()[None]
    mass = (regions == 0) * relevance.ink + 1e-9
    return Relevance(mass / mass.sum(), relevance.legible_scale, relevance.ink, relevance.size), regions


def test_a_region_is_delivered_at_one_scale_and_whole():
    relevance, regions = diagonal()
    found = atlas(photo(), relevance, budget=300, patch=16, regions=regions)
    scale = delivered_scale(found, relevance.grid)
    inside, outside = scale[relevance.ink & (regions == 0)], scale[relevance.ink & (regions == 1)]
    assert inside.max() <= 1.5 * inside.min()  # but for leftover tokens, which are cut in two
    assert inside.max() < 0.5 * outside.median()


def test_regions_follow_colours_on_the_grid_of_the_relevance():
    image = torch.zeros(1, 3, 640, 480)
    image[..., 200:] = 1.0
    regions = colour_regions(Texture.open(image), relevance_at(), count=12)
    assert regions.shape == (1, 80, 60) and len(regions.unique()) <= 16
    assert not set(regions[0, :, :25].unique().tolist()) & set(regions[0, :, 25:].unique().tolist())


def test_bad_regions():
    with pytest.raises(ValueError, match=r"atlas: regions must be \(B, h, w\), got \(1, 3, 3\)"):
        atlas(photo(), relevance_at(), regions=torch.zeros(1, 3, 3, dtype=torch.int32))
