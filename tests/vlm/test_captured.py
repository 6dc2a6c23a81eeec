"""The loops with static shapes give what transformers' own forward gives, and read nothing back."""

import itertools
import math
import threading
from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

from tests.vlm import small
from texturevlm import vlm
from texturevlm.cuda.graph import Replay
from texturevlm.types import Texture
from texturevlm.vlm import captured, captured_decode, captured_generate
from texturevlm.vlm.captured import CapturedPrefill
from texturevlm.vlm.modules import evaluating, modules_of

QUESTION = "what is the total ?"


@pytest.fixture(params=[*small.BUILDERS, "qwen2_vl"], scope="module")
def adapter(request):
    return vlm.adapt(*(small.BUILDERS | small.MORE)[request.param]())


def difference(one, other):
    return float((one - other).detach().abs().max())


def first_logits(fixed, prompts, texture, allocation):
    """(B, V), of the first token of the answers."""
    ids = fixed.spelled("generate", prompts, texture, allocation)
    return fixed.prefill(ids, fixed.encode(texture, allocation)).logits


def last_logits(adapter, *inputs, **options):
    with torch.no_grad():
        return adapter.model(**adapter.prepare(*inputs, **options)).logits[:, -1]


@pytest.mark.parametrize("options", [{}, {"coordinates": "native"}, {"levels": "apart"}], ids=str)
def test_first_token_is_that_of_transformers_own_forward(adapter, options, monkeypatch):
    """One capture serves images of every size and questions of several lengths."""
    monkeypatch.setattr(adapter, "trained", replace(adapter.trained, **options))
    fixed = CapturedPrefill(adapter, 11)
    for size, question in (((150, 260), QUESTION), ((90, 70), "and there ?"), ((300, 64), QUESTION)):
        texture = small.picture(*size)
        allocation = small.chosen(texture, adapter.side, 11)
        wanted = last_logits(adapter, question, texture, allocation, **options)
        assert difference(first_logits(fixed, question, texture, allocation), wanted) < 1e-4
    assert fixed.reasons == ["graphs are for a GPU, and this runs on cpu"]


def test_tower_is_that_of_transformers(adapter):
    texture = small.picture(4 * adapter.side, 5 * adapter.side, batch=2)
    allocation = small.full_grid(texture, adapter.side)
    seen = CapturedPrefill(adapter, 20, batch=2).encode(texture, allocation)
    wanted = adapter.encode(texture, allocation)
    for ours, theirs in zip(seen.embeds, (wanted.embeds, *wanted.deepstack), strict=True):
        assert difference(ours, theirs) < 1e-5


def test_unused_slots_change_nothing(adapter, monkeypatch):
    texture = small.picture(4 * adapter.side, 5 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 9)
    valid = torch.arange(9)[None] < 6
    nothing = torch.full_like(allocation.centre[:, 6:], float("nan"))
    for name in ("centre", "ddx", "ddy"):
        getattr(allocation, name)[:, 6:] = nothing
    some = replace(allocation, valid=valid)
    for levels in ("joint", "apart"):
        wanted = last_logits(adapter, QUESTION, texture, allocation.each(lambda column: column[:, :6]), levels=levels)
        monkeypatch.setattr(adapter, "trained", replace(adapter.trained, levels=levels))
        fixed = CapturedPrefill(adapter, 9, masked=True)
        assert difference(first_logits(fixed, QUESTION, texture, some), wanted) < 1e-4


def test_what_a_checkpoint_was_trained_with_is_used(adapter):
    """The table in its config decides, for the plain path and the captured one alike."""
    texture = small.picture(4 * adapter.side, 5 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 9)
    own = {"levels": "apart", "coordinates": "native"}
    wanted, stock = (last_logits(adapter, QUESTION, texture, allocation, **options) for options in (own, {}))
    adapter.config.texturevlm = own
    try:
        other = adapter.beside(adapter.processor)
        assert difference(last_logits(other, QUESTION, texture, allocation), wanted) == 0
        assert difference(first_logits(CapturedPrefill(other, 9), QUESTION, texture, allocation), wanted) < 1e-4
        assert difference(wanted, stock) > 1e-3
        adapter.config.texturevlm = {"levels": "alone"}
        with pytest.raises(ValueError, match=r"levels in texturevlm of .* must be one of joint, apart"):
            adapter.beside(None)
    finally:
        del adapter.config.texturevlm


