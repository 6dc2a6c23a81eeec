"""Maps that no training image has: where they point at the place, they lift it."""

import numpy as np
import torch

from texturevlm.types import Texture
from texturevlm_lab.studies import channel_maps
from texturevlm_lab.studies.place_measures import TENTH


def place(before=None):
    torch.manual_seed(0)
    image = Texture(torch.rand(1, 3, 96, 128) * 0.2 + 0.5).mipmapped()
    return channel_maps.Place(image, [(80.0, 48.0, 112.0, 80.0)], "one", before)


def test_simulated_gaze_and_real_motion_lift_their_place():
    moved = Texture(place().image.levels[0].clone())
    moved.levels[0][..., 48:80, 80:112] -= 0.4  # what the frame before looked like
    found = channel_maps.found_by(place(moved.mipmapped()), channel_maps.VIDEO, np.random.default_rng(0))
    groups = list(found)
    assert groups[-4:] == [channel_maps.TEMPORAL, channel_maps.EMBEDDED, channel_maps.LOOKED, channel_maps.MOST]
    tops = {group: row[TENTH] for group, row in found.items()}
    assert tops[channel_maps.TEMPORAL] > tops[groups[-5]] + 0.3
    assert tops[channel_maps.MOST] == 1.0  # the place is less than a tenth of the area
    still = channel_maps.found_by(place(), "page", np.random.default_rng(0))
    assert channel_maps.TEMPORAL not in still and channel_maps.EMBEDDED not in still
    assert still[channel_maps.LOOKED][TENTH] > 0.5


def test_motion_counts_where_little_moves():
    image = place().image
    little = image.levels[0].clone()
    little[..., 48:64, 80:96] -= 0.4
    moved = Texture((little,)).mipmapped()
    found = channel_maps.motion_in(moved, image)
    assert 0 < found["moves"] < 0.1 and found["counts"] == 1 and found["left"] < 1
    shaken = channel_maps.motion_in(Texture((image.levels[0].roll(5, 3) * 0.5,)).mipmapped(), image)
    assert shaken["moves"] > 0.9 and shaken["counts"] == 0 and shaken["left"] == 1
