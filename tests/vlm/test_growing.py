"""Tokens that are appended to a cache, against one prefill of the same tokens."""

from dataclasses import replace

import pytest
import torch

from tests.vlm import small
from texturevlm import vlm
from texturevlm.types import COLUMNS
from texturevlm.vlm.growing import GrowingPrompt
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import still_views

QUESTION = "what is the total ?"


@pytest.fixture(params=[*small.BUILDERS, "qwen2_vl", "qwen3_vl_moe"], scope="module")
def adapter(request):
    return vlm.adapt(*{**small.BUILDERS, **small.MORE}[request.param]())


def together(*parts):
    columns = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in COLUMNS}
    return replace(parts[0], **columns)


def looks(adapter):
    """An image, a coarse grid over it, and fine tokens of a part."""
    side = adapter.side
    texture = small.picture(4 * side, 6 * side)
    coarse = small.full_grid(texture, side, scale=2.0)
    fine = small.full_grid(texture, side).each(lambda column: column[:, [0, 1, 6, 7, 13]])
    return texture, coarse, fine


def parts_of(adapter, ids):
    """The ids up to the last visual token, and those behind it."""
    last = max(index for index, one in enumerate(ids) if one in adapter.visual_ids)
    return ids[: last + 1], ids[last + 1 :]


@torch.no_grad()
def logits_behind(prompt, ids):
    """(1, V), of the token behind these ids; the cache stays as it was."""
    read, tail = len(prompt.ids), torch.arange(len(ids)) + prompt.next
    hidden = prompt._forward(ids, tail.to(prompt.position).expand(3, 1, -1), []).last_hidden_state[:, -1:]
    prompt.crop(read)
    return prompt.adapter.model.lm_head(hidden)[:, 0]


def view_of(adapter, texture, allocation, levels):
    (view,) = still_views("prepare", PromptImage(texture, allocation), adapter.side, levels=levels)
    return view


def grown(adapter, texture, coarse, fine, levels, *, wrong=False):
    """The logits behind the question, the fine tokens appended after the coarse ones."""
    view, more = (view_of(adapter, texture, one, levels) for one in (coarse, fine))
    ids = adapter.spell(QUESTION, [PromptImage(texture, coarse)], [adapter.filling([view], 0)])
    head, tail = parts_of(adapter, ids)
    prompt = GrowingPrompt(adapter)
    prompt.read(head, [view])
    before = logits_behind(prompt, tail)
    assert torch.equal(before, logits_behind(prompt, tail))  # the cache is as it was
    if wrong:
        prompt.starts[0] = prompt.starts[0] + 1
    prompt.look_closer(0, more)
    return before, logits_behind(prompt, tail), prompt


@torch.no_grad()
def test_appending_equals_one_prefill(adapter):
    """With levels apart and coarse before fine."""
    texture, coarse, fine = looks(adapter)
    before, found, prompt = grown(adapter, texture, coarse, fine, "apart")
    once = adapter.prepare(QUESTION, texture, together(coarse, fine), levels="apart")
    wanted = adapter.model(**once).logits[:, -1]
    assert (found - wanted).abs().max() < 2e-5 * wanted.abs().max()
    alone = adapter.model(**adapter.prepare(QUESTION, texture, coarse, levels="apart")).logits[:, -1]
    assert (before - alone).abs().max() < 2e-5 * alone.abs().max()
    assert (found - before).abs().max() > 1e-2  # the tokens matter,
    _, moved, _ = grown(adapter, texture, coarse, fine, "apart", wrong=True)
    assert (moved - wanted).abs().max() > 1e-3  # and so do their places
    assert prompt.ids == once["input_ids"][0, : len(prompt.ids)].tolist()


@torch.no_grad()
def test_an_answer_leaves_the_cache_as_it_was(adapter):
    texture, coarse, fine = looks(adapter)
    *_, prompt = grown(adapter, texture, coarse, fine, "apart")
    ids = adapter.spell(QUESTION, [PromptImage(texture, coarse)], [adapter.image_filling(coarse.budget)])
    _, tail = parts_of(adapter, ids)
    options = {"max_new_tokens": 6, "do_sample": False}
    found = prompt.answer(tail, **options)
    assert torch.equal(found, prompt.answer(tail, **options))
    once = adapter.prepare(QUESTION, texture, together(coarse, fine), levels="apart")
    wanted = adapter.model.generate(**once, **options)[:, once["input_ids"].shape[1] :]
    assert torch.equal(found, wanted)


