"""`texturevlm bench attention`, small."""

import re

import torch

from texturevlm.draw import to_pil
from texturevlm_lab.attention.hierarchical import hierarchical_attention
from texturevlm_lab.attention.options import AttentionOptions
from texturevlm_lab.bench.attention import AttentionCase
from texturevlm_lab.bench.attention_error import (
    attention_inputs,
    dense_attention,
    layer_errors,
    own_views,
    peaked_input,
    relative_error,
    right_blocks,
    tower_tokens,
)
from texturevlm_lab.bench.attention_page import WAYS
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.reader import random_reader
from texturevlm_lab.bench.report import measure


def test_a_quick_run():
    report = measure("attention", "cpu", quick=True)
    assert all(row.timing is not None and row.timing.median > 0 for row in report.rows)
    by = {(row.work, row.by) for row in report.rows}
    for work in ("prefill, 273 visual tokens", "decode, 273 visual tokens"):
        assert {(work, "SDPA"), (work, "hierarchical, 10% fine")} <= by
    assert {("prefill, 64 visual tokens", "window"), ("prefill, 64 visual tokens", "linear")} <= by
    page = [row.by for row in report.rows if row.work == "page of 80 visual tokens, 4B model → first token"]
    assert page == list(WAYS) and "hierarchical, 10% fine, the tower in windows" in page
    assert ("page of 80 visual tokens, 4B model", "vision tower alone, window") in by
    later = [row.by for row in report.rows if row.work == "page of 80 visual tokens, 4B model, each further token"]
    dense_tower = [by for by, hooks in WAYS.items() if not any(one.name == "tower_attention" for one in hooks)]
    reason = "no graph: graphs are for a GPU, and this runs on cpu"
    assert later == [name for by in dense_tower for name in (by, f"{by}, {reason}")]
    (counted,) = [note for note in report.notes if note.startswith("Operations of PyTorch per further token")]
    dense, hierarchical, shared = (int(one) for one in re.findall(r"(\d+) \(", counted))
    assert dense < shared < hierarchical <= 2 * dense
    assert any("Peaked inputs" in note and "met" in note for note in report.notes)
    table = [note.split("|")[1:-1] for note in report.notes if note.startswith("| hierarchical") or "| latent" in note]
    layers, towers = table[:4], table[4:]
    errors = [float(row[3].split("%")[0]) for row in layers]
    assert errors[0] >= errors[1] >= errors[2] > 0
    assert len(towers) == 2 and float(towers[0][3].split("%")[0]) > 0


def test_inputs_of_layers_are_those_of_the_model():
    model = random_reader("cpu", 24)
    model.model.float()
    image = to_pil(page(1, 96, 128))
    layers = attention_inputs(model, image)
    assert len(layers.inputs) == len(model.adapter.language_of(model.model).layers)
    for one in layer_errors(layers, "hierarchical", 1.0)[:2]:
        assert max(one) < 1e-5
    # the output of attention, projected, is that of the layer
    outputs = []
    first = model.adapter.language_of(model.model).layers[0].self_attn
    hook = first.register_forward_hook(lambda *given: outputs.append(given[2][0]))
    attention_inputs(model, image)
    hook.remove()
    wanted = first.o_proj(dense_attention(*layers.inputs[0], causal=True).transpose(1, 2).flatten(2))
    torch.testing.assert_close(outputs[0], wanted, atol=1e-4, rtol=1e-4)


def test_the_tower_of_a_bench_is_hooked_for_one_pass():
    model = random_reader("cpu", 24)
    model.model.float()
    adapter, views = model.adapter, own_views(model, to_pil(page(1, 96, 128)))
    dense = tower_tokens(adapter, views)
    sizes = {"block": 4, "group": 4, "neighbours": 0}
    torch.testing.assert_close(tower_tokens(adapter, views, AttentionOptions(fine=1.0, **sizes)), dense)
    assert relative_error(tower_tokens(adapter, views, AttentionOptions(kind="window", **sizes)), dense) > 1e-3
    assert torch.equal(tower_tokens(adapter, views), dense)


def test_peaked_inputs_have_one_right_block():
    q, k, v, wanted = peaked_input(512, "cpu", width=32)
    assert right_blocks(q, k, v, wanted) == 1.0 and right_blocks(q, k, v, (wanted + 1) % 8) < 0.5
    dense = dense_attention(q, k, v)
    assert relative_error(hierarchical_attention(q, k, v, fine=0.1, neighbours=0), dense) < 0.02
    other = (wanted[None, None, :, None].expand(1, 2, -1, -1) + 1) % 8
    assert relative_error(hierarchical_attention(q, k, v, chosen=other, neighbours=0), dense) > 0.05


def test_the_layout_of_a_case_reads_text():
    case = AttentionCase.of(100, "cpu", heads=2, shared=1, width=16)
    assert torch.equal(case.visual.sort().values, torch.arange(100))
    assert int(case.layout().state[0, 0, -1]) == 2
