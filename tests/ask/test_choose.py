"""Choosing tokens asks for no more than it needs."""

import pytest
import torch

from texturevlm.allocate.value import expected_value
from texturevlm.ask import choose
from texturevlm.placement.finer import Finer
from texturevlm.types import Texture
from texturevlm.vlm.trained import trained_as

OPTIONS = {"budget": 8, "allocator": "auto", "relevance": "scout"}
FINER = Finer(((64, 2.0), (256, 1.5)))


def test_the_chance_of_an_image_is_asked_for_among_several_only(monkeypatch):
    """It reads the scout's answer back, for which a GPU would be waited for."""
    asked, chance = [], PreparedImage.chance

    def counted(self, question, relevance):
        asked.append(question)
        return chance(self, question, relevance)

    monkeypatch.setattr(PreparedImage, "chance", counted)
    images = [PreparedImage(torch.rand(3, 96, 96), patch=32, device=torch.device("cpu")) for _ in range(2)]
    assert len(choose.choose(images[:1], "where?", **OPTIONS)) == 1 and asked == []
    assert len(choose.choose(images, "where?", **OPTIONS)) == 2 and asked == ["where?"] * 2


def prepared(height, width, **options):
    across = torch.linspace(0, 1, width).expand(3, height, width)
    return PreparedImage(across, patch=32, device=torch.device("cpu"), **options)


def test_a_small_image_is_enlarged_for_a_model_that_needs_finer_print():
    plain, finer = prepared(96, 160), prepared(96, 160, finer=FINER)
    assert (plain.times, plain.texture.size) == (1, (96, 160)) and plain.texture is plain.original
    assert (finer.times, finer.texture.size, finer.original.size) == (2, (192, 320), (96, 160))
    there, here = (one.texture.levels[0][0, 0, 0] for one in (finer, plain))
    torch.testing.assert_close(there.view(-1, 2).mean(1)[2:-2], here[2:-2], atol=1e-3, rtol=0)  # the same picture
    assert finer.max_tokens == 4 * plain.max_tokens
    assert prepared(1200, 1100, finer=FINER).times == 1  # its print is large enough


def test_print_counts_as_finer_for_such_a_model():
    large, finer = prepared(1200, 1100), prepared(1200, 1100, finer=FINER)
    for budget, times in ((20, 2.0), (64, 2.0), (128, FINER.at(128)), (512, 1.5)):
        plain, found = (one.relevance("", budget=budget, relevance="none").legible_scale for one in (large, finer))
        torch.testing.assert_close(found, plain / times)
    assert FINER.at(128) == pytest.approx(3**0.5, abs=1e-3)  # between 2 and 1.5, as budgets multiply


@pytest.mark.parametrize("turn", [0.0, 90.0])
def test_tokens_of_an_enlarged_image_are_given_in_its_own_pixels(turn):
    image = prepared(96, 160, finer=FINER)
    image.turn(turn)
    assert sorted(image.texture.size) == [192, 320] and image.times == 2
    (found,) = choose.choose([image], "", budget=12, allocator="auto", relevance="none")
    given = image.as_given(found.allocation)
    assert given.size == (96, 160)
    low, high = given.boxes[..., :2].amin((0, 1)), given.boxes[..., 2:].amax((0, 1))
    assert (low >= -1e-3).all() and (high <= torch.tensor([160.0, 96.0]) + 1e-3).all()
    step = found.allocation.ddx.norm(dim=-1)
    torch.testing.assert_close(given.ddx.norm(dim=-1), step / 2)


def test_images_that_share_a_budget_are_seen_as_finely_as_with_their_parts_of_it():
    images = [prepared(1200, 1100, finer=FINER) for _ in range(2)]
    found = choose.choose(images, "", budget=256, allocator="auto", relevance="none")
    wanted = images[0].relevance("", budget=128, relevance="none").legible_scale
    assert all(torch.equal(one.relevance.legible_scale, wanted) for one in found)


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
    ("name", "wrong", "error"),
    [("suffix", 5, TypeError), ("answer_tokens", 0, ValueError), ("answer_tokens", "many", TypeError)],
)
def test_how_a_model_must_be_asked_is_checked(name, wrong, error):
    config = type("Config", (), {"texturevlm": {"suffix": "", "answer_tokens": 160}})
    assert (trained_as(config).suffix, trained_as(config).answer_tokens) == ("", 160)
    config.texturevlm = {name: wrong}
    with pytest.raises(error, match=f"^adapt: {name} in texturevlm of config.json must be .*got {wrong!r}"):
        trained_as(config)


def test_an_enlarged_image_can_be_shown_as_it_is():
    image = prepared(96, 160, finer=FINER)
    image.enlarge(False)
    assert image.times == 1 and image.texture.size == image.original.size
    image.enlarge(True)
    assert image.times == 2 and image.prepared.texture is image.texture
    others = Texture((torch.rand(1, 4, 96, 160),), ("red", "green", "blue", "labels"))
    assert PreparedImage(others, patch=32, device=torch.device("cpu"), finer=FINER).times == 1  # more than colours


def test_relevance_of_an_enlarged_image_goes_with_its_tokens():
    image = prepared(96, 160, finer=FINER)
    (found,) = choose.choose([image], "", budget=12, allocator="auto", relevance="none")
    given = image.relevance_as_given(found.relevance), image.as_given(found.allocation)
    assert given[0].size == given[1].size == (96, 160)
    there, here = expected_value(found.relevance, found.allocation), expected_value(*given)
    torch.testing.assert_close(here, there, atol=1e-4, rtol=1e-3)
