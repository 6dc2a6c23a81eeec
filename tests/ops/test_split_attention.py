"""Attention over parts of the keys, against the softmax over all of them."""

import pytest
import torch

from texturevlm.ops.split_attention import KEYS_ALIGNED, MASKED, MOST_PARTS, key_parts, split_attention


def inputs(heads=2, queries=5, keys=2 * KEYS_ALIGNED, width=16, dtype=torch.float64, device="cpu"):
    random = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(heads, count, width, generator=random, dtype=torch.float64).to(device, dtype)
        for count in (queries, keys, keys)
    )
    seen = torch.rand(queries, keys, generator=random) > 0.3
    seen[0, 3:] = False  # all but one part hold nothing for this query
    seen[:, 3] = True
    bias = torch.zeros(queries, keys).masked_fill(~seen, MASKED).to(device, dtype)
    return query, key, value, bias, seen.to(device)


def expected(query, key, value, seen, scale):
    scores = (query.double() @ key.double().mT * scale).masked_fill(~seen, -torch.inf)
    return scores.softmax(-1) @ value.double()


@pytest.mark.parametrize("parts", [1, 2, 4, MOST_PARTS])
def test_parts_give_the_softmax_over_all(parts):
    query, key, value, bias, seen = inputs(dtype=torch.float32)
    found = split_attention(query, key, value, bias, scale=0.3, parts=parts)
    wanted = expected(query, key, value, seen, 0.3)
    assert found.dtype == torch.float32 and float((found - wanted).abs().max()) < 1e-5
    other = expected(query, key, value, seen.roll(1, 1), 0.3)  # a control: another mask is seen
    assert float((found - other).abs().max()) > 0.1


def test_few_queries_take_many_parts():
    assert key_parts(8, 4 * 32) == MOST_PARTS and key_parts(8, 4 * 256) == 2 and key_parts(8, 4 * 4096) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-4), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("queries", [4, 33, 384])
def test_the_kernel_gives_the_same(dtype, bound, queries):
    query, key, value, bias, seen = inputs(8, queries, 77 * KEYS_ALIGNED, 128, dtype, "cuda")
    for parts in (1, 2, MOST_PARTS):
        found = split_attention(query, key, value, bias, scale=0.1, parts=parts)
        assert float((found.double() - expected(query, key, value, seen, 0.1)).abs().max()) < bound
