"""Faults of 1a62bb3 that came from choosing tokens in several ways (issue 36, section 5); each test fails there."""

from dataclasses import replace

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION, conversation
from tests.golden import pictures
from tests.pages.papers import WORDS, paper, pdf_of
from texturevlm import cli
from texturevlm.ask import VLM, processor
from texturevlm.channels import structure, text
from texturevlm.placement import Finer
from texturevlm.relevance import orientation
from texturevlm.scout import load_scout
from texturevlm.vlm.adapter import Adapter

SHORT = {"max_new_tokens": 3, "return_details": True}


@pytest.fixture(scope="module")
def stamped():
    """A page with print that is turned by 30° on its lower part."""
    return pictures.stamped()


@pytest.fixture
def asked():
    return VLM(*models.built("qwen3_vl"), budget=160, relevance="none", turn="auto")


def finer(asked):
    """The model as one that wants finer print, so that small pages are enlarged."""
    adapter = asked.processor.adapter
    adapter.trained = replace(adapter.trained, finer=Finer(((64, 2.0), (256, 1.5))))
    return asked


def turned(allocation):
    return int((allocation.valid & ~allocation.upright).sum())


def test_1_looks_that_stop_read_turned_regions(asked, stamped):
    looked = asked.ask(stamped, QUESTION, looks="auto", sure=1e-9, **SHORT)
    plain = asked.ask(stamped, QUESTION, budget=40, **SHORT)
    assert looked.looks == 1 and turned(looked.placements[0].given) == turned(plain.placements[0].given) > 0
    assert looked.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
    twice = asked.ask(stamped, QUESTION, looks="auto", sure=1.0, **SHORT)
    assert twice.looks == 2 and turned(twice.placements[0].allocation) > turned(looked.placements[0].allocation)


@pytest.mark.parametrize("options", [{"looks": 2, "relevance": "auto"}, {"relevance": "model"}, {"looks": "auto"}])
def test_2_what_the_model_saw_is_drawn_and_nothing_runs_again(asked, stamped, monkeypatch, options):
    session, drawn = asked.prepare(stamped), []
    answer = session.ask(QUESTION, **options, **SHORT)
    monkeypatch.setattr("texturevlm.ask.attention.question_attention", None)
    monkeypatch.setattr("texturevlm.ask.session.place_together", None)
    monkeypatch.setattr("texturevlm.ask.session.draw", lambda placements, *said: drawn.extend(placements))
    session.look(QUESTION, **options)
    assert all(mine is read for mine, read in zip(drawn, answer.placements, strict=True))
    assert turned(drawn[0].allocation) > 0


def test_5_weighted_tokens_are_the_models_own_grid_over_the_image_as_it_is(asked, stamped):
    session = finer(asked).prepare(stamped)
    (grid,) = session.choose(QUESTION, tokens="weighted")
    assert grid.picture.texture.size == grid.given.size == (877, 620) and turned(grid.allocation) == 0
    (after,), (alone,) = session.choose(QUESTION), finer(asked).prepare(stamped).choose(QUESTION)
    assert turned(alone.allocation) > 0 and torch.equal(after.allocation.ddx, alone.allocation.ddx)


def test_7_the_scout_reads_a_turned_image_once(monkeypatch):
    scout, read = load_scout(), []
    reading = scout.read
    monkeypatch.setattr(scout, "read", lambda texture, **how: read.append(texture.size) or reading(texture, **how))
    page = tv.Texture.open(pictures.askew())
    tv.choose_tokens(page, "What is the total?", budget=40, relevance="scout", turn="auto")
    assert len(read) == 1


def test_7_the_maps_make_grey_once_per_level(monkeypatch):
    seen, luma = [], structure.luma
    for module in (structure, text, orientation):
        monkeypatch.setattr(module, "luma", lambda image: seen.append(image.shape) or luma(image))
    tv.place(pictures.half(), "What is the total?", tv.TokenConfig(40, relevance="scout"))
    assert len(seen) == len(set(seen))


def test_7_a_model_has_an_adapter_for_its_hooks_its_processor_and_itself(monkeypatch):
    made, begin = [], Adapter.__init__
    monkeypatch.setattr(Adapter, "__init__", lambda self, *given: made.append(self) or begin(self, *given))
    model, given = models.built("qwen3_vl")
    made.clear()
    tv.VLM(model, tv.attach(model, given))
    assert len(made) == 3


def test_8_of_a_longer_conversation_the_last_question_is_asked(monkeypatch):
    network, given = models.built("qwen3_vl")
    found = processor.TextureProcessor(given, network.config, budget=4, relevance="none")
    first = found.apply_chat_template(conversation(models.picture(64, 64), question="one?"), tokenize=False)
    longer = [*conversation(models.picture(64, 64), question="one?"), {"role": "assistant", "content": "4 2"}]
    template = found.chat_template
    longer = found.tokenizer.apply_chat_template(
        [*longer, *conversation(question="two?")], chat_template=template, tokenize=False
    )
    assert longer.startswith(first)
    asked, place_together = [], processor.place_together
    watched = lambda placed, question, how: asked.append(question) or place_together(placed, question, how)  # noqa: E731
    monkeypatch.setattr(processor, "place_together", watched)
    for words in (first, f"{first} 4 2", longer):
        found(text=words, images=[models.picture(64, 64)] * words.count("<|image_pad|>"))
    assert asked == ["one?", "one?", ""]


def test_10_footprints_of_an_answer_lie_in_the_image_that_was_given():
    asked = VLM(*models.built("qwen3_vl"), budget=24, relevance="none", turn=90)
    upright = paper(WORDS[0])
    lying = upright.rotate(-90, expand=True)
    assert asked.ask(lying, QUESTION, **SHORT).placements[0].given.size == lying.size[::-1]
    (page,) = asked.ask(pdf_of([lying]), QUESTION, **SHORT).placements
    assert page.given.size[0] > page.given.size[1] and page.given.size == page.picture.original.size
    clip = torch.rand(3, 3, 96, 64)
    assert asked.ask(clip, QUESTION, fps=2, **SHORT).placements[0].given.size == (96, 64)


def test_12_a_fault_of_ours_looks_like_one(monkeypatch, capsys):
    def fault(options):
        raise TypeError("'NoneType' object is not subscriptable")

    monkeypatch.setattr("texturevlm.commands.doctor._doctor", fault)
    with pytest.raises(TypeError, match="not subscriptable"):
        cli.main(["doctor"])
    wrong = ["look", str(pictures.INVOICE), "--explain"]
    assert cli.main(wrong) == 2
    assert capsys.readouterr().err == "texturevlm look: --explain needs --relevance channels, got none\n"
    with pytest.raises(ValueError, match="--explain needs"):
        cli.main([*wrong, "--traceback"])
