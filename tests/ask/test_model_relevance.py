"""relevance="model": the model's attention to a coarse view decides where all tokens go."""

import pytest

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION
from tests.vlm import small
from texturevlm.ask import VLM
from texturevlm.ask.session import COARSE_VIEW


@pytest.mark.parametrize("side", ["left", "right"])
def test_all_tokens_follow_the_attention(monkeypatch, side):
    asked = VLM(*models.built("qwen3_vl"), budget=24, relevance="model")
    session = asked.prepare(models.noise(512, 512))
    seen = []

    def pointing(adapter, question, textures, allocations):
        (allocation,) = allocations
        seen.append(int(allocation.valid.sum()))
        there = allocation.centre[0, :, 0] < 256 if side == "left" else allocation.centre[0, :, 0] > 256
        found = (there & allocation.valid[0]).float()
        return [found / found.sum()]

    monkeypatch.setattr("texturevlm.ask.session.question_attention", pointing)
    (chosen,) = session.choose(QUESTION)
    allocation = chosen.allocation
    assert 0.5 * COARSE_VIEW < seen[0] <= COARSE_VIEW and int(allocation.valid.sum()) <= 24
    mass = chosen.relevance.mass[0]
    left = float(mass[:, : mass.shape[1] // 2].sum())
    assert (left > 0.8) if side == "left" else (left < 0.2)


def test_the_real_attention_of_a_small_model_is_read_for_every_question():
    asked = VLM(*models.built("qwen3_vl"), budget=12, relevance="model")
    session = asked.prepare([models.noise(300, 200), models.noise(150, 150, seed=1)])
    chosen = session.choose(QUESTION)
    assert {one.relevance.scorer for one in chosen} == {"attention"}
    assert sum(int(one.allocation.valid.sum()) for one in chosen) <= 12
    assert isinstance(session.ask(QUESTION, max_new_tokens=3), str)


def test_it_is_refused_by_name_where_there_is_no_model_or_no_attention(tmp_path):
    model, processor = models.built("qwen3_vl")
    attached = tv.attach(model, processor, relevance="model", budget=12)
    with pytest.raises(ValueError, match=r"relevance must need no model, which `VLM\.ask` has, got 'model'"):
        attached(text=[f"{attached.image_token} {QUESTION}"], images=[[models.noise(64, 64)]])
    tv.detach(attached)
    with pytest.raises(ValueError, match="tokens with relevance='model' must be one of chosen, got 'weighted'"):
        asked = VLM(*models.built("qwen3_vl"), budget=12, tokens="weighted")
        asked.ask(models.noise(64, 64), QUESTION, relevance="model")
    small.MORE["gemma3"]()[0].config.save_pretrained(tmp_path)  # there are no weights
    with pytest.raises(ValueError, match="load_vlm: relevance must not be 'model' for gemma3"):
        tv.load_vlm(tmp_path, device="cpu", relevance="model")
    with pytest.raises(ValueError, match=r"relevance must be one of auto, words, .*, got 'model'"):
        tv.choose_tokens(tv.Texture.open(models.noise(64, 64)), relevance="model")
