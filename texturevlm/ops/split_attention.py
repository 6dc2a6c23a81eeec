"""Attention of few queries to many keys: parts of the keys are read side by side, and their results are joined.

A kernel of attention gives 64 queries of a head to one multiprocessor, which walks over all keys. A few hundred queries
leave most of a GPU idle. With the keys in P parts there are P times as many blocks, each with a P-th of the way; the
sum of a part's exponentials says how much its result counts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

QUERY_BLOCK = 64  # queries that one block of a kernel takes
ENOUGH_BLOCKS = 256  # that keep a large GPU busy
MOST_PARTS = 8
KEYS_ALIGNED = 8 * MOST_PARTS  # the number of keys must be a multiple of it: kernels read rows of the bias by eight
MASKED = -30000.0  # of a bias: not −∞, since a part in which a query sees no key would be NaN


def key_parts(heads: int, queries: int) -> int:
    """In how many parts to read the keys, for so many queries per head of keys."""
    blocks = heads * -(-queries // QUERY_BLOCK)
    return next((parts for parts in (1, 2, 4) if blocks * parts >= ENOUGH_BLOCKS), MOST_PARTS)


def split_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *, scale: float, parts: int) -> Tensor:
    """Softmax attention, in no more memory than the results of the parts.

    query:      (H, N, d)
    key, value: (H, L, d); L is a multiple of 8 · parts
    bias:       (N, L), added to the scores; MASKED where a query does not see a key. Each sees one at least
    returns     (H, N, d)
    """
    if parts == 1:
        whole: Tensor = functional.scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=bias[None, None], scale=scale
        )[0]
        return whole
    heads, count, width = query.shape
    keys, values = (part.view(heads, parts, -1, width).transpose(0, 1) for part in (key, value))
    biases = bias.view(count, parts, -1).transpose(0, 1)[:, None].expand(-1, heads, -1, -1)
    found, total = _with_sums(query.expand(parts, -1, -1, -1), keys, values, biases, scale)
    share = total[..., :count].softmax(0)  # the kernel rounds the number of queries up
    return (found * share[..., None]).sum(0).to(query.dtype)


def _with_sums(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention (B, H, N, d), and the logarithm of the sum of the exponentials (B, H, N), float32."""
    if query.is_cuda:
        given = (query, key, value, bias, True)
        found, total, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(*given, scale=scale)
    else:
        found, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=bias, scale=scale
        )
    return found, total
