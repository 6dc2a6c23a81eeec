"""Looks that stop when the model is sure: what is read, how often, and what is appended."""

from dataclasses import replace

import pytest
import torch

from tests.ask import models
from tests.ask.test_videos import film
from texturevlm.ask.answer import AnswerFeatures, chance_of, features_of
from texturevlm.placement import Finer, TokenConfig
from texturevlm.video import clip
from texturevlm.vlm.trained import trained_as

QUESTION = models.QUESTION
OPTIONS = {"max_new_tokens": 4, "return_details": True}


def tokens(answer):
    return sum(one.tokens for one in answer.placements)


@pytest.fixture(scope="module")
def asked(qwen):
    return models.asked(qwen, budget=40, relevance="none")


@pytest.fixture(scope="module")
def page():
    return models.patterned(320, 320)


def test_a_sure_model_looks_once(asked, page):
    one = asked.ask(page, QUESTION, looks="auto", sure=1e-9, **OPTIONS)
    assert one.looks == 1 and tokens(one) <= 10
    assert 0 <= one.confidence <= 1
    plain = asked.ask(page, QUESTION, budget=10, **OPTIONS)
    assert one.text == plain.text and one.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    assert plain.looks == 1 and plain.confidence is None


def test_an_unsure_model_looks_again(asked, page):
    two = asked.ask(page, QUESTION, looks="auto", sure=1.0, **OPTIONS)
    assert two.looks == 2 and 10 < tokens(two) <= 40
    assert two.earlier.looks == 1 and tokens(two.earlier) <= 10 and two.earlier.earlier is None
    assert asked.ask(page, QUESTION, looks="auto", sure=1.0, max_new_tokens=4) == two.text
    assert list(asked.ask(page, QUESTION, looks="auto", sure=1.0, stream=True, max_new_tokens=4)) == [two.text]


def test_an_answer_after_two_looks_says_so(asked, page):
    assert asked.ask(page, QUESTION, looks=2, relevance="auto", **OPTIONS).looks == 2
    assert asked.ask(models.patterned(32, 32), QUESTION, looks=2, relevance="auto", **OPTIONS).looks == 1


def test_the_overview_is_not_read_again(asked, page, monkeypatch):
    """The tower and the language model see each visual token once."""
    adapter, seen = asked.adapter, []
    embed = type(adapter).embed

    def watched(self, views, **options):
        seen.append(sum(map(len, views)))
        return embed(self, views, **options)

    monkeypatch.setattr(type(adapter), "embed", watched)
    lengths = []
    language = adapter.language_of(adapter.model)
    hook = language.layers[0].register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    try:
        two = asked.ask(page, QUESTION, looks="auto", sure=1.0, **OPTIONS)
    finally:
        hook.remove()
    assert sum(seen) == tokens(two) and len(seen) == 2
    assert sum(length for length in lengths if length > 12) <= tokens(two) + 20


def test_each_look_shows_print_as_finely_as_its_budget_needs(asked, page, monkeypatch):
    """10 tokens, then 30: the relevance of the second look is that of 30 tokens."""
    adapter = asked.processor.adapter
    monkeypatch.setattr(adapter, "trained", replace(adapter.trained, finer=Finer(((10, 3.0), (30, 1.5)))))
    two = asked.ask(page, QUESTION, looks="auto", sure=1.0, **OPTIONS)
    scales = [one.placements[0].relevance.legible_scale for one in (two.earlier, two)]
    rest = 40 - tokens(two.earlier)
    times = 3.0 / Finer(((10, 3.0), (30, 1.5))).at(rest)
    torch.testing.assert_close(scales[1], scales[0] * times)
    assert times > 1.8


def test_the_second_look_goes_where_the_overview_is_not_legible(asked):
    """What is left is on the noisy half."""
    page = models.patterned(640, 640)
    two = asked.ask(page, QUESTION, looks="auto", sure=1.0, **OPTIONS)
    allocation = two.placements[0].given
    fine = allocation.valid[0] & (allocation.level[0] < allocation.level[0][allocation.valid[0]].max() - 0.5)
    assert fine.any() and float(allocation.centre[0, fine, 0].float().mean()) < 320


def test_several_images_and_questions(asked):
    images = [models.patterned(192, 192), models.patterned(160, 320, seed=3)]
    two = asked.ask(images, QUESTION, looks="auto", sure=1.0, **OPTIONS)
    assert len(two.placements) == 2 and tokens(two) <= 40
    both = asked.ask(images, [QUESTION, "what is there ?"], looks="auto", sure=1.0, max_new_tokens=4)
    assert both[0] == two.text and len(both) == 2


def test_a_video_in_looks(asked):
    one = asked.ask(film(), QUESTION, fps=2, looks="auto", sure=1e-9, **OPTIONS)
    two = asked.ask(film(), QUESTION, fps=2, looks="auto", sure=1.0, **OPTIONS)
    assert one.looks == 1 and tokens(one) <= 10 < tokens(two) <= 40 and two.looks == 2


def test_confidence_rises_with_its_features():
    good, bad = AnswerFeatures(-0.01, 0.05, 0.98), AnswerFeatures(-0.9, 1.5, 0.1)
    assert chance_of(good, None) > 0.9 > 0.2 > chance_of(bad, None)
    assert chance_of(good, (0, 0, 0, 0, 0)) == 0.5
    assert chance_of(AnswerFeatures(0, 0, 0, 1.0), (0.0, 0, 0, 0, -2.0)) == pytest.approx(1 / (1 + 7.389056), abs=1e-4)