def test_generation_goes_on_from_the_captured_prefill(adapter):
    texture = small.picture(4 * adapter.side, 5 * adapter.side, batch=2)
    allocation = small.chosen(texture, adapter.side, 9)
    fixed = CapturedPrefill(adapter, 9, batch=2)
    prompts = [QUESTION, "what is the ? total"]
    options = {"max_new_tokens": 6, "do_sample": False}
    ours = fixed.generate(prompts, texture, allocation, **options)
    assert torch.equal(ours, adapter.generate(prompts, texture, allocation, **options))
    masked = CapturedPrefill(adapter, 9, batch=2, masked=True).generate(prompts, texture, allocation, **options)
    assert torch.equal(masked, ours)


@pytest.mark.parametrize("more", [{}, {"output_hidden_states": True}], ids=["graphs", "hidden states"])
def test_the_model_itself_runs_for_what_graphs_do_not_give(adapter, monkeypatch, more):
    """The captured prefill has the logits of the first token, the captured step those of the next ones."""
    texture = small.picture(4 * adapter.side, 5 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 9)
    fixed, read, runs = CapturedPrefill(adapter, 9), [], []
    prefill = fixed.prefill
    monkeypatch.setattr(fixed, "prefill", lambda *inputs: read.append(prefill(*inputs)) or read[-1])
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    for tokens in (1, 4):
        runs.clear()
        count = adapter.model.model.language_model.register_forward_hook(lambda *_: runs.append(1))
        found = fixed.generate(QUESTION, texture, allocation, max_new_tokens=tokens, **options, **more)
        count.remove()
        assert len(runs) == (tokens - 1 if more else 0) and "forward" not in adapter.model.__dict__
        assert torch.equal(found.logits[0], read[-1].logits)
        wanted = adapter.generate(QUESTION, texture, allocation, max_new_tokens=tokens, **options)
        assert torch.equal(found.sequences, wanted.sequences)
        assert all(difference(*both) < 1e-4 for both in zip(found.logits, wanted.logits, strict=True))
        assert found.past_key_values.get_seq_length() == wanted.past_key_values.get_seq_length()
        for ours, theirs in zip(found.past_key_values.layers, wanted.past_key_values.layers, strict=True):
            assert difference(ours.keys, theirs.keys) < 1e-4 and difference(ours.values, theirs.values) < 1e-4


def test_longer_answers_get_more_room(adapter):
    texture = small.picture(3 * adapter.side, 3 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 4)
    fixed = CapturedPrefill(adapter, 4)
    length = len(fixed.spelled("generate", QUESTION, texture, allocation)[0])
    options = {"do_sample": False, "stopping_criteria": [transformers.MaxLengthCriteria(length + 3)]}
    wanted = adapter.generate(QUESTION, texture, allocation, max_new_tokens=3, do_sample=False)
    room = captured_decode.ROOM
    for most, slots in ((3, room), (room + 1, 2 * room), (3, 2 * room), (captured_generate.MOST, 2 * room)):
        found = fixed.generate(QUESTION, texture, allocation, max_new_tokens=most, **options)
        assert torch.equal(found, wanted)
        assert [one.count for one in fixed.decode.slots] == [slots]  # the last one is decoded by the model itself


def test_the_prompt_is_spelled_while_the_tower_runs(adapter, monkeypatch):
    texture = small.picture(3 * adapter.side, 3 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 4)
    fixed, done = CapturedPrefill(adapter, 4), []

    def noted(name):
        method = getattr(fixed, name)
        monkeypatch.setattr(fixed, name, lambda *inputs: done.append(name) or method(*inputs))

    for name in ("spelled", "encode_patches", "prefill"):
        noted(name)
    fixed.generate(QUESTION, texture, allocation, max_new_tokens=1)
    assert done == ["encode_patches", "spelled", "prefill"]


