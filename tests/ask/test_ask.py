"""Asking: the same answer however it is fetched, one budget for all, what an image says found out once."""

import warnings

import numpy as np
import pytest
import torch

from tests.ask import models
from tests.ask.models import QUESTION
from tests.vlm import small
from texturevlm import vlm
from texturevlm.allocate import ALLOCATORS
from texturevlm.ask import session as sessions
from texturevlm.placement import in_slots, placement
from texturevlm.placement.placement import MIN_CHANCE, joined, place_together
from texturevlm.relevance import AttentionScorer, WordsScorer, find_relevance, find_scorer, prepared
from texturevlm.relevance.ocr import Page, Word

SHORT = {"max_new_tokens": 5}


def test_an_answer_is_what_the_adapter_generates_from_what_was_chosen(adapter):
    asked = models.asked(adapter, budget=14, relevance="none")
    session = asked.prepare(models.noise(150, 210))
    (chosen,) = session.choose(QUESTION)
    ids = adapter.generate(QUESTION, session.pictures[0].texture, chosen.allocation, do_sample=False, **SHORT)
    assert asked.ask(models.noise(150, 210), QUESTION, **SHORT) == adapter.decode(ids)[0].strip()
    assert adapter.decode(ids)[0].strip()


@pytest.mark.parametrize("mark", ["<image>", "<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>"])
def test_a_placeholder_in_a_question_is_text(adapter, mark):
    """It goes through the chat template like any other, alone and among messages."""
    asked = models.asked(adapter, budget=6, relevance="none")
    image, question = models.noise(64, 64), f"what is {mark} ?"
    prompts = []
    spelled = type(adapter).spell

    def spell(self, prompt, pictures, fillings):
        ids = spelled(self, prompt, pictures, fillings)
        prompts.append(ids)
        return ids

    messages = [
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]},
    ]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(adapter), "spell", spell)
        assert asked.ask(image, question, **SHORT) == asked.ask(None, messages, **SHORT)
    for ids in prompts:
        words = adapter.tokenizer.convert_ids_to_tokens(ids)
        assert words[:2] == ["user", ":"] and words[-1] == ":"  # of the template
        assert words.count(small.WORDS[small.IMAGE]) == adapter.length(4 if adapter.side == 32 else 6)


def test_sampling_beams_and_other_options_reach_generate(qwen):
    asked = models.asked(qwen, budget=8, relevance="none")
    image = models.noise(100, 100)
    assert asked.ask(image, QUESTION, num_beams=3, **SHORT)
    torch.manual_seed(0)
    drawn = {asked.ask(image, QUESTION, do_sample=True, temperature=3.0, **SHORT) for _ in range(4)}
    assert len(drawn) > 1
    qwen.model.generation_config.temperature = 0.7  # as checkpoints have it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asked.ask(image, QUESTION, **SHORT)
    qwen.model.generation_config.temperature = None


def test_answers_depend_on_the_image(adapter):
    """Or the same answer elsewhere would prove nothing."""
    asked = models.asked(adapter, budget=14, relevance="none")
    assert len({asked.ask(models.noise(150, 210, seed=seed), QUESTION, **SHORT) for seed in range(5)}) >= 3


def test_images_share_one_budget_and_the_fuller_one_gets_more(qwen):
    asked = models.asked(qwen, budget=40, relevance="none")
    card, page = torch.full((3, 200, 200), 0.5), models.noise(400, 300)
    card[:, 90:110, 90:110] = 0.0
    session = asked.prepare([card, page])
    first, second = (one.tokens for one in session.choose(QUESTION))
    assert first + second <= 40 and second > first > 0
    assert isinstance(session.ask(QUESTION, **SHORT), str)
    assert asked.ask([card, page], QUESTION, **SHORT) == session.ask(QUESTION, **SHORT)


