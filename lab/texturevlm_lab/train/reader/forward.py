"""A batched forward pass over the parameters of a stock Qwen3-VL, for training: the same numbers, many prompts at once.

transformers runs the tower on one packed row of patches and finds positions on the host. Here every prompt of a batch
has the same number of visual tokens, so that all is dense, compiles well and reads no values. A test compares both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn

from texturevlm.vlm.places import bilinear_taps, places
from texturevlm_lab.train.reader.alphabet import ANSWER, END, PAD
from texturevlm_lab.train.reader.network import MERGE, PATCH, TOKEN_SIDE
from texturevlm_lab.train.reader.views import COARSEST, LEVELS


class Prompts(NamedTuple):
    """B prompts of K visual tokens and T ids each.

    pixels:  (B, K, TOKEN_SIDE, TOKEN_SIDE), -1 to 1
    patch:   (B, 4K, 2), rows and columns of patches, on the grid of the token's own scale
    extent:  (B, 4K, 2), rows and columns of that grid
    segment: (B, K), falling; tokens of one segment attend to one another in the tower; None if all do
    token:   (B, K, 2), rows and columns of tokens
    after:   (B,), how far the text after the image is moved on: the larger side of the image's grid
    used:    (B,), how many of the visual tokens are used, the first ones
    ids:     (B, T), the text without the image
    before:  (B,), how many ids stand before the image
    length:  (B,), how many ids there are; padding follows
    """

    pixels: Tensor
    patch: Tensor
    extent: Tensor
    segment: Tensor | None
    token: Tensor
    after: Tensor
    used: Tensor
    ids: Tensor
    before: Tensor
    length: Tensor


class Reading(NamedTuple):
    """What a forward pass gives: logits (B, T, V), and hidden states that only training looks at.

    patches: (B, 4K, d), of the tower's last layer
    visual:  (B, K, D), of the visual tokens in the middle of the language model
    answer:  (B, D), of the token that the answer follows, there
    """

    logits: Tensor
    patches: Tensor
    visual: Tensor
    answer: Tensor


def answer_starts(ids: Tensor) -> Tensor:
    """(B,): where ANSWER stands, which the answer follows."""
    return (ids == ANSWER).int().argmax(1)


def positions(
    centre: Tensor, step: Tensor, size: Tensor, coordinates: str = "native"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """patch, extent, token and after of Prompts.

    centre: (B, K, 2), x then y in pixels
    step:   (B, K, 2), pixels per sample along x and y
    size:   (B, 2), height and width of the image
    """
    grid = (size / TOKEN_SIDE).round().clamp(min=1)
    found = places(
        centre, step, torch.stack([size / grid, grid], 1), side=TOKEN_SIDE, merge=MERGE, coordinates=coordinates
    )
    return found.patch.flatten(1, 2), found.extent.flatten(1, 2), found.token, grid.amax(-1)


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def vision_block(block: Any, x: Tensor, cos: Tensor, sin: Tensor, groups: Tensor | None, heads: int) -> Tensor:
    """One layer of the tower. x: (B, N, D); cos, sin: (B, 1, N, h).

    groups: which patches attend to one another: a mask (B, 1, N, N), or starts of sequences (S,) in all patches of the
            batch, whose last one is their number; None if all of a prompt do
    """
    batch, count, width = x.shape
    joint = block.attn.qkv(block.norm1(x)).view(batch, count, 3, heads, width // heads)
    q, k, v = joint.permute(2, 0, 3, 1, 4)
    q = (q.float() * cos + _half_turned(q.float()) * sin).to(v.dtype)
    k = (k.float() * cos + _half_turned(k.float()) * sin).to(v.dtype)
    if groups is not None and groups.dim() == 1:
        q, k, v = (one.transpose(1, 2).reshape(batch * count, heads, -1) for one in (q, k, v))
        flat: Any = varlen_attn(q, k, v, groups, groups, count, count)
        mixed = flat.view(batch, count, width)
    else:
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=groups)
        mixed = mixed.transpose(1, 2).reshape(batch, count, width)
    x = x + block.attn.proj(mixed)
    out: Tensor = x + block.mlp(block.norm2(x))
    return out


def text_block(layer: Any, x: Tensor, cos: Tensor, sin: Tensor, heads: int, shared: int, width: int) -> Tensor:
    """One layer of the language model; `shared` heads of keys and values, all heads of `width`."""
    batch, length, _ = x.shape
    attention, y = layer.self_attn, layer.input_layernorm(x)
    q = attention.q_norm(attention.q_proj(y).view(batch, length, heads, width)).transpose(1, 2)
    k = attention.k_norm(attention.k_proj(y).view(batch, length, shared, width)).transpose(1, 2)
    v = attention.v_proj(y).view(batch, length, shared, width).transpose(1, 2)
    q, k = (q * cos + _half_turned(q) * sin).to(v.dtype), (k * cos + _half_turned(k) * sin).to(v.dtype)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + attention.o_proj(mixed.transpose(1, 2).reshape(batch, length, heads * width))
    out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out


def attention_groups(segment: Tensor, count: Tensor) -> Tensor:
    """`groups` of `vision_block`, from Prompts: starts of sequences where flash attention takes them, else a mask."""
    used = torch.arange(segment.shape[1], device=segment.device) < count[:, None]
    number = torch.where(used, COARSEST - segment, LEVELS)  # rising; unused tokens form a segment of their own
    if segment.is_cuda and torch.is_autocast_enabled("cuda"):
        lengths = functional.one_hot(number, LEVELS + 1).sum(1).flatten() * MERGE**2
        return functional.pad(lengths.cumsum(0), (1, 0)).int()
    patches = number.repeat_interleave(MERGE**2, 1)
    return patches[:, None, :, None] == patches[:, None, None, :]


def merge_patches(merger: nn.Module, x: Tensor) -> Tensor:
    """(B, 4K, d) → (B K, D), one row per token."""
    out: Tensor = merger(x)
    return out


class BatchedReader(nn.Module):
    """The reader's network, for batches."""

    def __init__(self, network: Any, *, compiled: bool = False) -> None:
        super().__init__()
        self.network = network
        functions: list[Callable[..., Tensor]] = [vision_block, text_block, merge_patches]
        if compiled:
            functions = [torch.compile(one, dynamic=True) for one in functions]  # one version for all shapes
        self._vision, self._text, self._merge = functions

    def look(self, prompts: Prompts) -> tuple[Tensor, list[Tensor], Tensor]:
        """Visual embeddings (B, K, D), those of DeepStack, and the patches' last hidden states (B, 4K, d)."""
        tower = self.network.model.visual
        batch, count = prompts.pixels.shape[:2]
        halves = prompts.pixels.view(batch, count, MERGE, PATCH, MERGE, PATCH)
        rows = halves.transpose(3, 4).reshape(batch, count * MERGE**2, PATCH**2)
        weight = tower.patch_embed.proj.weight  # grey: colours and moments see the same pixels
        x = functional.linear(rows, weight.flatten(1).view(len(weight), 6, -1).sum(1), tower.patch_embed.proj.bias)
        patch, extent = prompts.patch.flatten(0, 1), prompts.extent.flatten(0, 1)
        taps, shares = bilinear_taps(patch, extent, tower.num_grid_per_side)
        x = x + (tower.pos_embed(taps) * shares[..., None]).sum(-2).view(*x.shape).to(x.dtype)
        angle = (prompts.patch[..., None].float() * tower.rotary_pos_emb.inv_freq).flatten(-2)
        angle = torch.cat([angle, angle], -1)[:, None]
        cos, sin = angle.cos(), angle.sin()
        groups = None if prompts.segment is None else attention_groups(prompts.segment, prompts.used)
        deep = []
        for number, block in enumerate(tower.blocks):
            x = self._vision(block, x, cos, sin, groups, tower.config.num_heads)
            if number in tower.deepstack_visual_indexes:
                merger = tower.deepstack_merger_list[list(tower.deepstack_visual_indexes).index(number)]
                deep.append(self._merge(merger, x).view(batch, count, -1))
        return self._merge(tower.merger, x).view(batch, count, -1), deep, x

    def read(self, image: Tensor, deep: list[Tensor], prompts: Prompts) -> tuple[Tensor, Tensor, Tensor]:
        """The last hidden states (B, T, D) of the ids, and `visual` and `answer` of Reading."""
        model = self.network.model.language_model
        config, ids, before, count = model.config, prompts.ids, prompts.before[:, None], prompts.used[:, None]
        batch, room, width = image.shape
        length = ids.shape[1]
        at = torch.arange(length + room, device=ids.device)[None]
        inside = (at >= before) & (at < before + count)
        # Into (image, ids); unused visual tokens come last, where no other token attends to them.
        index = torch.where(at < before, at + room, torch.where(inside, at - before, at + room - count))
        index = torch.where(at >= length + count, at - length, index)
        pick = index[..., None].expand(-1, -1, width)
        x = torch.cat([image, model.embed_tokens(ids).to(image.dtype)], 1).gather(1, pick)
        blank = x.new_zeros(batch, length, width)
        added = [torch.cat([one, blank], 1).gather(1, pick) for one in deep]
        place = torch.cat([prompts.token, prompts.token.new_zeros(batch, length, 2)], 1)
        place = place.gather(1, index[..., None].expand(-1, -1, 2)) + before[..., None]
        plain = torch.where(at < before, at, at - count + prompts.after[:, None]).float()
        axes = (before.float().expand_as(plain), place[..., 0], place[..., 1])  # time, row, column
        angle = torch.stack([torch.where(inside, axis, plain) for axis in axes])[..., None] * model.rotary_emb.inv_freq
        mixed = angle[0].clone()
        for axis in (1, 2):
            own = slice(axis, model.rotary_emb.mrope_section[axis] * 3, 3)
            mixed[..., own] = angle[axis][..., own]
        mixed = torch.cat([mixed, mixed], -1)[:, None]
        cos, sin = mixed.cos().to(x.dtype), mixed.sin().to(x.dtype)
        sizes = (config.num_attention_heads, config.num_key_value_heads, config.head_dim)
        middle = x
        for number, layer in enumerate(model.layers):
            x = self._text(layer, x, cos, sin, *sizes)
            if number < len(added):
                x = x + added[number]
            if number == len(model.layers) // 2:
                middle = x
        own_order = torch.arange(length, device=ids.device)[None]
        own_order = torch.where(own_order < before, own_order, own_order + count)
        hidden: Tensor = model.norm(x.gather(1, own_order[..., None].expand(-1, -1, width)))
        seen = (before + torch.arange(room, device=ids.device))[..., None].expand(-1, -1, width)
        first = (answer_starts(ids)[:, None] + count)[..., None].expand(-1, -1, width)
        return hidden, middle.gather(1, seen), middle.gather(1, first)[:, 0]

    def forward(self, prompts: Prompts) -> Reading:
        image, deep, patches = self.look(prompts)
        hidden, visual, answer = self.read(image, deep, prompts)
        return Reading(self.network.lm_head(hidden), patches, visual, answer)