def test_the_first_step_serves_its_own_generation_only(adapter):
    """Other calls meanwhile run the model."""
    texture = small.picture(3 * adapter.side, 3 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 4)
    fixed = CapturedPrefill(adapter, 4)
    ids = fixed.spelled("generate", QUESTION, texture, allocation)
    read = fixed.prefill(ids, fixed.encode(texture, allocation))
    wanted = last_logits(adapter, QUESTION, texture, allocation)
    with captured_generate._first_step(adapter.model, read, len(ids[0])) as cache:
        assert torch.equal(last_logits(adapter, QUESTION, texture, allocation), wanted)
        found = adapter.model(past_key_values=cache)
        assert torch.equal(found.logits[:, 0], read.logits) and "forward" not in adapter.model.__dict__
    assert len(found.past_key_values.layers) == len(read.caches) // 2
    with pytest.raises(ZeroDivisionError), captured_generate._first_step(adapter.model, read, len(ids[0])):
        raise ZeroDivisionError
    assert "forward" not in adapter.model.__dict__


def test_the_cache_is_copied_only_if_it_is_returned(adapter, monkeypatch):
    """The first token waits for no copies, and the next prefill overwrites no cache that somebody has."""
    texture = small.picture(3 * adapter.side, 3 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 4)
    fixed, read, used = CapturedPrefill(adapter, 4), [], []
    prefill, output = fixed.prefill, transformers.modeling_outputs.CausalLMOutputWithPast
    monkeypatch.setattr(fixed, "prefill", lambda *inputs: read.append(prefill(*inputs)) or read[-1])
    monkeypatch.setattr(
        transformers.modeling_outputs,
        "CausalLMOutputWithPast",
        lambda **parts: used.append(parts["past_key_values"]) or output(**parts),
    )

    def shared(cache):
        kept = [one for layer in cache.layers for one in (layer.keys, layer.values)]
        return [one.data_ptr() == other.data_ptr() for one, other in zip(kept, read[-1].caches, strict=True)]

    by_the_model = {"output_hidden_states": True}
    fixed.generate(QUESTION, texture, allocation, max_new_tokens=1, **by_the_model)
    assert all(shared(used[-1]))
    for tokens, more in itertools.product((1, 2), ({}, by_the_model)):
        options = {"max_new_tokens": tokens, "do_sample": False, "return_dict_in_generate": True, **more}
        found = fixed.generate(QUESTION, texture, allocation, **options).past_key_values
        assert not any(shared(found))
        for layer, key, value in zip(found.layers, read[-1].caches[::2], read[-1].caches[1::2], strict=True):
            length = layer.keys.shape[2] - tokens + 1  # the last token is in no cache
            assert torch.equal(layer.keys[:, :, :length], key[:, :, :length])
            assert torch.equal(layer.values[:, :, :length], value[:, :, :length])


def test_prompts_of_a_batch_may_differ_in_length(adapter):
    texture = small.picture(3 * adapter.side, 3 * adapter.side, batch=2)
    allocation = small.chosen(texture, adapter.side, 4)
    prompts = [QUESTION, "and ?"]
    ours = first_logits(CapturedPrefill(adapter, 4, batch=2), prompts, texture, allocation)
    assert difference(ours, last_logits(adapter, prompts, texture, allocation)) < 1e-4
    fixed, options = CapturedPrefill(adapter, 4, batch=2, masked=True), {"max_new_tokens": 5, "min_new_tokens": 5}
    together = fixed.generate(prompts, texture, allocation, do_sample=False, **options)
    assert torch.equal(together, adapter.generate(prompts, texture, allocation, do_sample=False, **options))
    with pytest.raises(ValueError, match="one length in tokens"):
        fixed.generate(prompts, texture, allocation, output_attentions=True, return_dict_in_generate=True)