def test_images_are_weighed_by_the_chance_that_the_question_is_about_them(qwen, monkeypatch):
    page = Page((Word("total", (20, 20, 60, 32), 0, 1.0), Word("42", (70, 20, 90, 32), 0, 1.0)), (320, 320))
    session = models.asked(qwen, budget=60).prepare([models.noise(320, 320), models.noise(320, 320)])
    for picture, own in zip(session.prepared(session.model.config), (Page((), (320, 320)), page)):
        picture.memo.keep(find_scorer("ask", "words"), (own,))
    weighed = []

    share_out = placement.share_out
    watched = lambda items, **how: weighed.append([item.worth for item in items]) or share_out(items, **how)  # noqa: E731
    monkeypatch.setattr(placement, "share_out", watched)
    session.choose("what is the total ?", relevance="words")
    session.choose("what is the total ?", relevance="none")
    assert weighed[0][0] == MIN_CHANCE < 0.5 < weighed[0][1]
    assert weighed[1] == [1.0, 1.0]


def test_several_questions_read_an_image_once(qwen, monkeypatch):
    read, mapped = [], []
    words = (Word("total", (10, 10, 60, 22), 0, 1.0), Word("42", (70, 10, 90, 22), 0, 1.0))
    image_maps = prepared.image_maps

    def reading(image):
        read.append(image.shape)
        return Page(words, (160, 160))

    def mapping(texture, *, patch):
        mapped.append(patch)
        return image_maps(texture, patch=patch)

    monkeypatch.setattr("texturevlm.relevance.words.read_page", reading)
    monkeypatch.setattr(prepared, "image_maps", mapping)
    session = models.asked(qwen, budget=8, relevance="words").prepare(models.patterned(160, 160))
    maps = [session.choose(question)[0].relevance for question in ("what is the total ?", "who signed?", "")]
    assert [one.scorer for one in maps] == ["words", "words", "none"]
    assert len(read) == 1 and mapped == [32]
    assert float((maps[0].mass - maps[1].mass).abs().max()) > 0


def test_the_maps_are_those_of_choose_tokens(qwen):
    page = Page((Word("total", (10, 10, 60, 22), 0, 1.0),), (160, 160))
    attention = torch.rand(1, 5, 5, generator=torch.Generator().manual_seed(0))
    session = models.asked(qwen, budget=8).prepare(models.patterned(160, 160))
    (picture,) = session.pictures
    for scorer in ("none", WordsScorer(page), AttentionScorer(attention)):
        wanted = find_relevance(picture.texture, QUESTION, relevance=scorer)
        (placement,) = session.choose(QUESTION, relevance=scorer, turn=0.0)
        found = placement.relevance
        assert found.scorer == wanted.scorer
        for name in ("mass", "legible_scale", "ink"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), (scorer, name)


@pytest.mark.parametrize("size", [(1, 1), (10, 10), (5, 300), (33, 64)])
def test_a_budget_beyond_the_grid_and_an_image_below_one_token(adapter, size):
    """Answered, and captured or not the same."""
    image, found = models.noise(*size), []
    for captured in (False, True):
        asked = models.asked(adapter, budget=30, relevance="none", captured=captured)
        (chosen,) = asked.prepare(image).choose(QUESTION)
        assert 0 < chosen.tokens <= 30
        found.append(
            [asked.ask(image, QUESTION, **SHORT), asked.ask(image, QUESTION, looks=2, relevance="auto", **SHORT)]
        )
    assert found[0] == found[1]


def test_look_draws_what_is_chosen(qwen):
    asked = models.asked(qwen, budget=9, relevance="none")
    alone, both = asked.look(models.noise(80, 120), QUESTION), asked.look([models.noise(80, 120)] * 2, QUESTION)
    assert alone.width == both.width and both.height == 2 * alone.height
    assert np.asarray(alone).std() > 20


