"""Maps that no training image has: where they point at the place, they lift it."""

import numpy as np
import torch

from studies import channel_maps
from texturevlm.types import Texture


def place(before=None):
    torch.manual_seed(0)
    image = Texture(torch.rand(1, 3, 96, 128) * 0.2 + 0.5).mipmapped()
    return channel_maps.Place(image, [(80.0, 48.0, 112.0, 80.0)], "one", before)


def test_simulated_gaze_and_real_motion_lift_their_place():
    moved = Texture(place().image.levels[0].clone())
    moved.levels[0][..., 48:80, 80:112] -= 0.4  # what the frame before looked like
    found = channel_maps.shares(place(moved.mipmapped()), channel_maps.VIDEO, np.random.default_rng(0))
    groups = list(found)
    assert groups[-4:] == [channel_maps.TEMPORAL, channel_maps.EMBEDDED, channel_maps.LOOKED, channel_maps.MOST]
    assert found[channel_maps.TEMPORAL] > found[groups[-5]] + 0.3
    assert found[channel_maps.MOST] == 1.0  # the place is less than a tenth of the area
    still = channel_maps.shares(place(), "page", np.random.default_rng(0))
    assert channel_maps.TEMPORAL not in still and channel_maps.EMBEDDED not in still
    assert still[channel_maps.LOOKED] > 0.5


def test_the_share_in_the_top_tenth():
    values, where = torch.arange(100.0).view(10, 10), torch.zeros(10, 10)
    where[9, 5:] = 1
    where[0, :5] = 1
    assert channel_maps.top_share(values, where) == 0.5
