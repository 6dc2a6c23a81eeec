"""Stamps: what is cut out for OCR is the line with the number, upright, whichever way the stamp lies."""

import pytest
import torch
from PIL import Image

from texturevlm.frame import TextRegion
from texturevlm_lab.studies import stamps


@pytest.fixture
def upright(monkeypatch):
    monkeypatch.setattr("texturevlm.placement.picture.find_turn_and_read", lambda texture: (0.0, None))


def crop_of(angle, monkeypatch):
    one = stamps.stamped(Image.new("L", (500, 700), 255), angle, "a page")
    region = TextRegion(float(angle), torch.tensor([one.box], dtype=torch.float32))
    monkeypatch.setattr("texturevlm.placement.picture.find_regions", lambda texture: [region] if angle else [])
    (crop,), found = stamps.followed(one, 1)
    assert found == pytest.approx(angle, abs=1e-3)
    return one, crop


@pytest.mark.parametrize("angle", [20, 90])
def test_the_line_of_a_turned_stamp_is_that_of_the_upright_one(angle, upright, monkeypatch):
    first, wanted = crop_of(0, monkeypatch)
    one, crop = crop_of(angle, monkeypatch)
    assert one.number == first.number
    assert crop.shape == pytest.approx(wanted.shape, abs=3)
    tall, wide = (min(sides) for sides in zip(crop.shape, wanted.shape))
    apart = torch.from_numpy(crop[:tall, :wide]).float() - torch.from_numpy(wanted[:tall, :wide]).float()
    assert apart.abs().mean() < 25  # of 255; tokens are coarser if they must cover a turned region
    lying = stamps.left_upright(one, 1)
    assert lying[stamps.BACK][0].shape == pytest.approx(wanted.shape, abs=3)
    assert lying[stamps.LIES][0].shape != pytest.approx(wanted.shape, abs=3)