@torch.no_grad()
def test_text_and_pictures_in_several_pieces(adapter):
    """Two images read one after the other equal both at once."""
    texture, coarse, fine = looks(adapter)
    views = [view_of(adapter, texture, one, "joint") for one in (coarse, fine)]
    ids = adapter.spell(QUESTION, [PromptImage(texture, coarse)] * 2, [adapter.filling([view], 0) for view in views])
    inputs = adapter.assemble([ids], views)
    first = ids.index(small.VISION_END) + 1
    head, tail = parts_of(adapter, ids[first:])
    prompt = GrowingPrompt(adapter)
    prompt.read(ids[:first], views[:1])
    prompt.read(head, views[1:])
    wanted = adapter.model(**inputs).logits[:, -1]
    assert (logits_behind(prompt, tail) - wanted).abs().max() < 2e-5 * wanted.abs().max()


@torch.no_grad()
def test_causal_levels_append_as_one_prefill():
    """Finer tokens attend to coarser ones in the tower; what was encoded does not change."""
    adapter = vlm.adapt(*small.qwen3_vl())
    texture, coarse, fine = looks(adapter)
    first, more = (view_of(adapter, texture, one, "causal") for one in (coarse, fine))
    ids = adapter.spell(QUESTION, [PromptImage(texture, coarse)], [adapter.filling([first], 0)])
    head, tail = parts_of(adapter, ids)
    wanted = adapter.model(**adapter.prepare(QUESTION, texture, together(coarse, fine), levels="causal")).logits[:, -1]
    found = []
    for beside in (first, None):
        prompt = GrowingPrompt(adapter)
        prompt.read(head, [first])
        prompt.look_closer(0, more, beside=beside)
        found.append((logits_behind(prompt, tail) - wanted).abs().max() / wanted.abs().max())
    assert found[0] < 2e-5 and found[1] > 1e-3  # without the coarse ones beside them they are others


@torch.no_grad()
def test_causal_levels_go_one_way():
    adapter = vlm.adapt(*small.qwen3_vl())
    texture, coarse, fine = looks(adapter)
    both = {name: adapter.encode(texture, together(coarse, fine), levels=name).embeds for name in adapter.levels}
    alone = adapter.encode(texture, coarse, levels="causal").embeds
    count = coarse.budget
    assert torch.allclose(both["causal"][:, :count], alone, atol=1e-5)
    assert not torch.allclose(both["joint"][:, :count], alone, atol=1e-3)
    assert torch.allclose(both["apart"][:, :count], alone, atol=1e-5)
    assert not torch.allclose(both["apart"][:, count:], both["causal"][:, count:], atol=1e-3)


@torch.no_grad()
def test_causal_levels_of_two_images_stay_apart():
    adapter = vlm.adapt(*small.qwen3_vl())
    texture, coarse, fine = looks(adapter)
    other = small.picture(4 * adapter.side, 6 * adapter.side)
    views = [view_of(adapter, one, together(coarse, fine), "causal") for one in (texture, other)]
    pair = adapter.embed(views)[0]
    assert torch.allclose(pair[1], adapter.embed(views[1:])[0][0], atol=1e-5)


@torch.no_grad()
def test_a_fixed_budget_has_causal_levels():
    adapter = vlm.adapt(*small.qwen3_vl())
    texture, coarse, fine = looks(adapter)
    whole = together(coarse, fine)
    adapter.trained = replace(adapter.trained, levels="causal")
    fixed = vlm.CapturedPrefill(adapter, whole.budget)
    wanted = view_of(adapter, texture, whole, "causal")
    assert torch.allclose(fixed.encode(texture, whole).embeds[0][0], adapter.embed([wanted])[0][0], atol=1e-5)


def test_families_without_causal_levels_say_so():
    adapter = vlm.adapt(*small.qwen2_5_vl())
    texture, coarse, _ = looks(adapter)
    with pytest.raises(ValueError, match="levels must be one of joint, apart, got 'causal'"):
        adapter.encode(texture, coarse, levels="causal")


def test_a_family_that_cannot_append_says_so():
    adapter = vlm.adapt(*small.llava())
    with pytest.raises(ValueError, match="model must be of a Qwen family to append tokens, got llava"):
        GrowingPrompt(adapter)
