"""What a map finds of a place, and what tokens that are chosen by it deliver."""

import pytest
import torch

from texturevlm.relevance.prepared import image_maps
from texturevlm.types import Texture
from texturevlm_lab.studies import place_measures


def test_the_share_in_the_top_tenth():
    values, where = torch.arange(100.0).view(10, 10), torch.zeros(10, 10)
    where[9, 5:] = 1
    where[0, :5] = 1
    assert place_measures.top_share(values, where) == 0.5


def test_a_map_of_the_place_is_better_than_a_map_of_the_rest():
    torch.manual_seed(0)
    texture = Texture(torch.rand(1, 3, 512, 512)).mipmapped()
    maps = image_maps(texture)
    rows, columns = maps.grid
    there = torch.zeros(rows, columns)
    there[: rows // 4, : columns // 4] = 12.0
    boxes = [(0.0, 0.0, 128.0, 128.0)]
    right, wrong = (
        place_measures.measured(one, place_measures.tokens_by(one, texture, maps), maps, boxes)
        for one in (there, there.flip(0, 1))
    )
    assert set(right) == set(place_measures.MEASURES)
    assert right[place_measures.TENTH] > 0.9 and wrong[place_measures.TENTH] == 0
    assert right[place_measures.FINE] > wrong[place_measures.FINE] + 0.3
    assert right[place_measures.LEGIBLE] > wrong[place_measures.LEGIBLE]


def test_cells_of_a_table():
    assert place_measures.compared_cell([0.25, 0.75], None, ["a", "b"]) == "0.500"
    assert place_measures.compared_cell([0.5, 1.0], [0.25, 0.75], ["a", "b"]) == "0.750 [+0.250 (+0.250 to +0.250)]"
    found = place_measures.mean_of([{"a": 0.0}, {"a": 1.0}])
    assert found == {"a": pytest.approx(0.5)}
