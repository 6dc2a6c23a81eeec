"""How far hierarchical attention is from dense attention: on peaked inputs, and on those of a trained model."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from texturevlm_lab.attention.hierarchical import hierarchical_attention

BLOCK_SIZE = 64
PEAK = 60.0  # by which a query's score with the keys of its block exceeds that with others, before the scale
ERROR_BAR = 0.02


def error_notes(device: str, quick: bool) -> list[str]:
    """Lines of the report."""
    tokens = 1024 if quick else 8192
    q, k, v, wanted = peaked_input(tokens, device)
    found = hierarchical_attention(q, k, v, fine=0.1, neighbours=0, backend="auto", block=BLOCK_SIZE)
    error = relative_error(found, dense_attention(q, k, v))
    verdict = "met" if error <= ERROR_BAR else "MISSED"
    return [
        f"Peaked inputs, {tokens} tokens, 10% fine: relative error {error:.2%} of dense attention in float32 "
        f"(bar {ERROR_BAR:.0%}, {verdict}); right blocks chosen: {right_blocks(q, k, v, wanted):.1%}.  "
    ]


def peaked_input(tokens: int, device: str, *, heads: int = 8, shared: int = 2, width: int = 128) -> tuple[Tensor, ...]:
    """Queries each group of which looks for one block elsewhere, and the number of that block (G,)."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    blocks = tokens // BLOCK_SIZE
    centre = torch.randn(1, shared, blocks, 1, width, device=device)
    k = centre + 0.3 * torch.randn(1, shared, blocks, BLOCK_SIZE, width, device=device)
    k = k / k.norm(dim=-1, keepdim=True)
    wanted = torch.randperm(blocks, device=device)
    towards = k.mean(3)[:, :, wanted].repeat_interleave(heads // shared, 1)
    q = PEAK * towards[:, :, :, None] / towards.norm(dim=-1)[..., None, None]
    q = q + torch.randn(1, heads, blocks, BLOCK_SIZE, width, device=device)
    v = torch.randn(1, shared, tokens, width, device=device)
    q, k = q.flatten(2, 3) * width**0.5 / 4, k.flatten(2, 3)
    return q.to(dtype), k.to(dtype), v.to(dtype), wanted


def right_blocks(q: Tensor, k: Tensor, v: Tensor, wanted: Tensor) -> float:
    """The share of groups that chose, or always read, the block that they look for."""
    chosen = hierarchical_attention(q, k, v, fine=0.1, neighbours=0, block=BLOCK_SIZE, return_chosen=True)[1]
    own = torch.arange(len(wanted), device=wanted.device)
    return float(((chosen == wanted[:, None]).any(-1) | (own == wanted)).double().mean())


def dense_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """In float32."""
    return scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal, scale=scale, enable_gqa=True)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """The length of the difference as a share of the length of what was wanted."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())