def character_losses(logits: Tensor, prompts: Prompts) -> tuple[Tensor, Tensor]:
    """(B, T - 1): the cross-entropy of each id that follows, and whether it belongs to an answer or is its end."""
    at = torch.arange(prompts.ids.shape[1] - 1, device=logits.device)[None]
    counts = (at >= answer_starts(prompts.ids)[:, None]) & (at < prompts.length[:, None] - 1)
    each = functional.cross_entropy(logits[:, :-1].float().transpose(1, 2), prompts.ids[:, 1:], reduction="none")
    return each, counts


def answer_loss(logits: Tensor, prompts: Prompts) -> Tensor:
    """The mean cross-entropy of the answers and their ends.

    A character weighs less in a longer answer (by the root of its length): otherwise addresses would drown totals.
    """
    each, counts = character_losses(logits, prompts)
    weight = counts * counts.sum(1, keepdim=True).clamp(min=1).rsqrt()
    return (each * weight).sum() / weight.sum().clamp(min=1)


@torch.no_grad()
def answers(reader: BatchedReader, prompts: Prompts, longest: int) -> Tensor:
    """The likeliest next ids one after another, (B, longest); the answers in `prompts` are not looked at."""
    image, deep, _ = reader.look(prompts)
    first, count = answer_starts(prompts.ids) + 1, len(prompts.ids)
    room = max(prompts.ids.shape[1], int(first.max()) + longest)
    ids = functional.pad(prompts.ids, (0, room - prompts.ids.shape[1]), value=PAD)
    at = torch.arange(room, device=ids.device)[None]
    ids = torch.where(at < first[:, None], ids, PAD)
    done = torch.zeros(count, dtype=torch.bool, device=ids.device)
    for number in range(longest):
        hidden, _, _ = reader.read(image, deep, prompts._replace(ids=ids))
        last = hidden[torch.arange(count, device=ids.device), first - 1 + number]
        following = reader.network.lm_head(last).argmax(-1).where(~done, torch.full_like(first, PAD))
        ids = ids.scatter(1, (first + number)[:, None], following[:, None])
        done = done | (following == END)
        if bool(done.all()):
            break
    own = first[:, None] + torch.arange(longest, device=ids.device)
    return ids.gather(1, own.clamp(max=room - 1))
