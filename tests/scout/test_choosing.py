"""relevance="scout" wherever it is taken: choose_tokens, a Picture, asking a model, and the command line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.ask import models
from tests.conftest import worst
from tests.test_cli import status
from texturevlm.ask import VLM
from texturevlm.placement import TokenConfig, choose_tokens, compile, place
from texturevlm.placement import prepare as prepare_picture
from texturevlm.placement.placement import question_chance
from texturevlm.relevance import WordsScorer, find_relevance, prepare
from texturevlm.relevance.ocr import Page
from texturevlm.scout import encode, load_scout
from texturevlm.types import Texture

INVOICE = Path(__file__).parents[2] / "examples" / "invoice.png"
TOTAL, OTHER = "What is the total due?", "Who is the chairman of the committee?"
AT = (1056, 1227)  # the middle of the total
COLUMNS = ("centre", "ddx", "ddy", "score", "valid")


@pytest.fixture(scope="module")
def texture():
    return Texture.open(INVOICE).mipmapped()


@pytest.fixture(scope="module")
def prepared(texture):
    return prepare(texture, "scout")


def same(first, second):
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in COLUMNS)


def finest_at(allocation, x, y):
    boxes = allocation.boxes[0]
    over = (boxes[:, 0] <= x) & (boxes[:, 2] >= x) & (boxes[:, 1] <= y) & (boxes[:, 3] >= y) & allocation.valid[0]
    return allocation.level[0][over].min().item() if over.any() else float("inf")


def test_the_question_moves_the_tokens(texture, prepared):
    total = choose_tokens(texture, TOTAL, budget=32, relevance=prepared)
    other = choose_tokens(texture, OTHER, budget=32, relevance=prepared)
    assert finest_at(total, *AT) < finest_at(other, *AT) - 0.5


def test_what_was_seen_may_be_used_again(texture, prepared):
    once = choose_tokens(texture, TOTAL, budget=40, relevance="scout")
    again = choose_tokens(texture, TOTAL, budget=40, relevance=prepared)
    encoded = choose_tokens(texture, encode([TOTAL]), budget=40, relevance=prepared)
    assert same(once, again) and same(encoded, again)
    assert same(choose_tokens(texture, encode([TOTAL]), budget=40), again)  # auto, too


def test_the_map_is_where_the_scout_points(texture, prepared):
    relevance = find_relevance(texture, TOTAL, relevance=prepared)
    assert relevance.scorer == "scout" and relevance.mass.isfinite().all()
    top = relevance.mass[0].flatten().argmax().item()
    rows, columns = relevance.grid
    y, x = (top // columns + 0.5) * 1754 / rows, (top % columns + 0.5) * 1240 / columns
    assert abs(x - AT[0]) < 120 and abs(y - AT[1]) < 40


def test_what_does_not_fit_is_told(texture):
    with pytest.raises(ValueError, match="question must be text for relevance 'words', got an encoded one"):
        choose_tokens(texture, encode([TOTAL]), relevance=WordsScorer(Page((), texture.size)))
    with pytest.raises(TypeError, match="question must be text, got int"):
        choose_tokens(texture, 7, relevance="scout")


@pytest.mark.parametrize("image", [torch.ones(3, 1, 1), torch.ones(3, 200, 150), torch.rand(1, 60, 90)])
def test_pages_without_anything_and_grey_ones(image):
    allocation = choose_tokens(Texture.open(image), TOTAL, budget=6, patch=16, relevance="scout")
    assert allocation.centre.isfinite().all() and allocation.valid.any()


def test_a_batch_of_pages(texture):
    small = texture.levels[1]
    pages = torch.stack([small[0, :, :320, :400], small[0, :, -320:, -400:]])
    together = find_relevance(Texture.open(pages), TOTAL, relevance="scout", patch=16)
    for row in range(2):
        alone = find_relevance(Texture.open(pages[row]), TOTAL, relevance="scout", patch=16)
        assert worst(together.mass[row], alone.mass[0]) < 2e-3


def test_a_sight_looks_once(monkeypatch):
    looks = []
    scout = load_scout()
    look = scout.read

    def looking(texture, **options):
        looks.append(texture)
        return look(texture, **options)

    monkeypatch.setattr(scout, "read", looking)
    how = TokenConfig(64, relevance="scout", turn=0.0)
    picture = prepare_picture(INVOICE, how)
    relevance, other = (place(picture, question, how).relevance for question in (TOTAL, OTHER))
    assert len(looks) == 1 and relevance.scorer == "scout" and worst(relevance.mass, other.mass) > 1e-4
    assert 0.5 < question_chance(picture, TOTAL, relevance) <= 1.001 and len(looks) == 1
    assert torch.equal(relevance.mass, find_relevance(picture.texture, TOTAL, relevance="scout").mass)
    blank = place(torch.ones(3, 64, 64), TOTAL, how)
    assert question_chance(blank.picture, TOTAL, blank.relevance) == pytest.approx(0.1)


def test_asking_a_model():
    asked = VLM(*models.built("qwen3_vl"), budget=14, relevance="scout")
    session = asked.prepare(INVOICE)
    (chosen,) = session.choose(TOTAL)
    assert finest_at(chosen.given, *AT) < finest_at(session.choose(OTHER)[0].given, *AT)
    assert isinstance(session.ask(models.QUESTION, max_new_tokens=3), str)


def test_compiled_on_a_cpu_it_is_the_plain_call():
    page = torch.from_numpy(np.array(Image.open(INVOICE).convert("RGB").crop((600, 1000, 1240, 1300))))
    image = page.permute(2, 0, 1)[None].float() / 255
    look = compile((300, 640), 24, "layers", relevance="scout", device="cpu")
    texture = Texture((image,)).mipmapped()
    for question in (TOTAL, OTHER, ""):
        plain = choose_tokens(texture, question, budget=24, allocator="layers", relevance="scout")
        assert same(look(image, question).allocation, plain)


def test_on_the_command_line(tmp_path, capsys):
    out = tmp_path / "look.png"
    assert status("look", INVOICE, "--query", TOTAL, "--relevance", "scout", "--budget", 48, "--out", out) == 0
    assert Image.open(out).size[0] > 600
    assert "look.png" in capsys.readouterr().out