def test_a_model_in_bfloat16_and_a_scene_that_follows_it():
    adapter = vlm.adapt(*models.built("qwen3_vl"))
    asked = models.asked(adapter, budget=9, relevance="none")
    session = asked.prepare(models.noise(80, 120).double())
    first = session.ask(QUESTION, **SHORT)
    adapter.model.to(torch.bfloat16)
    assert isinstance(session.ask(QUESTION, **SHORT), str)
    adapter.model.to(torch.float32)
    assert isinstance(first, str)
    moved = session.pictures[0].to(torch.device("meta"))
    assert moved.texture.device.type == "meta" and "maps" not in moved.memo.__dict__


def test_joined_keeps_every_used_footprint_first(qwen):
    session = models.asked(qwen, budget=9, relevance="none").prepare(models.noise(64, 64))
    (few,) = session.choose(QUESTION)
    both = joined(few.given, few.given)
    used = few.tokens
    assert used == 4 and both.budget == 18
    assert both.valid[0].tolist() == [True] * 8 + [False] * 10
    assert torch.equal(both.boxes[0, :4], both.boxes[0, 4:8])


@pytest.mark.parametrize(("slots", "used"), [(9, 4), (4, 4), (12, 4)])
def test_in_slots_keeps_what_is_used(qwen, slots, used):
    (chosen,) = models.asked(qwen, budget=9, relevance="none").prepare(models.noise(64, 64)).choose(QUESTION)
    found = in_slots(chosen.given, slots)
    assert found.budget == slots and int(found.valid.sum()) == used
    assert torch.equal(found.boxes[0, :4], chosen.given.boxes[0, :4])
    with pytest.raises(ValueError, match="must use at most 3 tokens, got 4"):
        in_slots(chosen.given, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relevance": "smell"}, "relevance must be one of auto, words"),
        ({"relevance": ""}, "relevance must be one of auto, words, .*got ''"),
        ({"relevance": "attention"}, "looks=2"),
        ({"relevance": "words", "looks": 2}, "relevance with looks=2 must be one of auto, attention, got 'words'"),
        (
            {"relevance": "embedding"},
            "must be one of auto, words, scout, prior, channels, attention, none, model, got 'embedding'",
        ),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
    ],
)
def test_clear_errors(qwen, options, message):
    with pytest.raises(ValueError, match=message):
        models.asked(qwen, budget=9).ask(models.noise(64, 64), QUESTION, **options)


def test_clear_errors_about_images_and_budgets(qwen):
    asked = models.asked(qwen, budget=2, relevance="none")
    with pytest.raises(ValueError, match="images must be at least one"):
        asked.ask([], QUESTION)
    with pytest.raises(ValueError, match="batch of 2"):
        asked.ask([torch.rand(2, 3, 8, 8)] * 2, QUESTION)
    with pytest.raises(ValueError, match="red, green and blue"):
        asked.ask(torch.rand(5, 8, 8), QUESTION)
    with pytest.raises(ValueError, match=r"^ask: budget for 3 images must be at least 3, got 2"):
        asked.ask([models.noise(64, 64)] * 3, QUESTION)
    with pytest.raises(ValueError, match="budget must be at least 1, got 0"):
        models.asked(qwen, budget=0)
    with pytest.raises(TypeError, match="budget must be a whole number, got 'many'"):
        models.asked(qwen, budget="many")
    with pytest.raises(ValueError, match="VLM: processor must have one budget, got"):
        models.asked(qwen, budget=(4, 9))  # a pair is for training


def test_weighted_tokens_are_the_models_own_grid_weighted_by_relevance(qwen):
    image = models.patterned(160, 192)
    asked = models.asked(qwen, budget=3, relevance="none", tokens="weighted")
    session = asked.prepare(image)
    (chosen,) = session.choose(QUESTION)
    texture = session.pictures[0].texture
    assert chosen.tokens == 5 * 6  # whatever the budget
    assert float(chosen.weight.max()) == 1 and float(chosen.weight.min()) < 0.5
    mean = vlm.grid_weights(qwen, texture, chosen.relevance.mass)
    assert torch.allclose(chosen.weight, mean / mean.amax())
    wanted = qwen.generate(QUESTION, texture, chosen.allocation, weights=chosen.weight, do_sample=False, **SHORT)
    assert session.ask(QUESTION, **SHORT) == qwen.decode(wanted)[0].strip()


