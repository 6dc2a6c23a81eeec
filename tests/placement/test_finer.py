"""Models that need finer print than OCR: small images are enlarged, and print counts as finer."""

import pytest
import torch

from texturevlm.placement import Finer, TokenConfig, place, place_together, placement, prepare
from texturevlm.types import Texture
from texturevlm.vlm.trained import trained_as

FINER = Finer(((64, 2.0), (256, 1.5)))
HOW = TokenConfig(12, relevance="none", turn=0.0, finer=FINER)


def image(height, width):
    return torch.linspace(0, 1, width).expand(3, height, width)


def test_the_chance_of_an_image_is_asked_for_among_several_only(monkeypatch):
    """It reads the scout's answer back, for which a GPU would be waited for."""
    asked, chance = [], placement.question_chance
    watched = lambda picture, question, found: asked.append(question) or chance(picture, question, found)  # noqa: E731
    monkeypatch.setattr(placement, "question_chance", watched)
    how = TokenConfig(8, relevance="scout", turn=0.0)
    pictures = [prepare(torch.rand(3, 96, 96), how) for _ in range(2)]
    assert len(place_together(pictures[:1], "where?", how)) == 1 and asked == []
    assert len(place_together(pictures, "where?", how)) == 2 and asked == ["where?"] * 2


def test_a_small_image_is_enlarged_for_a_model_that_needs_finer_print():
    plain, finer = prepare(image(96, 160), HOW.given(finer=Finer())), prepare(image(96, 160), HOW)
    assert plain.frame.is_whole and plain.texture.size == (96, 160) and plain.texture is plain.original
    assert (finer.frame.scale, finer.texture.size, finer.original.size) == (0.5, (192, 320), (96, 160))
    there, here = (picture.texture.levels[0][0, 0, 0] for picture in (finer, plain))
    torch.testing.assert_close(there.view(-1, 2).mean(1)[2:-2], here[2:-2], atol=1e-3, rtol=0)  # the same picture
    assert finer.most_tokens == 4 * plain.most_tokens
    assert prepare(image(1200, 1100), HOW).frame.is_whole  # its print is large enough
    others = Texture((torch.rand(1, 4, 96, 160),), ("red", "green", "blue", "labels"))
    assert prepare(others, HOW).frame.is_whole  # more than colours
    again = prepare(finer, HOW.given(finer=Finer()))
    assert again.frame.is_whole and again.texture is finer.original
    assert prepare(again, HOW) is finer and finer.memo.texture is finer.texture


def test_print_counts_as_finer_for_such_a_model():
    picture = prepare(image(1200, 1100), HOW)
    plain = place(picture, "", HOW.given(finer=Finer())).relevance.legible_scale
    for budget, times in ((20, 2.0), (64, 2.0), (128, FINER.at(128)), (512, 1.5)):
        torch.testing.assert_close(place(picture, "", HOW.given(budget=budget)).relevance.legible_scale, plain / times)
    assert FINER.at(128) == pytest.approx(3**0.5, abs=1e-3)  # between 2 and 1.5, as budgets multiply


@pytest.mark.parametrize("turn", [0.0, 90.0])
def test_tokens_of_an_enlarged_image_are_given_in_its_own_pixels(turn):
    found = place(image(96, 160), "", HOW.given(turn=turn))
    assert sorted(found.picture.texture.size) == [192, 320] and found.picture.frame.scale == 0.5
    given = found.given
    assert given.size == (96, 160)
    low, high = given.boxes[..., :2].amin((0, 1)), given.boxes[..., 2:].amax((0, 1))
    assert (low >= -1e-3).all() and (high <= torch.tensor([160.0, 96.0]) + 1e-3).all()
    torch.testing.assert_close(given.ddx.norm(dim=-1), found.allocation.ddx.norm(dim=-1) / 2)


def test_images_that_share_a_budget_are_seen_as_finely_as_with_their_parts_of_it():
    pictures = [prepare(image(1200, 1100), HOW) for _ in range(2)]
    found = place_together(pictures, "", HOW.given(budget=256))
    wanted = place(pictures[0], "", HOW.given(budget=128)).relevance.legible_scale
    assert all(torch.equal(own.relevance.legible_scale, wanted) for own in found)


def test_how_fine_a_model_must_see_print_is_checked():
    config = type("Config", (), {"texturevlm": {}})
    assert trained_as(config).finer == Finer() and Finer().at(273) == Finer().most == 1
    config.texturevlm = {"finer": 1.5}
    assert trained_as(config).finer.at(5) == 1.5
    config.texturevlm = {"finer": {"256": 1.5, "64": 2}}
    assert trained_as(config).finer == FINER and FINER.most == 2
    wanted = (
        r"finer in texturevlm of config\.json must be a number from 1 to 4, or a table of them by numbers of tokens"
    )
    for wrong in (0.5, "much", 9, True, None, {}, {"64": 0}, {"many": 2}, {"0": 2}, {"64": "2"}, [2]):
        config.texturevlm = {"finer": wrong}
        with pytest.raises(ValueError, match=f"^adapt: {wanted}, got"):
            trained_as(config)


@pytest.mark.parametrize(
    ("name", "wrong"), [("suffix", 5), ("answer_tokens", 0), ("answer_tokens", "many"), ("confidence", 5)]
)
def test_how_a_model_must_be_asked_is_checked(name, wrong):
    config = type("Config", (), {"texturevlm": {"suffix": "", "answer_tokens": 160}})
    assert (trained_as(config).suffix, trained_as(config).answer_tokens) == ("", 160)
    config.texturevlm = {name: wrong}
    with pytest.raises(ValueError, match=f"^adapt: {name} in texturevlm of config.json must be .*got {wrong!r}"):
        trained_as(config)
