"""From an image and a question to an allocation: each way of finding what matters, and what each needs."""

from dataclasses import dataclass

import pytest
import torch

from texturevlm.placement import TokenConfig, choose_tokens
from texturevlm.placement import prepare as prepare_picture
from texturevlm.placement.placement import question_chance
from texturevlm.relevance import AttentionScorer, Balance, Relevance, WordsScorer, find_relevance, prepare
from texturevlm.relevance.ocr import Page, Word
from texturevlm.types import Texture


@pytest.fixture
def texture():
    image = torch.ones(3, 320, 256)
    for top in range(16, 300, 24):
        image[:, top : top + 10, 16:240] = (torch.arange(224) // 2 % 2).float()
    return Texture.open(image)


@pytest.fixture
def read():
    words = []
    for line, (label, value) in enumerate(
        [("Invoice", "7731"), ("Date", "3 May"), ("Total", "940.00"), ("Paid", "yes")]
    ):
        top = 16 + 72 * line
        words += [Word(label, (16, top, 76, top + 10), line, 1.0), Word(value, (120, top, 180, top + 10), line, 1.0)]
    return Page(tuple(words), (320, 256))


def fine_at(allocation, x, y):
    """The level of the finest footprint over a point."""
    boxes = allocation.boxes[0]
    over = (boxes[:, 0] <= x) & (boxes[:, 2] >= x) & (boxes[:, 1] <= y) & (boxes[:, 3] >= y) & allocation.valid[0]
    return allocation.level[0][over].min().item()


def test_the_question_moves_the_tokens(texture, read):
    spots = {"What is the total?": (150, 165), "What is the invoice number?": (150, 21)}
    for question, (x, y) in spots.items():
        other = next(spot for spot in spots.values() if spot != (x, y))
        allocation = choose_tokens(texture, question, budget=6, patch=8, relevance=WordsScorer(read))
        assert fine_at(allocation, x, y) < fine_at(allocation, *other)


def test_words_say_how_fine_they_are_and_that_they_are_there(texture, read):
    relevance = find_relevance(texture, "Total?", relevance=WordsScorer(read), patch=8)
    plain = find_relevance(texture, relevance="none", patch=8)
    assert relevance.scorer == "words" and plain.scorer == "none"
    row, column = 165 * relevance.grid[0] // 320, 150 * relevance.grid[1] // 256
    assert relevance.legible_scale[0, row, column].item() == pytest.approx(10 / 5.5)
    assert relevance.ink[0, row, column]
    torch.testing.assert_close(relevance.mass.sum((1, 2)), torch.ones(1))


def test_turned_lines_are_as_fine_as_their_letters_are_high(texture):
    """A line that runs downwards is as high as it is wide: its boxes' heights made it 4.5 times too coarse."""
    words = [Word(text, (16, top, 28, top + 54), 0, 1.0) for text, top in (("Invoice", 20), ("Total", 90))]
    upright = Word("Paid", (100, 20, 160, 32), 1, 1.0)
    page = Page((*words, upright), (320, 256))
    relevance = find_relevance(texture, "Total?", relevance=WordsScorer(page), patch=8)
    for x, y in ((22, 110), (22, 40), (130, 26)):
        row, column = y * relevance.grid[0] // 320, x * relevance.grid[1] // 256
        assert relevance.legible_scale[0, row, column].item() == pytest.approx(12 / 5.5)


def test_attention_is_followed(texture):
    attention = torch.zeros(1, 8, 8)
    attention[0, 6, 1] = 1.0
    allocation = choose_tokens(texture, budget=10, patch=8, relevance=AttentionScorer(attention))
    assert fine_at(allocation, 48, 260) < fine_at(allocation, 200, 40)


def test_given_relevance_is_used_as_it_is(texture):
    relevance = find_relevance(texture, patch=8, relevance="none")
    first = choose_tokens(texture, budget=10, patch=8, relevance=relevance)
    second = choose_tokens(texture, budget=10, patch=8, relevance="none")
    assert torch.equal(first.boxes, second.boxes)


def test_balance_pulls(texture, read):
    def mass(**pulls):
        return find_relevance(
            texture, "What is the total?", relevance=WordsScorer(read), patch=8, balance=Balance(**pulls)
        ).mass

    assert mass(explore=0.9).max() < mass(explore=0.0).max()
    assert mass(focus=0.5).max() < mass(focus=2.0).max()
    finer = find_relevance(texture, relevance="none", patch=8, balance=Balance(particularise=2.0))
    torch.testing.assert_close(
        finer.legible_scale * 2, find_relevance(texture, relevance="none", patch=8).legible_scale
    )


@pytest.mark.parametrize(
    "pulls", [{"explore": 2}, {"explore": -0.1}, {"explore": float("nan")}, {"focus": 0}, {"particularise": -1.0}]
)
def test_balance_refuses_what_is_no_weight(pulls):
    (name,) = pulls
    with pytest.raises(ValueError, match=rf"^Balance: {name} must be"):
        Balance(**pulls)


def test_balance_learns(texture, read):
    explore = torch.tensor(0.3, requires_grad=True)
    focus = torch.tensor(1.2, requires_grad=True)
    pulls = Balance(explore=explore, focus=focus)
    relevance = find_relevance(texture, "What is the total?", relevance=WordsScorer(read), patch=8, balance=pulls)
    relevance.mass.square().sum().backward()
    assert explore.grad.abs() > 0 and focus.grad.abs() > 0


def test_prepared_images_are_read_once(texture, read, monkeypatch):
    readings = []

    def reading(image):
        readings.append(image.shape)
        return read

    monkeypatch.setattr("texturevlm.relevance.words.read_page", reading)
    prepared = prepare(texture, "words", patch=8)
    for question in ("What is the total?", "What is the invoice number?"):
        found = choose_tokens(texture, question, budget=6, patch=8, relevance=prepared)
        wanted = choose_tokens(texture, question, budget=6, patch=8, relevance=WordsScorer(read))
        assert torch.equal(found.boxes, wanted.boxes)
    assert readings == [(1, 3, 320, 256)]
    with pytest.raises(
        ValueError, match=r"prepared for this texture \(1 images of \(320, 256\)\) and patch 16, got .* patch 8"
    ):
        choose_tokens(texture, "total", patch=16, relevance=prepared)
    with pytest.raises(ValueError, match="prepared for this texture"):
        choose_tokens(Texture.open(torch.ones(3, 320, 256)), "total", patch=8, relevance=prepared)


class Corner:
    """A scorer of somebody else's: everything is in the first cell."""

    name, description, capturable = "corner", "the corner", False

    def prepare(self, texture):
        return texture.batch

    def score(self, prepared, question, maps):
        query = torch.zeros(prepared, *maps.grid)
        query[:, 0, 0] = 1.0
        return (query if question else None), maps


def test_a_scorer_of_ones_own(texture):
    relevance = find_relevance(texture, "where?", patch=8, relevance=Corner())
    assert relevance.scorer == "corner" and relevance.asked and relevance.mass[0, 0, 0] > 0.9
    assert not find_relevance(texture, "", patch=8, relevance=Corner()).asked
    with pytest.raises(TypeError, match=r"(?s)must be a scorer or the name of one, got tensor.*, which has no"):
        find_relevance(texture, "where?", relevance=torch.ones(1, 2, 2))


@dataclass
class Shifting:
    """A scorer without a hash, as every dataclass is that can change; it counts how often it prepares."""

    name: str = "shifting"
    prepared: int = 0
    description, capturable = "something else", False

    def prepare(self, texture):
        self.prepared += 1

    def score(self, prepared, question, maps):
        return maps.salience.flip(2), maps


def test_a_scorer_without_a_hash(texture):
    own = Shifting()
    prepared = prepare(texture, own, patch=8)
    for question in ("where?", "when?"):
        assert find_relevance(texture, question, patch=8, relevance=prepared).scorer == "shifting"
    assert own.prepared == 1 and prepared.moved(texture).reading(own) is None and own.prepared == 1
    assert prepared.reading(Shifting()) is None and own.prepared == 1  # an equal one is another one


@pytest.mark.parametrize("question", ["", " ", "?"])
@pytest.mark.parametrize("scorer", ["words", "scout", "auto", "none"])
def test_without_a_question_nothing_was_asked(texture, read, scorer, question):
    given = WordsScorer(read) if scorer == "words" else scorer
    relevance = find_relevance(texture, question, patch=8, relevance=given)
    wanted = "prior" if scorer == "auto" else "none"
    assert not relevance.asked and relevance.scorer == wanted
    torch.testing.assert_close(relevance.mass, find_relevance(texture, patch=8, relevance=wanted).mass)


def test_what_a_scorer_needs_is_said(texture):
    with pytest.raises(
        ValueError, match=r"got 'attention', which needs a map: relevance=tv\.SCORERS\['attention'\]\(map\)"
    ):
        choose_tokens(texture, relevance="attention")
    with pytest.raises(ValueError, match=r"got 'embedding' without its models: write embedding:MODEL,PCA"):
        choose_tokens(texture, "a dog", relevance="embedding")
    with pytest.raises(
        ValueError, match="relevance must be one of auto, words, scout, prior, channels, none, got 'magic'"
    ):
        choose_tokens(texture, relevance="magic")
    with pytest.raises(ValueError, match=r"attention must be \(1, h, w\), got \(2, 3, 3\)"):
        choose_tokens(texture, relevance=AttentionScorer(torch.ones(2, 3, 3)))
    with pytest.raises(ValueError, match=r"pages must be one per image, 1 of \(320, 256\)"):
        choose_tokens(texture, "total", relevance=WordsScorer(Page((), (10, 10))))
    with pytest.raises(TypeError, match="question must be text, got int"):
        choose_tokens(texture, 7)


def test_only_a_calibrated_scorer_judges_which_image_is_meant(texture, read):
    """An uncalibrated query says where in an image to look, not whether to look at the image at all."""
    confident = Corner()
    confident.calibrated, confident.score = True, lambda prepared, question, maps: (maps.ink * 1e-6, maps)
    for scorer, chance in ((Corner(), 1.0), (confident, 0.1), (AttentionScorer(torch.ones(1, 2, 2)), 1.0)):
        picture = prepare_picture(texture, TokenConfig(patch=8, turn=0.0))
        found = picture.memo.find("where?", scorer=scorer)
        assert question_chance(picture, "where?", found) == pytest.approx(chance)


def test_the_scout_takes_the_question_and_ocr_runs_by_name_alone(texture, monkeypatch):
    def refused(*given, **how):
        raise AssertionError("nobody asked for OCR")

    monkeypatch.setattr("texturevlm.relevance.words.read_page", refused)
    assert find_relevance(texture, "What is the total?").scorer == "scout"
    assert find_relevance(texture, " ").scorer == "prior"


@pytest.mark.parametrize("question", ["", " ", "?", "Gesamtbetrag über 100 €?", "合計はいくらですか", "x" * 1_000_000])
def test_any_question(texture, read, question):
    allocation = choose_tokens(texture, question, budget=20, patch=8, relevance=WordsScorer(read))
    assert allocation.valid.all()


def test_relevance_checks_its_maps():
    ones = torch.ones(1, 4, 4)
    with pytest.raises(TypeError, match=r"ink must be torch\.bool"):
        Relevance(ones, ones, ones, (8, 8))
    with pytest.raises(ValueError, match="Relevance"):
        Relevance(ones, torch.ones(1, 5, 4), ones.bool(), (8, 8))


def test_relevance_checks_whether_images_are_photographs():
    """Kernels read it by its address: a strided one gave the second image the wrong tokens."""
    maps = torch.ones(2, 4, 4)

    def known(photograph):
        return Relevance(maps, maps, maps.bool(), (8, 8), photograph=photograph).photograph

    with pytest.raises(TypeError, match=r"photograph must be torch\.bool, got torch\.float32"):
        known(torch.ones(2))
    for wrong in (torch.ones(3, dtype=torch.bool), torch.ones(2, 1, dtype=torch.bool)):
        with pytest.raises(ValueError, match="Relevance: photograph"):
            known(wrong)
    with pytest.raises(ValueError, match="photograph must be on cpu like mass, got meta"):
        known(torch.ones(2, dtype=torch.bool, device="meta"))
    strided = torch.tensor([True, False, False, True])[::3]
    assert known(strided).is_contiguous() and known(strided).tolist() == [True, True]
    assert known(None) is None


def test_a_list_of_textures_gives_a_list_of_allocations():
    pages = [Texture.open(torch.rand(3, 80, 96)), Texture.open(torch.rand(3, 64, 64))]
    found = choose_tokens(pages, budget=4, relevance="none")
    for one, page in zip(found, pages, strict=True):
        assert torch.equal(one.centre, choose_tokens(page, budget=4, relevance="none").centre)


def test_images_share_one_budget_and_a_blank_one_needs_little():
    busy, blank = torch.rand(3, 320, 320), torch.ones(3, 320, 320)
    first, second = choose_tokens([Texture.open(busy), Texture.open(blank)], budget=72, relevance="none", share=True)
    used = [int(one.valid.sum()) for one in (first, second)]
    assert sum(used) <= 72 and used[0] > 2 * used[1] >= 2
    batch = choose_tokens(Texture.open(torch.stack([busy, blank])), budget=72, relevance="none", share=True)
    assert batch.batch == 2 and batch.valid.sum(1).tolist() == used
    assert torch.equal(batch.centre[0, : used[0]], first.centre[0, : used[0]])


def test_images_that_share_a_budget_are_read_once_by_the_scorer_given(texture, read, monkeypatch):
    def read_page(image):
        raise AssertionError("the pages were given")

    monkeypatch.setattr("texturevlm.relevance.words.read_page", read_page)
    question = "What is the total?"
    found = choose_tokens([texture, texture], question, budget=24, patch=16, relevance=WordsScorer(read), share=True)
    assert sum(int(one.valid.sum()) for one in found) <= 24 and all(one.valid.any() for one in found)


def test_what_cannot_be_shared_is_named():
    page = Texture.open(torch.rand(3, 64, 64))
    relevance = find_relevance(page, relevance="none")
    with pytest.raises(TypeError, match="relevance must be a scorer or its name if share"):
        choose_tokens([page], relevance=relevance, share=True)
    with pytest.raises(TypeError, match="texture must be a Texture or a list of them, got"):
        choose_tokens([], share=True)
    with pytest.raises(TypeError, match="must be a list of textures of one image, got a batch of 2"):
        choose_tokens([Texture.open(torch.rand(2, 3, 64, 64))])