def test_nothing_is_read_back(adapter):
    """The tower and the prefill run on the meta device, where there are no values to read."""
    texture = small.picture(4 * adapter.side, 5 * adapter.side)
    allocation = small.chosen(texture, adapter.side, 7)
    fixed = CapturedPrefill(adapter, 7, masked=True)
    ids = fixed.spelled("generate", QUESTION, texture, allocation)
    seen = fixed.encode(texture, allocation)
    inputs = [*fixed._laid_out(ids, [texture.size]), seen.place, seen.used, *seen.embeds]
    step = torch.stack([allocation.ddx[..., 0], allocation.ddy[..., 1]], -1)
    pixels = torch.empty(1, 7, 3, adapter.side, adapter.side)
    tower = [pixels, allocation.centre, step, fixed._frame(texture.size)[None], allocation.valid]
    fixed._statistics = fixed._statistics.to("meta")
    meta = [one.to("meta") for one in (*tower, *inputs)]
    whole = adapter.model
    weights = {name: value.to("meta") for name, value in [*whole.named_parameters(), *whole.named_buffers()]}

    class Both(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.whole = whole

        def forward(self):
            return fixed._run_tower(*meta[:5]), fixed._run_prefill(*meta[5:])

    with torch.no_grad():
        found = torch.func.functional_call(Both(), {f"whole.{name}": value for name, value in weights.items()}, ())
    assert found[0][2].shape == seen.embeds[0].shape
    assert found[1][0].shape == (1, 64)


def test_complaints(adapter):
    texture = small.picture(2 * adapter.side, 2 * adapter.side)
    allocation = small.full_grid(texture, adapter.side)
    with pytest.raises(ValueError, match=r"allocation must be \(B, K\) = \(1, 5\), got \(1, 4\)"):
        CapturedPrefill(adapter, 5).encode(texture, allocation)
    fixed = CapturedPrefill(adapter, 4)
    seen = fixed.encode(texture, allocation)
    with pytest.raises(ValueError, match="4 image placeholders in a row"):
        fixed.prefill([[7, small.IMAGE, small.IMAGE, 8]], seen)
    with pytest.raises(ValueError, match="text behind each image"):
        fixed.prefill([[7, *[small.IMAGE] * 4]], seen)
    with pytest.raises(ValueError, match="num_beams must be 1"):
        fixed.generate(QUESTION, texture, allocation, num_beams=2)
    with pytest.raises(ValueError, match="texture must have red, green, blue"):
        fixed.encode(Texture.open(torch.rand(1, 1, *texture.size)), allocation)


def test_slanted_footprints_are_refused(adapter):
    texture = small.picture(2 * adapter.side, 2 * adapter.side)
    allocation = small.full_grid(texture, adapter.side)
    turned = replace(allocation, ddy=allocation.ddy + torch.tensor([0.1, 0]))
    with pytest.raises(ValueError, match="footprints with perpendicular axes"):
        CapturedPrefill(adapter, 4).generate(QUESTION, texture, turned)


def test_what_lies_on_another_device_is_refused(adapter):
    texture = small.picture(2 * adapter.side, 2 * adapter.side)
    allocation = small.full_grid(texture, adapter.side)
    with pytest.raises(ValueError, match="encode: texture must be on cpu like the model, got meta"):
        CapturedPrefill(adapter, 4).encode(texture.to("meta"), allocation)
    with pytest.raises(ValueError, match="encode: allocation must be on cpu like the model, got meta"):
        CapturedPrefill(adapter, 4).encode(texture, allocation.to("meta"))
    head = adapter.model.lm_head
    adapter.model.lm_head = torch.nn.Linear(32, 64, device="meta")  # as a model that is spread over several
    try:
        with pytest.raises(ValueError, match="model must be on one device, got parts on cpu and meta"):
            CapturedPrefill(adapter, 4)
    finally:
        adapter.model.lm_head = head


def test_a_moved_model_makes_a_capture_stale(adapter):
    fixed = CapturedPrefill(adapter, 4)
    assert not fixed.stale
    with torch.no_grad():
        adapter.model.lm_head.weight.add_(0.0)  # a training step stays where it is, and a graph sees it
    assert not fixed.stale
    adapter.model.double()
    try:
        assert fixed.stale
    finally:
        adapter.model.float()


def test_one_moved_weight_or_another_module_makes_a_capture_stale(adapter):
    fixed, layer = CapturedPrefill(adapter, 4), adapter.model.model.language_model.layers[-1]
    weight = layer.mlp.up_proj.weight
    kept, weight.data = weight.data, weight.data.clone()
    assert fixed.stale
    weight.data = kept
    assert not fixed.stale
    kept, layer.mlp.up_proj = layer.mlp.up_proj, nn.Sequential(layer.mlp.up_proj, nn.Linear(1, 1))
    assert fixed.stale
    layer.mlp.up_proj = kept
    assert not fixed.stale


def test_the_walk_over_a_model_finds_what_torch_finds_without_naming_it(adapter, monkeypatch):
    adapter.model.register_module("nothing", None)
    adapter.model.model.shared = adapter.model.model.visual
    try:
        every, fixed = {*adapter.model.modules()}, CapturedPrefill(adapter, 4)
        monkeypatch.setattr(nn.Module, "named_modules", None)
        found = modules_of(adapter.model)
        assert None not in found and {*found} == every and not fixed.stale
        adapter.model.train()
        with evaluating(adapter.model):
            assert not any(one.training for one in every)
        assert all(one.training for one in every)
    finally:
        adapter.model.eval()
        del adapter.model.nothing, adapter.model.model.shared


def test_an_adapter_that_is_switched_makes_a_capture_stale():
    peft = pytest.importorskip("peft", reason="peft is in the extra dev")
    model, processor = small.BUILDERS["qwen3_vl"]()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], r=2))
    fixed = CapturedPrefill(vlm.adapt(model, processor), 4)
    assert not fixed.stale
    with wrapped.disable_adapter():
        assert fixed.stale
    assert not fixed.stale
    wrapped.merge_adapter()
    assert fixed.stale