def test_weights_change_what_the_model_computes(qwen):
    texture = models.patterned(160, 192).mipmapped()
    grid = vlm.own_grid(qwen, texture)
    weights = torch.linspace(0, 1, 30)[None]
    plain, soft = (qwen.prepare(QUESTION, texture, grid, weights=one) for one in (None, weights))
    with torch.no_grad():
        assert (qwen.model(**plain).logits - qwen.model(**soft).logits).abs().max() > 1e-3


def test_merged_tokens_keep_the_budget_and_change_what_is_too_coarse(qwen):
    asked = models.asked(qwen, budget=9, relevance="none", allocator="dag")
    session = asked.prepare(models.patterned(320, 384))
    (plain,) = session.choose(QUESTION)
    how = asked.config_for(tokens="merged")
    (merged,) = session.request(QUESTION, QUESTION, how, apart=True).placements
    assert torch.equal(merged.given.boxes, plain.given.boxes) and plain.tokens == 9
    assert plain.pixels is None and merged.pixels.shape == (1, 9, 3, qwen.side, qwen.side)
    given = [session.request(QUESTION, QUESTION, one, apart=True) for one in (asked.config_for(), how)]
    inputs = [qwen.prepare(QUESTION, one.textures, [one.placements[0].allocation]) for one in given[:1]]
    inputs += [qwen.prepare(QUESTION, given[1].textures, [merged.allocation], pixels=[merged.pixels])]
    assert torch.equal(*(one["input_ids"] for one in inputs))
    assert not torch.equal(*(one["pixel_values"] for one in inputs))
    wanted = qwen.decode(
        qwen.model.generate(**inputs[1], do_sample=False, **SHORT)[:, inputs[1]["input_ids"].shape[1] :]
    )
    assert session.ask(QUESTION, tokens="merged", **SHORT) == wanted[0].strip()


def test_weighted_tokens_refuse_a_second_look_and_other_words(qwen):
    with pytest.raises(ValueError, match="VLM: tokens must be one of chosen, weighted, merged, got 'soft'"):
        models.asked(qwen, tokens="soft")
    with pytest.raises(ValueError, match="tokens with looks=2 must be one of chosen, got 'weighted'"):
        models.asked(qwen, tokens="weighted").ask(models.noise(64, 64), QUESTION, looks=2)


def test_a_look_after_an_answer_shows_what_was_chosen_then(qwen, monkeypatch):
    asked, image = models.asked(qwen, budget=9, relevance="none"), models.noise(90, 120)
    session, runs = asked.prepare(image), []
    watched = lambda *given, **how: runs.append(given[1]) or place_together(*given, **how)  # noqa: E731
    monkeypatch.setattr(sessions, "place_together", watched)
    session.ask(QUESTION, **SHORT)
    (first,) = session.choose(QUESTION)
    session.look(QUESTION)
    assert runs == [QUESTION]
    (other,) = session.choose(QUESTION, budget=4)
    assert other.given.budget == 4 and first.given.budget == 9 and len(runs) == 2
    session.choose("and there ?", budget=4)
    for _ in range(2):  # a function may say something else each time
        session.choose(QUESTION, allocator=lambda *given, **how: ALLOCATORS["fit"](*given, **how))
    assert runs == [QUESTION, QUESTION, "and there ?", QUESTION, QUESTION]


def test_what_a_caller_does_to_a_choice_is_not_remembered(qwen):
    session = models.asked(qwen, budget=4, relevance="none").prepare(models.noise(90, 120))
    session.ask(QUESTION, **SHORT)
    session.choose(QUESTION).clear()
    assert len(session.choose(QUESTION)) == 1
