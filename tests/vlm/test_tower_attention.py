"""Vision towers that attend hierarchically or in windows, on small random models of the real classes."""

import copy
import pickle

import pytest
import torch

from tests.vlm import small
from texturevlm.vlm import adapt
from texturevlm.vlm.hook import budgeted, check_hooks, hooks_of
from texturevlm_lab.attention import AttentionOptions, attend_in_tower
from texturevlm_lab.attention.implementation import IMPLEMENTATION
from texturevlm_lab.attention.tower import TowerAttention

QUESTION = "what is the total ?"
FAMILIES = {**small.BUILDERS, **small.MORE}
FLAT = ("qwen3_vl", "qwen2_5_vl", "qwen2_vl", "glm4v")
SIZES = {"block": 16, "group": 16, "neighbours": 0}


@pytest.fixture(params=FLAT, scope="module")
def built(request):
    return small.built(FAMILIES, request.param)


def two_images(adapter, counts=(20, 9)):
    """Two pictures of chosen tokens in one packed sequence, and the inputs of each alone."""
    textures = [small.picture(120, 150), small.picture(96, 96)]
    chosen = [small.chosen(one, adapter.side, count, seed=count) for one, count in zip(textures, counts)]
    both = adapter.prepare([QUESTION] * 2, textures, chosen)
    return both, [adapter.prepare(QUESTION, *one) for one in zip(textures, chosen)]


def tower(adapter, inputs):
    """Everything that the tower hands to the language model, (n, D)."""
    with torch.no_grad():
        out = adapter.tower(inputs["pixel_values"], grid_thw=inputs["image_grid_thw"])
    return torch.cat([out.pooler_output, *(getattr(out, "deepstack_features", None) or ())], -1)


LATENT = {"kind": "latent", "fine": 0.0, "rank": SIZES["block"]}  # all directions of a block are the block
READ = [{"fine": 1.0}, {"fine": 1.0, "share": 2}, {"kind": "window", "neighbours": 99}, LATENT]


@pytest.mark.parametrize("options", READ)
def test_reading_everything_is_the_dense_tower(adapter, options):
    both, _ = two_images(adapter)
    dense = tower(adapter, both)
    attend_in_tower(adapter, AttentionOptions(**SIZES | options))
    torch.testing.assert_close(tower(adapter, both), dense)
    adapter.restore()
    adapter.bind(adapter.model)
    attend_in_tower(adapter, AttentionOptions(kind="window", **SIZES))
    assert (tower(adapter, both) - dense).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["hierarchical", "window", "linear", "latent"])
def test_attention_does_not_cross_images(adapter, kind):
    both, alone = two_images(adapter)
    attend_in_tower(adapter, AttentionOptions(fine=0.3, kind=kind, **SIZES))
    torch.testing.assert_close(tower(adapter, both), torch.cat([tower(adapter, one) for one in alone]))


def test_a_window_reads_its_own_square(adapter):
    """A pixel far away changes nothing in a window, and something in the dense tower."""
    texture = small.picture(8 * adapter.side, 8 * adapter.side)
    inputs = adapter.prepare(QUESTION, texture, small.full_grid(texture, adapter.side))
    changed = {**inputs, "pixel_values": inputs["pixel_values"].clone()}
    changed["pixel_values"][-1, 0] += 1.0  # the last token, in the corner below on the right
    quarter = torch.arange(64).view(8, 8)[:4, :4].flatten()  # tokens above on the left
    far = (tower(adapter, inputs) != tower(adapter, changed))[quarter]
    assert far.any()
    attend_in_tower(adapter, AttentionOptions(kind="window", block=64, group=64, neighbours=0))
    moved = (tower(adapter, inputs) != tower(adapter, changed)).any(-1)
    assert not moved[quarter].any() and moved[-1]


def test_rows_of_the_models_own_processor(adapter):
    """Their places come from the grid: the same blocks as of a full grid of chosen tokens."""
    texture = small.picture(4 * adapter.side, 8 * adapter.side)
    packed = adapter.prepare(QUESTION, texture, small.full_grid(texture, adapter.side))
    stock = adapter.row_width
    plain = {
        "pixel_values": packed["pixel_values"][:, :stock].repeat(2, 1),
        "image_grid_thw": torch.tensor([[1, 4 * adapter.merge, 8 * adapter.merge]] * 2),
    }
    attend_in_tower(adapter, AttentionOptions(kind="window", **SIZES))
    wanted = tower(adapter, packed)
    torch.testing.assert_close(tower(adapter, plain), wanted.repeat(2, 1), atol=1e-5, rtol=1e-5)


