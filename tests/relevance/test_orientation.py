"""Which way up a page is, and regions whose text has an angle of its own."""

from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

import texturevlm as tv
from texturevlm.frame import TextRegion, following
from texturevlm.relevance import orientation
from texturevlm.relevance import orientation as text_regions
from texturevlm.relevance.orientation import find_regions, find_turn

INVOICE = Path(__file__).parents[2] / "examples" / "invoice.png"


@pytest.fixture(scope="module")
def invoice():
    page = Image.open(INVOICE).convert("RGB")
    return page.resize((page.width * 900 // page.height, 900), Image.Resampling.BOX)


def turned(page, angle):
    return tv.Texture.open(page.rotate(-angle, Image.Resampling.BICUBIC, expand=True, fillcolor="white"))


@pytest.mark.parametrize("angle", [0, 15, 90, 180, -60])
def test_the_angle_of_a_page_is_found(invoice, angle):
    found = find_turn(turned(invoice, angle))
    assert abs((found - angle + 180) % 360 - 180) <= 1


def stamped(page, angle):
    stamp = Image.new("RGB", (300, 130), "white")
    pen = ImageDraw.Draw(stamp)
    pen.rectangle((2, 2, 297, 127), outline=(60, 60, 60), width=4)
    for row, text in enumerate(("RECEIVED", "MARCH 12 1987", "ACCOUNT NUMBER")):
        pen.text((16, 8 + 38 * row), text, fill=(40, 40, 40), font=ImageFont.load_default(30))
    stamp = stamp.rotate(-angle, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    made = page.copy()
    made.paste(stamp, ((page.width - stamp.width) // 2, (page.height - stamp.height) // 2))
    return made


def test_a_stamp_is_a_region_of_its_own_and_a_plain_page_has_none(invoice):
    assert find_regions(tv.Texture.open(invoice)) == []
    texture = tv.Texture.open(stamped(invoice, 30))
    (region,) = find_regions(texture)
    assert abs(region.angle - 30) <= 2
    middle = torch.tensor([texture.size[1] / 2, texture.size[0] / 2])
    assert ((region.cells[:, :2] <= middle) & (region.cells[:, 2:] >= middle)).all(1).any()


def with_sign(photograph, angle):
    """A board whose words are on no page that the spotter learned from."""
    board = Image.new("RGB", (230, 104), (24, 96, 60))
    pen = ImageDraw.Draw(board)
    pen.rectangle((3, 3, 226, 100), outline="white", width=2)
    for row, text in enumerate(("Zwolqa", "Exit 6163-86")):
        pen.text((115, 31 + 42 * row), text, fill="white", font=ImageFont.load_default(26), anchor="mm")
    mask = Image.new("L", board.size, 255)
    board, mask = (one.rotate(-angle, Image.Resampling.BICUBIC, expand=True) for one in (board, mask))
    made = photograph.copy()
    made.paste(board, (120, 150), mask)
    return made


@pytest.mark.parametrize("angle", [-25, 40])
def test_a_sign_whose_words_nobody_knows_is_a_region(angle):
    photograph = Image.open(INVOICE.parent / "photo.jpg").convert("RGB")
    assert find_regions(tv.Texture.open(photograph)) == []
    (region,) = find_regions(tv.Texture.open(with_sign(photograph, angle)))
    assert abs(region.angle - angle) <= 3


def footprints():
    boxes = torch.tensor([[[100.0, 100.0, 132.0, 132.0], [0.0, 0.0, 32.0, 32.0], [60.0, 60.0, 160.0, 160.0]]])
    return tv.Allocation.of_boxes(boxes, (400, 400), 16)


@pytest.mark.parametrize("angle", [30.0, 90.0, -45.0])
def test_footprints_in_a_region_follow_it_and_cover_what_they_covered(angle):
    allocation = footprints()
    found = following(allocation, [TextRegion(angle, torch.tensor([[90.0, 90.0, 140.0, 140.0]]))])
    assert torch.equal(found.centre, allocation.centre)
    assert torch.equal(found.ddx[:, 1:], allocation.ddx[:, 1:])  # outside, and larger than the region
    across, along = found.ddx[0, 0].tolist()
    assert torch.atan2(torch.tensor(along), torch.tensor(across)).rad2deg().item() == pytest.approx(angle, abs=1e-3)
    u, v, inside = found.local(0, 0, 100, 100, (32, 32))
    assert inside.all()
    corner = max(float(u.abs().max()), float(v.abs().max()))
    assert corner > 0.9  # and no more than that


def test_a_region_is_the_box_along_its_text():
    spots = torch.tensor([[100.0, 100.0], [140.0, 140.0], [180.0, 180.0]])  # a line at 45°, its second spot missing
    half = torch.tensor([-20.0, -20.0, 20.0, 20.0])
    region = TextRegion(45.0, torch.cat([spots, spots], 1)[[0, 2]] + half)
    assert region.holds(spots).all()
    assert region.holds(torch.tensor([[140.0, 160.0], [100.0, 180.0]])).tolist() == [True, False]


@pytest.mark.parametrize("readable, found", [(0.22, 15.0), (0.15, 0.0)])
def test_doubtful_lines_need_words(monkeypatch, readable, found):
    """A receipt of a few short lines had a strength of 2.9 and stayed askew."""
    lines = orientation.line_angles(torch.rand(1, 64, 64))._replace(
        sure=torch.tensor([2.9]), whole=torch.tensor([15.0])
    )
    monkeypatch.setattr(orientation, "line_angles", lambda grey: lines)
    read = orientation.Reading(15.0, None, readable)
    monkeypatch.setattr(orientation, "best_quarter", lambda texture, skew: read)
    assert orientation.find_turn(tv.Texture((torch.rand(1, 3, 64, 64),))) == found


def test_a_sign_seen_from_the_side_is_one_region():
    """Its upper and lower lines have angles of their own; turned apart, one half lay on the other."""
    cell = torch.tensor([0.0, 0.0, 20.0, 20.0])
    upper = TextRegion(15.5, torch.stack([cell, cell + 20, cell + 40]))
    lower, far = TextRegion(8.0, cell[None] + 60), TextRegion(8.0, cell[None] + 200)
    across = TextRegion(80.0, cell[None] + 20)
    one, other, third = text_regions._joined([upper, lower, far, across])
    assert one.angle == pytest.approx(13.6, abs=0.1) and len(one.cells) == 4
    assert other is far and third is across
    (turned,) = text_regions._joined([TextRegion(-178.0, cell[None]), TextRegion(176.0, cell[None])])
    assert turned.angle == pytest.approx(-181.0)


def test_angles_around_half_a_quarter_turn_are_one_region():
    angle = torch.tensor([[44.0, -44.5, 43.0, 10.0]])
    (together,) = text_regions._groups(angle, torch.tensor([[True, True, True, False]]))
    assert len(together) == 3
    assert text_regions._median(angle[0, :3]) % 90 == pytest.approx(44.0)