def test_the_longest_unused_length_of_prompt_gives_way(adapter, monkeypatch):
    monkeypatch.setattr(captured, "GRAPHS", 2)
    monkeypatch.setattr(captured, "BUCKET", 8)
    texture = small.picture(2 * adapter.side, 2 * adapter.side)
    allocation = small.full_grid(texture, adapter.side)
    fixed = CapturedPrefill(adapter, 4)
    seen = fixed.encode(texture, allocation)
    first = fixed.spelled("generate", QUESTION, texture, allocation)[0]
    for more in (0, 8, 0, 16):
        ids = [[*first, *[small.IDS["total"]] * more]]
        read = fixed.prefill(ids, seen)
        fresh = CapturedPrefill(adapter, 4).prefill(ids, seen)
        assert torch.equal(read.logits, fresh.logits)
    assert list(fixed.prefills) == [16, 32]


def test_layers_that_cannot_be_compiled_run_as_they_are(adapter, monkeypatch):
    def broken(function, **options):
        def raises(*inputs):
            raise RuntimeError("no compiler here\nand more")

        return raises

    monkeypatch.setattr(torch, "compile", broken)
    texture = small.picture(2 * adapter.side, 2 * adapter.side)
    allocation = small.full_grid(texture, adapter.side)
    fixed = CapturedPrefill(adapter, 4, compiled=True)
    with pytest.warns(RuntimeWarning, match=r"slower: torch.compile failed: no compiler here"):
        found = first_logits(fixed, QUESTION, texture, allocation)
    assert torch.equal(found, first_logits(CapturedPrefill(adapter, 4, compiled=False), QUESTION, texture, allocation))
    assert "torch.compile failed: no compiler here" in fixed.reasons