def test_features_of_an_answer():
    """Three tokens of a vocabulary of two; the last one is behind the end."""
    from types import SimpleNamespace

    even, sure = torch.zeros(1, 2), torch.tensor([[0.0, 50.0]])
    found = SimpleNamespace(sequences=torch.tensor([[0, 1, 0]]), logits=(even, sure, even))
    features = features_of(found, [1], None, None)
    assert features.logprob == pytest.approx(-0.3466, abs=1e-3)
    assert features.entropy == pytest.approx(0.3466, abs=1e-3)
    assert features.margin == pytest.approx(0.0, abs=1e-6) and features.unreadable == 0


def test_a_calibration_is_part_of_a_checkpoint():
    config = type("Config", (), {"texturevlm": {"confidence": [1, 2, 3, 4, 5]}})
    assert trained_as(config).confidence == (1.0, 2.0, 3.0, 4.0, 5.0)
    config.texturevlm = {"confidence": [1, 2]}
    with pytest.raises(ValueError, match=r"confidence in texturevlm of config.json must be 5 numbers, got \[1, 2\]"):
        trained_as(config)


@pytest.mark.parametrize(
    "options, match",
    [
        ({"looks": "auto", "num_beams": 2}, "looks must be 1 or 2 with num_beams, got 'auto'"),
        ({"looks": "auto", "reduce": "fastv"}, "looks must be 1 or 2 with reduce, got 'auto'"),
        ({"looks": "auto", "sure": 2}, "sure must be"),
        ({"looks": 2, "sure": 0.9}, "ask: looks must be 'auto' with sure, got 2"),
        ({"looks": "auto", "relevance": "attention"}, "relevance 'attention' is the model's own"),
    ],
)
def test_bad_options(asked, page, options, match):
    with pytest.raises(ValueError, match=match):
        asked.ask(page, QUESTION, **options)


def test_a_family_without_it_says_so():
    model, processor = models.built("llava")
    from texturevlm.ask import VLM

    with pytest.raises(ValueError, match="looks must be 1 or 2 for llava, got 'auto'"):
        VLM(model, processor, looks="auto")


def test_levels_and_coordinates_are_those_asked_for(asked):
    """In one look, in two, and in a video; a typo is named before slow work."""
    page = models.patterned(640, 640)
    for given in ({"images": page}, {"images": film(), "fps": 2, "budget": 8}):
        for looks in ({"looks": 1}, {"looks": "auto", "sure": 1.0}):
            plain, native = (
                asked.ask(question=QUESTION, coordinates=one, **looks, **given, **OPTIONS) for one in ("fine", "native")
            )
            assert plain.logprobs[0] != pytest.approx(native.logprobs[0], abs=1e-4)
        with pytest.raises(ValueError, match="ask: levels must be one of joint, apart, causal, got 'casual'"):
            asked.ask(question=QUESTION, looks="auto", levels="casual", **given)
        with pytest.raises(ValueError, match="ask: coordinates must be one of fine, native, got 'crops'"):
            asked.ask(question=QUESTION, looks="auto", coordinates="crops", **given)
    looks = {"looks": "auto", "sure": 1.0, **OPTIONS}
    levels = [asked.ask(page, QUESTION, levels=one, **looks).logprobs[0] for one in ("joint", "apart", "causal")]
    assert len({round(one, 5) for one in levels}) == 3


def test_the_second_look_at_a_video_goes_where_the_first_is_not_legible(asked, monkeypatch):
    """What the first look made legible gets no second token, and what the model attended to gets more."""
    how = TokenConfig(relevance="none")
    frames = torch.zeros(2, 3, 256, 256)
    frames[:, :, :, :128] = (models.noise(256, 128) > 0.5).float()  # fine print on the left; nothing on the right
    moments = [clip.Moment.of([(frames[0] * 255).byte(), (frames[1] * 255).byte()], 0.0, 2)]
    (first,) = clip.choose_clip(moments, "", how.given(budget=8))
    found = {}
    for corner in (0, 192):
        attention = torch.zeros(1, 64, 64)
        attention[:, corner // 4 : corner // 4 + 16, :16] = 1 / 256
        seen = {0.0: clip.MomentEvidence(first.allocation, attention)}
        (again,) = clip.choose_clip(moments, "", how.given(budget=12), seen=seen)
        scale = clip.delivered_scale(again.allocation, (8, 8))[0]
        found[corner] = float(scale[corner // 32, 0])
        other = float(scale[(192 - corner) // 32, 0])
        assert found[corner] <= other and float(again.allocation.centre[0, again.allocation.valid[0], 0].max()) < 192
    plain = [clip.Moment.of([torch.full((3, 256, 256), 99, dtype=torch.uint8)], 0.0, 2)]
    (first,) = clip.choose_clip(plain, "", how.given(budget=64))
    legible = {0.0: clip.MomentEvidence(first.allocation, torch.full((1, 8, 8), 1 / 64))}
    assert clip.choose_clip(plain, "", how.given(budget=12), seen=legible) == []
