"""Answers whose prompts the model reads itself and whose further tokens come from a graph, on small random models.

Without a GPU the function that would be captured runs as it is; its shapes and its memory are the same.
"""

import pytest
import torch

from tests.vlm import small
from texturevlm import vlm
from texturevlm.vlm import captured_decode, captured_generate
from texturevlm.vlm.captured_decode import CapturedDecode
from texturevlm.vlm.captured_generate import decoded_by_graph, dense_keys
from texturevlm_lab.attention import AttentionOptions, attend_hierarchically
from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.rivals import METHODS, steps_of
from texturevlm_lab.rivals.hooks.reducing import reduced

QUESTION = "what is the total ?"
OPTIONS = {
    "max_new_tokens": 6,
    "min_new_tokens": 6,
    "do_sample": False,
    "suppress_tokens": [small.IMAGE, small.VIDEO],
    "output_logits": True,
    "return_dict_in_generate": True,
}
SIZES = {"block": 4, "group": 4, "neighbours": 0}
KINDS = [{}, {"share": 2}, {"kind": "window"}, {"kind": "linear"}]


@pytest.fixture(params=["qwen3_vl", "qwen2_5_vl"], scope="module")
def built(request):
    return small.built(small.BUILDERS, request.param)


def inputs_for(adapter, prompts=(QUESTION, "total ?"), counts=(20, 9)):
    """One image per prompt; the shorter one is padded on the left."""
    textures = [small.picture(96, 96) for _ in prompts]
    allocations = [small.chosen(one, adapter.side, count, seed=count) for one, count in zip(textures, counts)]
    inputs = adapter.prepare(list(prompts), textures, allocations)
    return {name: value.to(adapter.model.device) for name, value in inputs.items()}


def answered(adapter, inputs, decode=None, known=None, **more):
    """Ids and logits of the answer; from a graph if `decode` is given."""
    with torch.no_grad():
        if decode is None:
            found = adapter.model.generate(**inputs, **OPTIONS | more)
        else:
            with decoded_by_graph(adapter.model, decode, known, OPTIONS | more):
                found = adapter.model.generate(**inputs, **OPTIONS | more)
    assert "forward" not in adapter.model.__dict__
    return found.sequences, torch.stack(found.logits, 1)


def check_same(found, wanted, atol=1e-4):
    assert torch.equal(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1], atol=atol, rtol=atol)


