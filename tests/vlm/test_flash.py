"""FlashAttention stays on: transformers' own code for it runs, with kernels that say what the real ones would."""

from functools import wraps

import pytest
import torch
from torch.nn import functional

from tests.vlm import small
from texturevlm import vlm
from texturevlm.ask.attention import question_attention

QUESTION = "what is the total ?"


def attended(query, key, value, scale, causal):
    """(L, heads, d) each; a causal query sees the keys up to its own, counted from the end."""
    group = query.shape[1] // key.shape[1]
    query, key, value = (
        query.transpose(0, 1),
        *(one.repeat_interleave(group, 1).transpose(0, 1) for one in (key, value)),
    )
    seen = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool)
    mask = seen.tril(key.shape[1] - query.shape[1]) if causal else seen
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale).transpose(0, 1)


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), **_):
    return torch.stack([attended(*one, softmax_scale, causal) for one in zip(q, k, v)])


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False, **_
):
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32  # what the kernel takes
    assert int(cu_seqlens_q[-1]) == len(q) and int(cu_seqlens_q.diff().max()) <= int(max_seqlen_q)
    queries, keys = (torch.stack([ends[:-1], ends[1:]], 1).tolist() for ends in (cu_seqlens_q, cu_seqlens_k))
    found = [
        attended(q[first:last], k[start:end], v[start:end], softmax_scale, causal)
        for (first, last), (start, end) in zip(queries, keys, strict=True)
    ]
    return torch.cat(found)


def unused(*inputs, **options):
    raise AssertionError("for paged caches")


@pytest.fixture
def flash(monkeypatch):
    """In place of the package's own functions; which of them were called."""
    from transformers import modeling_flash_attention_utils as there

    called = []

    def counted(function):
        @wraps(function)  # transformers looks at the arguments that it takes
        def calling(*inputs, **options):
            called.append(function)
            return function(*inputs, **options)

        return calling

    own = (counted(flash_attn_func), counted(flash_attn_varlen_func), unused)
    kernels = (*own, there._pad_input, there._unpad_input)
    monkeypatch.setattr(there, "_lazy_imports", lambda *_, **options: kernels)
    monkeypatch.setattr(there, "_loaded_implementation", None)
    return called


def outputs(adapter):
    """Logits of a batch with padding and mixed scales, levels joint and apart; an answer; where attention goes."""
    side = adapter.side
    pictures = [small.picture(3 * side, 4 * side), small.picture(2 * side, 5 * side), small.picture(4 * side, 2 * side)]
    chosen = [small.chosen(one, side, count) for one, count in zip(pictures, (7, 4, 9))]
    prompts, textures, allocations = [QUESTION, "and ?"], [pictures[:2], pictures[2]], [chosen[:2], chosen[2]]
    found = []
    with torch.no_grad():
        for levels in ("joint", "apart"):
            inputs = adapter.prepare(prompts, textures, allocations, levels=levels)
            logits = adapter.model(**inputs).logits
            found.append(logits[inputs["attention_mask"].bool()])
    found.append(adapter.generate(prompts, textures, allocations, max_new_tokens=4, do_sample=False).float())
    found += question_attention(adapter, QUESTION, pictures[:2], chosen[:2])
    return found


@pytest.mark.parametrize("family", list(small.BUILDERS))
def test_flash_attention_reads_what_sdpa_reads(flash, family):
    adapter = vlm.adapt(*small.BUILDERS[family]())
    torch.manual_seed(3)
    wanted = outputs(adapter)
    assert not flash
    adapter.model.config._attn_implementation = "flash_attention_2"
    adapter.model.config.vision_config._attn_implementation = "flash_attention_2"
    adapter.model.config.get_text_config()._attn_implementation = "flash_attention_2"
    torch.manual_seed(3)
    for ours, sdpa in zip(outputs(adapter), wanted, strict=True):
        assert float((ours - sdpa).abs().max()) < 1e-4
    assert set(flash) == {flash_attn_func, flash_attn_varlen_func}
    assert float((wanted[0] - wanted[1]).abs().max()) > 1e-3
