"""Merged tokens: a parent is the weighted mean of its children's patch embeddings, at its own place."""

from dataclasses import replace

import pytest
import torch

from tests.vlm import small
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import still_views
from texturevlm_lab.rivals.hooks.merged import merged_pixels

FAMILIES = {**small.BUILDERS, "qwen2_vl": small.qwen2_vl}
QUESTION = "what is the total ?"


@pytest.fixture(params=list(FAMILIES), scope="module")
def built(request):
    return FAMILIES[request.param]()


def parent_of(adapter, texture):
    """One token, four tokens wide, and its children in reading order: each twice as fine."""
    side = float(adapter.side)
    boxes = torch.tensor([[[side, side, 3 * side, 3 * side]]])
    low = torch.tensor([[side * (1 + x), side * (1 + y)] for y in (0, 1) for x in (0, 1)])
    children = torch.cat([low, low + side], -1)[None]
    return (Allocation.of_boxes(one, texture.size, adapter.side) for one in (boxes, children))


def patch_embeddings(adapter, views):
    """(tokens, merge², D): what the tower's own patch embedding makes of views."""
    found = []
    hook = adapter.tower.patch_embed.register_forward_hook(lambda module, args, out: found.append(out))
    with torch.no_grad():
        adapter.embed(views)
    hook.remove()
    return found[0].view(-1, adapter.merge**2, found[0].shape[-1])


def test_a_parent_is_the_weighted_mean_of_its_children_s_patch_embeddings(adapter):
    texture = small.picture(6 * adapter.side, 5 * adapter.side)
    parent, children = parent_of(adapter, texture)
    shares = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(3)) + 0.1
    four = shares.view(2, 2, 2, 2)  # row and column of the patch: of the second and fourth axis the child's
    shares = (four / four.sum((1, 3), keepdim=True)).view(1, 1, 4, 4)
    shown = PromptImage(texture, parent, None, merged_pixels(texture, parent, shares))
    merged = patch_embeddings(adapter, still_views("test", shown, adapter.side))[0]
    apart = patch_embeddings(adapter, still_views("test", PromptImage(texture, children), adapter.side))
    weights = shares[0, 0].view(2, 2, 2, 2).permute(0, 2, 1, 3).reshape(4, 4)  # patch, child of it
    wanted = (apart * weights[..., None]).sum(1)
    assert torch.allclose(merged, wanted, atol=1e-5)
    plain = patch_embeddings(adapter, still_views("test", PromptImage(texture, parent), adapter.side))[0]
    assert (plain - wanted).abs().max() > 0.1  # a coarse picture of them is something else


def test_equal_children_give_one_of_them_at_the_place_of_the_parent(adapter):
    """An image that repeats from patch to patch: every child shows the same, and so does the parent."""
    inner = adapter.side // adapter.merge
    pattern = torch.rand(1, 3, inner, inner, generator=torch.Generator().manual_seed(1))
    texture = Texture.open(pattern.repeat(1, 1, 12, 10)).mipmapped()
    parent, children = parent_of(adapter, texture)
    shares = torch.rand(1, 1, 4, 4).view(2, 2, 2, 2)
    shares = (shares / shares.sum((1, 3), keepdim=True)).view(1, 1, 4, 4)
    pixels = merged_pixels(texture, parent, shares)
    (merged,) = still_views("test", PromptImage(texture, parent, None, pixels), adapter.side)
    (one,) = still_views("test", PromptImage(texture, children), adapter.side)
    assert torch.allclose(merged.pixels[0], one.pixels[0], atol=1e-5)
    assert torch.equal(merged.centre, parent.centre[0]) and torch.equal(merged.step, torch.tensor([[2.0, 2.0]]))
    inputs = adapter.prepare(QUESTION, texture, parent, pixels=pixels)
    plain = adapter.prepare(QUESTION, texture, parent)
    assert torch.equal(adapter.positions(inputs), adapter.positions(plain))
    assert torch.equal(adapter.places(merged).patch, adapter.places(replace(merged, pixels=one.pixels[:1])).patch)


def test_tokens_without_shares_are_as_they_were_and_gradients_reach_the_shares(adapter):
    texture = small.picture(6 * adapter.side, 5 * adapter.side)
    parent, children = parent_of(adapter, texture)
    both = Allocation.of_boxes(torch.cat([parent.boxes, children.boxes], 1), texture.size, adapter.side)
    shares = torch.zeros(1, 5, 4, 4)
    shares[0, 0] = 0.25
    shares.requires_grad_()
    inputs = adapter.prepare(QUESTION, texture, both, pixels=merged_pixels(texture, both, shares))
    plain = adapter.prepare(QUESTION, texture, both)
    assert torch.equal(inputs["input_ids"], plain["input_ids"])  # as many tokens
    changed = (inputs["pixel_values"] != plain["pixel_values"]).any(1).view(-1, 4).any(1)
    assert int(changed.sum()) == 1
    adapter.model(**inputs).logits.sum().backward()
    assert shares.grad[0, 0].abs().min() > 0 and not shares.grad[0, 1:].any()


def test_pixels_of_other_tokens_and_of_a_video_are_refused(adapter):
    texture, side = small.picture(6 * adapter.side, 5 * adapter.side), adapter.side
    parent, _ = parent_of(adapter, texture)
    with pytest.raises(ValueError, match=rf"pixels must be \(B, K, 3, {side}, {side}\)"):
        adapter.prepare(QUESTION, texture, parent, pixels=torch.ones(1, 1, 3, 2, 2))
    with pytest.raises(ValueError, match=r"shares must be \(B, K, n, n\)"):
        merged_pixels(texture, parent, torch.ones(1, 2, 4, 4))
    frames = replace(texture, levels=tuple(level.repeat(2, 1, 1, 1) for level in texture.levels))
    with pytest.raises(ValueError, match="got a video"):
        adapter.prepare(QUESTION, frames, parent, pixels=torch.ones(1, 1, 3, side, side))