@pytest.fixture
def runs(adapter):
    """Counts the passes of the language model itself."""
    counted = []
    hook = adapter.language_of(adapter.model).register_forward_hook(lambda *_: counted.append(1))
    yield counted
    hook.remove()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_hierarchical_attention(adapter, kind, runs):
    """Prompts in turn, in the memory of the first; the model itself reads the prompts only."""
    run = attend_hierarchically(adapter, AttentionOptions(fine=0.3, **SIZES | kind))
    decode, memory = CapturedDecode(adapter), []
    longer = "and the total " * 3 + QUESTION  # more blocks of text, and fewer that are empty
    for prompts, counts in (
        ((QUESTION, "total ?"), (20, 9)),
        (("and there ?", QUESTION), (18, 20)),
        ((longer, QUESTION), (20, 9)),
    ):
        inputs = inputs_for(adapter, prompts, counts)
        wanted = answered(adapter, inputs)
        runs.clear()
        check_same(answered(adapter, inputs, decode, run.known), wanted)
        assert len(runs) == 1
        memory.append([one.data_ptr() for one in decode.buffers])
    assert memory[0] == memory[1] == memory[2]
    dense = vlm.adapt(adapter.restore(), adapter.processor)
    assert (answered(dense, inputs)[1] - wanted[1]).abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_reduced_tokens(adapter, method, runs):
    """Layers have keys of different lengths, and merged ones that count for several."""
    inputs, steps = inputs_for(adapter), steps_of("ask", method, 5)
    with reduced(adapter, steps):
        wanted = answered(adapter, inputs)
    decode = CapturedDecode(adapter)
    with reduced(adapter, steps) as run:
        check_same(answered(adapter, inputs, decode, run.known), wanted)
    captured = "decode" not in METHODS[method].acts  # tokens that leave meanwhile are not captured
    assert (decode.replay is not None) == captured
    layers = {len(adapter.language_of(adapter.model).layers)}
    assert not captured or {len(decode.owner), len(decode.buffers) // 2} == layers


@pytest.mark.parametrize("many", [1, captured_decode.MANY], ids=["in parts", "whole"])
def test_a_dense_model(adapter, many, monkeypatch):
    monkeypatch.setattr(captured_decode, "MANY", many)
    inputs = inputs_for(adapter, (QUESTION,), (20,))
    decode = CapturedDecode(adapter)
    check_same(answered(adapter, inputs, decode, dense_keys), answered(adapter, inputs))
    both = inputs_for(adapter)
    check_same(answered(adapter, both, decode, dense_keys), answered(adapter, both))  # another number of prompts
    assert len(decode.buffers[0]) == 2


BY_THE_MODEL = [{"num_beams": 2}, {"output_hidden_states": True}, {"use_cache": False}]


@pytest.mark.parametrize("more", BY_THE_MODEL, ids=str)
def test_the_model_goes_on_itself_where_a_graph_cannot(adapter, more):
    inputs, decode = inputs_for(adapter), CapturedDecode(adapter)
    wanted = answered(adapter, inputs, **more)
    check_same(answered(adapter, inputs, decode, dense_keys, **more), wanted)
    assert decode.replay is None and not decode.buffers


def test_very_long_answers_are_decoded_by_the_model(adapter, monkeypatch):
    """Their memory would be reserved, and read at every step, though few of them are that long."""
    inputs, decode = inputs_for(adapter), CapturedDecode(adapter)
    monkeypatch.setattr(captured_generate, "MOST", OPTIONS["max_new_tokens"] - 1)
    check_same(answered(adapter, inputs, decode, dense_keys), answered(adapter, inputs))
    assert decode.replay is None and not decode.buffers


def test_latent_summaries_are_decoded_by_the_model(adapter):
    """A graph cannot find eigenvectors, because the host waits for them."""
    run = attend_hierarchically(adapter, AttentionOptions(fine=0.3, kind="latent", rank=2, **SIZES))
    inputs, decode = inputs_for(adapter), CapturedDecode(adapter)
    check_same(answered(adapter, inputs, decode, run.known), answered(adapter, inputs))
    assert decode.replay is None and not decode.buffers


def test_memory_that_was_made_in_inference_mode_serves_outside_of_it(adapter):
    run = attend_hierarchically(adapter, AttentionOptions(fine=0.3, **SIZES))
    inputs, decode = inputs_for(adapter), CapturedDecode(adapter)
    with torch.inference_mode():
        wanted = answered(adapter, inputs, decode, run.known)
    check_same(answered(adapter, inputs, decode, run.known), wanted)


def test_other_threads_run_the_model_meanwhile(adapter):
    """Steps belong to the cache of one generation."""
    inputs, decode = inputs_for(adapter, (QUESTION,), (20,)), CapturedDecode(adapter)
    wanted = adapter.model(**inputs).logits
    with torch.no_grad(), decoded_by_graph(adapter.model, decode, dense_keys, OPTIONS):
        found = adapter.model.generate(**inputs, **OPTIONS)
        torch.testing.assert_close(adapter.model(**inputs).logits, wanted)
    check_same((found.sequences, torch.stack(found.logits, 1)), answered(adapter, inputs))


def test_a_table_with_room_is_that_of_a_longer_prompt():
    """Its keys are read once their numbers stand in the table."""
    visual = torch.randperm(50) + 5
    short = BlockLayout.of(1, 1, 70, visual=visual, block=16, group=16)
    roomy = short.with_room(100)
    assert roomy.length == 100 and roomy.keys.shape[1] == short.keys.shape[1] + 2
    assert not bool((roomy.key_blocks[:, 70:] < roomy.keys.shape[1]).any())
    new = roomy.always[0][0, 0, -2:].tolist()
    assert new == [short.keys.shape[1], short.keys.shape[1] + 1]
    with pytest.raises(ValueError, match="layout must be of one query, got 5 groups"):
        BlockLayout.of(1, 70, 70, block=16, group=16).with_room(100)
    with pytest.raises(ValueError, match="slots must be at least 71, got 70"):
        short.with_room(70)


# On a GPU.


@pytest.fixture(params=["qwen3_vl", "qwen2_5_vl"], scope="module")
def on_gpu(request):
    model, processor = small.BUILDERS[request.param]()
    return vlm.adapt(model.cuda(), processor)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_hierarchical_attention_from_a_graph(on_gpu, kind):
    """The second answer is a replay of the first one's graph; blocks are as wide as the kernels take."""
    adapter = vlm.adapt(on_gpu.restore(), on_gpu.processor)
    sizes = {"block": 16, "group": 16, "neighbours": 0}
    run = attend_hierarchically(adapter, AttentionOptions(fine=0.3, **sizes | kind))
    decode, graphs = CapturedDecode(adapter), []
    for prompts, counts in (((QUESTION, "total ?"), (40, 33)), (("and there ?", QUESTION), (38, 40))):
        inputs = inputs_for(adapter, prompts, counts)
        check_same(answered(adapter, inputs, decode, run.known), answered(adapter, inputs), 5e-3)
        graphs.append(decode.replay)
        assert decode.replay.reason is None
    assert graphs[0] is graphs[1]
    adapter.restore()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["visionzip", "fastv", "pyramiddrop", "tome", "stride"])
def test_reduced_tokens_from_a_graph(on_gpu, method):
    adapter = vlm.adapt(on_gpu.restore(), on_gpu.processor)
    decode, steps = CapturedDecode(adapter), steps_of("ask", method, 5)
    for counts in ((20, 9), (18, 20)):
        inputs = inputs_for(adapter, counts=counts)
        with reduced(adapter, steps) as run:
            wanted = answered(adapter, inputs)
            check_same(answered(adapter, inputs, decode, run.known), wanted, 5e-3)
        assert decode.replay.reason is None
    adapter.restore()


@pytest.mark.gpu
@pytest.mark.parametrize("many", [1, captured_decode.MANY], ids=["in parts", "whole"])
def test_a_dense_model_from_a_graph(on_gpu, many, monkeypatch):
    monkeypatch.setattr(captured_decode, "MANY", many)
    adapter = vlm.adapt(on_gpu.restore(), on_gpu.processor)
    decode = CapturedDecode(adapter)
    for count in (20, 12):
        inputs = inputs_for(adapter, (QUESTION,), (count,))
        check_same(answered(adapter, inputs, decode, dense_keys), answered(adapter, inputs), 5e-3)
        assert decode.replay.reason is None
    adapter.restore()
