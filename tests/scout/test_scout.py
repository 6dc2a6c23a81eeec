"""The shipped scout: it finds the total of the example invoice, and nothing where there is nothing to read."""

import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import worst
from tests.scout.networks import shipped
from texturevlm.scout import encode, load_scout
from texturevlm.scout.scout import _grey, _to_read
from texturevlm.scout.spotter import SPOT, input_size
from texturevlm.types import Texture

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
from render_invoice import TOTAL_BOX  # noqa: E402

TOTAL, OTHER = "What is the total?", "Who is the chairman of the committee?"


@pytest.fixture(scope="module")
def scout():
    return shipped()


@pytest.fixture(scope="module")
def invoice():
    return Texture.open(EXAMPLES / "invoice.png").mipmapped()


@pytest.fixture(scope="module")
def spots(scout, invoice):
    return scout.read(invoice)


def inside(chance, box, size):
    """The spots whose middles a box holds."""
    rows, columns = chance.shape[1:]
    y = (torch.arange(rows) + 0.5) * size[0] / rows
    x = (torch.arange(columns) + 0.5) * size[1] / columns
    return ((y > box[1]) & (y < box[3]))[:, None] & ((x > box[0]) & (x < box[2]))


def test_it_finds_the_total(scout, invoice, spots):
    chance, other = scout.where(spots, TOTAL), scout.where(spots, OTHER)
    box = inside(chance, TOTAL_BOX, invoice.size)
    assert chance.shape == (1, *(side // SPOT for side in input_size(invoice.size)))
    best = chance[0].flatten().topk(int(0.02 * chance.numel())).values[-1]
    assert chance[0][box].max() >= best and chance[0][box].mean() >= best
    share, unrelated = chance[0][box].sum(), other[0][box].sum()
    assert share > 0.3 and share > 20 * unrelated


@pytest.mark.parametrize(
    ("question", "box"),
    [("What is the invoice number?", (1000, 184, 1160, 209)), ("What is the VAT ID?", (1000, 334, 1160, 359))],
)
def test_it_finds_other_fields(scout, invoice, spots, question, box):
    chance = scout.where(spots, question)
    within = inside(chance, box, invoice.size)
    best = chance[0].flatten().topk(int(0.05 * chance.numel())).values[-1]
    assert chance[0][within].max() >= best
    assert chance[0][within].sum() > 3 * scout.where(spots, OTHER)[0][within].sum()


@pytest.mark.parametrize("question", [TOTAL, OTHER, "", "合計はいくらですか", "total " * 500, "?!"])
def test_chances_are_chances(scout, spots, question):
    chance = scout.where(spots, question)
    assert chance.dtype == torch.float32 and chance.isfinite().all() and chance.min() >= 0
    assert 0 < chance.sum() <= 1 + 1e-5


def test_an_encoded_question_is_the_question(scout, spots, invoice):
    asked = encode([TOTAL])
    assert torch.equal(scout.where(spots, asked), scout.where(spots, TOTAL))
    assert torch.equal(scout(invoice, asked), scout.where(spots, TOTAL))


def test_nothing_to_read_no_answer(scout):
    pages = [torch.full((3, 300, 220), shade) for shade in (0.0, 0.5, 1.0)]
    pages.append(torch.linspace(0, 1, 220).expand(3, 300, 220))
    for page in pages:
        assert scout.where(scout.read(Texture.open(page)), TOTAL).sum() < 0.01


def test_a_photograph_has_little_to_read(scout):
    photo = scout.read(Texture.open(EXAMPLES / "photo.jpg"))
    for question, most in ((TOTAL, 0.1), (OTHER, 0.1), ("", 0.2)):
        assert scout.where(photo, question).sum() < most


@pytest.mark.parametrize("size", [(1, 1), (1, 700), (300, 2), (17, 33)])
def test_any_size(scout, size):
    texture = Texture.open(torch.rand(3, *size))
    chance = scout.where(scout.read(texture), TOTAL)
    assert chance.shape == (1, *(side // SPOT for side in input_size(size))) and chance.isfinite().all()
    assert torch.equal(scout.where(scout.read(texture.mipmapped()), TOTAL), chance)


def test_a_batch_is_its_pages_one_by_one(scout, invoice):
    whole = invoice.levels[1]
    pages = torch.stack([whole[0, :, :320, :400], whole[0, :, -320:, -400:]])
    together = scout.read(Texture.open(pages))
    both = scout.where(together, TOTAL)
    each = scout.where(together, encode([TOTAL, OTHER]))
    for row, question in enumerate((TOTAL, OTHER)):
        alone = scout.read(Texture.open(pages[row]))
        assert worst(both[row], scout.where(alone, TOTAL)[0]) < 1e-4
        assert worst(each[row], scout.where(alone, question)[0]) < 1e-4
    with pytest.raises(ValueError, match=r"Scout\.where: question must be one, or one for each of 2 pages, got 3"):
        scout.where(together, encode([TOTAL] * 3))


def spotter_input(texture):
    return _grey(*_to_read(texture))


def test_colours_in_any_order_and_grey():
    image = torch.rand(1, 3, 44, 56)
    colour = spotter_input(Texture((image,)))
    assert colour.shape == (1, 1, 48, 64)  # the nearest multiples of two spots
    names = ("edges", "blue", "red", "green")
    mixed = Texture((torch.cat([torch.rand(1, 1, 44, 56), image[:, [2, 0, 1]]], 1),), names)
    assert worst(spotter_input(mixed), colour) < 1e-6
    grey = Texture.open(image[:, :1])
    assert (
        grey.names == ("grey",)
        and worst(spotter_input(grey), spotter_input(Texture((image[:, :1].expand(-1, 3, -1, -1),)))) < 1e-6
    )


def test_mips_spare_work_and_change_little(scout):
    image = torch.nn.functional.interpolate(torch.rand(1, 3, 240, 180), (2400, 1800), mode="bilinear")
    texture = Texture.open(image)
    assert texture.mipmapped().levels[1].shape[2] > input_size(texture.size)[0]
    assert worst(spotter_input(texture.mipmapped()), spotter_input(texture)) < 0.05


def test_what_load_scout_gives_is_the_shipped_one_rounded(scout, invoice, spots):
    loaded = load_scout()
    found, exact = loaded.where(loaded.read(invoice), TOTAL), scout.where(spots, TOTAL)
    assert (found - exact).abs().sum() < 0.15  # bfloat16, where the CPU has it