def test_levels_apart_are_segments():
    adapter = adapt(*small.built(FAMILIES, "qwen3_vl"))
    texture = small.picture(120, 150)
    chosen = small.chosen(texture, adapter.side, 20)
    apart = adapter.prepare(QUESTION, texture, chosen, levels="apart")
    dense = tower(adapter, apart)
    attend_in_tower(adapter, AttentionOptions(fine=1.0, **SIZES))
    torch.testing.assert_close(tower(adapter, apart), dense)
    causal = adapter.prepare(QUESTION, texture, chosen, levels="causal")
    with pytest.raises(ValueError, match="forward: levels must be joint or apart with tower_attention, got causal"):
        tower(adapter, causal)
    adapter.restore()


def test_blocks_follow_the_quadtree():
    adapter = adapt(*small.built(FAMILIES, "qwen3_vl"))
    texture = small.picture(4 * adapter.side, 4 * adapter.side)
    inputs = adapter.prepare(QUESTION, texture, small.full_grid(texture, adapter.side))
    run = TowerAttention(adapter, AttentionOptions(**SIZES))
    (layout,) = run._layouts(*run._tokens(inputs["pixel_values"], inputs["image_grid_thw"]))
    tokens = layout.table.view(4, 4, 4) // 4  # block, token, patch
    assert torch.equal(tokens[..., 0], tokens[..., 3])
    assert tokens[..., 0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    adapter.restore()


def test_both_halves_and_back():
    model, processor = small.built(FAMILIES, "qwen3_vl")
    adapter = adapt(model, processor)
    both, _ = two_images(adapter)
    with torch.no_grad():
        dense = model(**both).logits
    detail = {"fine": 1.0, **SIZES}
    for hook in hooks_of("test", {"attention": detail, "tower_attention": detail}):
        hook.attach(adapter)
    with pytest.raises(ValueError, match="tower must attend densely, got one that is hooked"):
        attend_in_tower(adapter, AttentionOptions())
    with torch.no_grad():
        for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(one(**both).logits, dense, atol=1e-4, rtol=1e-4)
    assert adapter.tower.config._attn_implementation == IMPLEMENTATION
    adapter.restore()
    assert adapter.tower.config._attn_implementation == "sdpa"
    adapter.bind(model)
    with torch.no_grad():
        assert torch.equal(model(**both).logits, dense)
    adapter.restore()


def test_gradients_reach_pixels():
    adapter = adapt(*small.built(FAMILIES, "qwen3_vl"))
    both, _ = two_images(adapter)
    attend_in_tower(adapter, AttentionOptions(kind="window", **SIZES))
    rows = both["pixel_values"].requires_grad_()
    adapter.tower(rows, grid_thw=both["image_grid_thw"]).pooler_output.square().sum().backward()
    assert (rows.grad[:, : adapter.row_width].abs().sum(-1) > 0).all()
    adapter.restore()


def test_bad_options():
    for given, message in (
        ("windows", "load_vlm: tower_attention must be one of dense, hierarchical, window, .* got 'windows'"),
        ({"fines": 1}, "option of tower_attention must be one of block, fine, .* got 'fines'"),
    ):
        with pytest.raises(ValueError, match=message):
            hooks_of("load_vlm", {"tower_attention": given})
    config = small.llava()[0].config
    with pytest.raises(
        ValueError, match=r"tower_attention must be dense for llava, .* works for qwen3_vl, qwen3_vl_moe"
    ):
        check_hooks("VLM", config, hooks_of("VLM", {"tower_attention": "window"}))
    own = small.qwen3_vl()[0].config
    both = budgeted("VLM", hooks_of("VLM", {"tower_attention": "window", "reduce": "tome"}), 8)[1]
    with pytest.raises(ValueError, match="VLM: reduce must not be given with tower_attention, got tome"):
        check_hooks("VLM", own, both)
