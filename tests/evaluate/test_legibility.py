"""The score of what was read, and where it is read."""

from pathlib import Path

import numpy as np
import pytest
import torch

from texturevlm.rebuilding import pixel_box
from texturevlm.text.edits import letters_and_digits, similarity
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.legibility import (
    as_bytes,
    crop_boxes,
    legibility_score,
)
from texturevlm_lab.evaluate.metrics import Delivered


@pytest.mark.parametrize(
    ("text", "answer", "wanted"),
    [
        ("Total: $1,234.50\n", "1234.50", 1.0),
        ("DATE 6/3/75", "6/3/75", 1.0),
        ("kitten", "sitting", 1 - 3 / 7),
        ("abcd", "abxy", 0.5),
        ("abc", "axyz", 0.0),
        ("", "abc", 0.0),
        ("Größe", "GRÖSSE", 4 / 6),
        ("anything", "?!", 0.0),
    ],
)
def test_similarity(text, answer, wanted):
    assert similarity(text, answer) == pytest.approx(wanted)


def test_the_best_place_and_answer_count():
    assert legibility_score(["nothing", "hell0"], ["bye", "hello"]) == pytest.approx(0.8)
    assert legibility_score(["nothing", "well hello there"], ["bye", "Hello"]) == 1
    assert legibility_score([], ["hello"]) == 0


def test_only_letters_and_digits():
    assert letters_and_digits("  A-b_C 1,2.\n3 é№") == "abc123é"


def test_places_are_padded_and_stay_inside():
    assert crop_boxes([[100, 50, 160, 70]], (200, 300)) == [(80, 40, 180, 80)]
    assert crop_boxes([[0, 0, 30, 11]], (12, 35)) == [(0, 0, 35, 12)]
    assert crop_boxes([[400, 400, 410, 410]], (200, 300)) == [(299, 199, 300, 200)]
    assert len(crop_boxes([[0, 0, 2, 2]] * 5, (9, 9))) == 3


def test_bytes_of_a_picture():
    grey = torch.tensor([[-0.1, 0.5], [0.2501, 1.7]])
    assert as_bytes(grey[None]).tolist() == as_bytes(grey.expand(3, 2, 2)).tolist() == [[0, 128], [64, 255]]
    colour = as_bytes(torch.rand(3, 4, 5))
    assert colour.shape == (4, 5, 3) and colour.dtype == np.uint8


def test_pixels_of_a_box_are_inside_and_at_least_one():
    assert pixel_box((1.2, 2.7, 5.1, 6.0), (40, 60)) == (1, 2, 6, 6)
    assert pixel_box((70, -5, 90, -2), (40, 60)) == (59, 0, 60, 1)


def test_crops_of_a_page_stored_at_half_size_are_enlarged():
    texture = Texture.open(torch.rand(1, 60, 80))
    delivered = Delivered(texture, torch.zeros(1))
    sample = Sample("1", Path(), (60, 80), "?", ("x",), ((20.0, 20.0, 40.0, 30.0),))
    (crop,) = delivered.crops(sample)
    (large,) = delivered.crops(Sample(**{**vars(sample), "reduced": 1.98}))
    assert crop.shape == (20, 40) and large.shape == (40, 80)
    assert abs(large.astype(float).mean() - crop.mean()) < 2