@pytest.mark.gpu
def test_a_graph_replays_new_numbers():
    there = torch.device("cuda", torch.cuda.current_device())
    brought = Replay(lambda one: (one.to("cuda", non_blocking=True) * 2,), [torch.zeros(5000)], device=there)
    assert brought.reason is None and not brought.inputs[0].is_cuda
    kept = [brought(torch.full((5000,), float(value)))[0].clone() for value in range(20)]  # each was read in time
    assert all((one == 2 * value).all() for value, one in enumerate(kept))
    replay = Replay(lambda one, two: (one + two,), [torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")])
    assert replay.reason is None
    for value in (1.0, 5.0):
        (total,) = replay(torch.full((3,), value, device="cuda"), torch.ones(3, device="cuda"))
        assert total.tolist() == [value + 1] * 3


@pytest.mark.gpu
@pytest.mark.parametrize("family", list(small.BUILDERS))
def test_captured_answers_are_those_of_transformers(family):
    model, processor = small.BUILDERS[family]()
    adapter = vlm.adapt(model.cuda(), processor)
    fixed = CapturedPrefill(adapter, 11, compiled=False)
    for size in ((150, 260), (90, 70), (300, 64)):
        texture = small.picture(*size).to("cuda")
        allocation = small.chosen(small.picture(*size), adapter.side, 11).to("cuda")
        wanted = last_logits(adapter, QUESTION, texture, allocation)
        assert difference(first_logits(fixed, QUESTION, texture, allocation), wanted) < 2e-2
    assert fixed.reasons == []


@pytest.mark.gpu
def test_a_capture_that_fails_says_why_and_leaves_the_stream():
    before = torch.cuda.current_stream()
    with pytest.warns(RuntimeWarning, match=r"slower: the capture failed"):
        replay = Replay(lambda one: (one * float(one.sum()),), [torch.ones(3, device="cuda")])
    assert "the capture failed" in replay.reason
    assert torch.cuda.current_stream() == before
    assert replay(torch.ones(3, device="cuda"))[0].tolist() == [3.0] * 3
    assert Replay(lambda one: (one + 1,), [torch.ones(3, device="cuda")]).reason is None


@pytest.mark.gpu
def test_a_capture_made_in_inference_mode_serves_outside_of_it():
    with torch.inference_mode():
        replay = Replay(lambda one: (2 * one,), [torch.ones(3, device="cuda")])
        assert replay(torch.full((3,), 2.0, device="cuda"))[0].tolist() == [4.0] * 3
    given = torch.full((3,), 3.0, device="cuda", requires_grad=True)
    assert replay(given)[0].tolist() == [6.0] * 3
    assert not replay.inputs[0].requires_grad


@pytest.mark.gpu
def test_captures_in_threads_while_others_use_the_gpu():
    """Two at once, and a third thread that allocates and waits all the while."""
    over, found = threading.Event(), {}

    def busy():
        kept = []
        while not over.is_set() and len(kept) < 2000:
            kept.append(torch.ones(1 << 18, device="cuda"))  # new memory every time
            found["busy"] = float(kept[-1].sum())

    def capture(number):
        replay = Replay(lambda one: ((one * number).sin().cumsum(0),), [torch.ones(1 << 16, device="cuda")])
        found[number] = replay.reason, float(replay(torch.full((1 << 16,), 0.5, device="cuda"))[0][0])

    threads = [threading.Thread(target=busy), *(threading.Thread(target=capture, args=(one,)) for one in (1, 2))]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    over.set()
    threads[0].join()
    assert found["busy"] == 1 << 18
    for number in (1, 2):
        reason, first = found[number]
        assert reason is None and first == pytest.approx(math.sin(0.5 * number), abs=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_capture_on_a_device_that_is_not_the_current_one():
    for device in ("cuda:0", "cuda:1", "cuda:0"):
        replay = Replay(lambda one: (one + 1,), [torch.zeros(3, device=device)])
        assert replay.reason is None and torch.cuda.current_device() == 0
        assert replay(torch.full((3,), 4.0, device=device))[0].tolist() == [5.0] * 3
