"""relevance="model": the model's attention to a coarse view decides where all tokens go."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION, conversation, inputs_of
from tests.vlm import small
from texturevlm.ask import VLM
from texturevlm.ask.attention import COARSE_VIEW
from texturevlm.ask.processor import TextureProcessor
from texturevlm.placement.finer import Finer
from texturevlm.vlm.prompts import PromptImage


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

    monkeypatch.setattr("texturevlm.ask.attention.question_attention", pointing)
    (chosen,) = session.choose(QUESTION)
    allocation = chosen.given
    assert 0.5 * COARSE_VIEW < seen[0] <= COARSE_VIEW and int(allocation.valid.sum()) <= 24
    mass = chosen.relevance.mass[0]
    left = float(mass[:, : mass.shape[1] // 2].sum())
    assert (left > 0.8) if side == "left" else (left < 0.2)


@pytest.mark.parametrize("looks", [1, 2])
def test_print_is_shown_as_finely_as_the_tokens_that_are_spent_need(monkeypatch, looks):
    """By attention: all tokens behind a coarse view, or those that are left after an overview."""
    asked = VLM(*models.built("qwen3_vl"), budget=40, relevance="model" if looks == 1 else "auto")
    finer = Finer(((10, 3.0), (160, 1.5)))
    adapter = asked.processor.adapter
    monkeypatch.setattr(adapter, "trained", replace(adapter.trained, finer=finer))
    session = asked.prepare(models.noise(512, 512))
    seen = []

    def even(adapter, question, textures, allocations):
        seen.append(int(allocations[0].valid.sum()))
        found = allocations[0].valid[0].float()
        return [found / found.sum()]

    monkeypatch.setattr("texturevlm.ask.attention.question_attention", even)
    scales = []
    for budget in (40, 160):
        (chosen,) = session.choose(QUESTION, looks=looks, budget=budget)
        spent = budget if looks == 1 else budget - seen[-1]
        scales.append(chosen.relevance.legible_scale * finer.at(spent))
    torch.testing.assert_close(*scales)


def test_the_real_attention_of_a_small_model_is_read_for_every_question():
    asked = VLM(*models.built("qwen3_vl"), budget=12, relevance="model")
    session = asked.prepare([models.noise(300, 200), models.noise(150, 150, seed=1)])
    chosen = session.choose(QUESTION)
    assert {one.relevance.scorer for one in chosen} == {"attention"}
    assert sum(one.tokens for one in chosen) <= 12
    assert isinstance(session.ask(QUESTION, max_new_tokens=3), str)


class _Processed(torch.utils.data.Dataset):
    """The processor inside the data set."""

    def __init__(self, processor):
        self.processor = processor

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return dict(inputs_of(self.processor, conversation(models.noise(300, 200))))


def test_under_attach_the_model_chooses_as_in_ask():
    model, processor = models.built("qwen3_vl")
    asked = VLM(model, processor, budget=12, relevance="model")
    (chosen,) = asked.prepare(models.noise(300, 200)).choose(QUESTION)
    attached = asked.processor
    found = inputs_of(attached, conversation(models.noise(300, 200)))
    ((view,),) = asked.adapter.groups(PromptImage(tv.Texture.open(models.noise(300, 200)).mipmapped(), chosen.given))
    assert torch.allclose(found["pixel_values"], asked.adapter.pixel_inputs([view])["pixel_values"], atol=1e-5)
    plain = tv.attach(*models.built("qwen3_vl"), budget=12, relevance="none")
    other = inputs_of(plain, conversation(models.noise(300, 200)))
    assert not torch.allclose(found["pixel_values"], other["pixel_values"], atol=1e-5)


def test_a_worker_process_has_no_model_to_ask():
    attached = tv.attach(*models.built("qwen3_vl"), budget=12, relevance="model")
    with pytest.raises(ValueError, match=r"relevance 'model' asks the attached model, which a worker process does not"):
        list(DataLoader(_Processed(attached), num_workers=1, multiprocessing_context="fork", timeout=120))


def test_it_is_refused_by_name_where_there_is_no_model_or_no_attention(tmp_path):
    model, processor = models.built("qwen3_vl")
    alone = TextureProcessor(processor, model.config, relevance="model", budget=12)
    with pytest.raises(ValueError, match="relevance 'model' asks the attached model, got none"):
        inputs_of(alone, conversation(models.noise(64, 64)))
    with pytest.raises(ValueError, match="relevance must not be 'model' for gemma3"):
        TextureProcessor(processor, small.MORE["gemma3"]()[0].config, relevance="model")
    with pytest.raises(ValueError, match="tokens with relevance='model' must be one of chosen, got 'weighted'"):
        asked = VLM(*models.built("qwen3_vl"), budget=12, tokens="weighted")
        asked.ask(models.noise(64, 64), QUESTION, relevance="model")
    small.MORE["gemma3"]()[0].config.save_pretrained(tmp_path)  # there are no weights
    with pytest.raises(ValueError, match="load_vlm: relevance must not be 'model' for gemma3"):
        tv.load_vlm(tmp_path, device="cpu", relevance="model")
    with pytest.raises(ValueError, match=r"relevance must be one of auto, words, .*, got 'model', a model's own atten"):
        tv.choose_tokens(tv.Texture.open(models.noise(64, 64)), relevance="model")
