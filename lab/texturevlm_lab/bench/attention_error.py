"""How far hierarchical attention is from dense attention: on peaked inputs, and in a trained model.

The model is the reader, on a page at full detail: the attention of its language model, and the tokens of its tower if
that attends hierarchically, or in windows, in all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from texturevlm.ask import VLM, conversation_about, load_vlm
from texturevlm.draw import to_pil
from texturevlm.vlm import PromptImage, View, own_grid
from texturevlm.vlm.loops import query_and_key
from texturevlm_lab.attention.block_layout import FINE, BlockLayout
from texturevlm_lab.attention.hierarchical import hierarchical_attention
from texturevlm_lab.attention.options import AttentionOptions
from texturevlm_lab.attention.token_order import visual_order
from texturevlm_lab.attention.tower import TowerAttention
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.reader import READER_QUESTION, random_reader
from texturevlm_lab.evaluate.markdown import markdown_table

BLOCK_SIZE = 64
PEAK = 60.0  # by which a query's score with the keys of its block exceeds that with others, before the scale
ERROR_BAR = 0.02
INVOICE = Path(__file__).parents[3] / "examples" / "invoice.png"  # in a checkout
LAYER_ROWS = (("hierarchical", 0.1), ("hierarchical", 0.25), ("hierarchical", 0.5), ("latent", 0.1), ("linear", 0.0),
              ("window", 0.0))  # fmt: skip
TOWER_ROWS = (("hierarchical", 0.1, 1), ("hierarchical", 0.25, 1), ("linear", 0.0, 1), ("window", 0.0, 1),
              ("window", 0.0, 4))  # fmt: skip


def error_notes(device: str, quick: bool) -> list[str]:
    """What the report says of peaked inputs: the error, and how often the right blocks are chosen."""
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
    """Exact attention in float32, which errors are measured against."""
    return scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=causal, scale=scale, enable_gqa=True)


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """The length of the difference as a share of the length of what was wanted."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@dataclass(frozen=True, eq=False)
class Layers:
    """What the attention of each layer gets for one prompt.

    inputs: q, k and v of each layer
    visual: (1, n), the visual tokens along the quadtree
    last:   the first token of the text behind them
    """

    inputs: list[tuple[Tensor, Tensor, Tensor]]
    visual: Tensor
    last: int


def trained_notes(device: str, quick: bool) -> list[str]:
    """Two tables of the report; a quick run takes a small network with random weights, to see that all works."""
    image: Any
    if quick:
        model, image, name = random_reader(device, 24), to_pil(page(1, 350, 248)), "a random reader"
        model.model.float()
    elif INVOICE.is_file():
        model, image, name = load_vlm("reader", device=device), INVOICE, "the shipped reader on examples/invoice.png"
    else:
        return [f"Trained attention: {INVOICE} is not there.  "]
    block = 4 if quick else BLOCK_SIZE
    layers, rows = attention_inputs(model, image), []
    for kind, fine in LAYER_ROWS:
        whole, asking, read = layer_errors(layers, kind, fine, block=block)
        rows.append((kind, f"{fine:.0%}", f"{read:.0%}", _spread(whole), _spread(asking)))
    views = own_views(model, image)
    dense, towers = tower_tokens(model.adapter, views), []
    for kind, fine, neighbours in TOWER_ROWS:
        options = AttentionOptions(kind=kind, fine=fine, neighbours=neighbours, block=block, group=block)
        error = relative_error(tower_tokens(model.adapter, views, options), dense)
        towers.append((kind, f"{fine:.0%}", neighbours, f"{error:.1%}"))
    return [
        "",
        f"Attention of {name}, {layers.visual.shape[1]} visual tokens, causal: relative error of dense attention, mean "
        "over layers (lowest to highest).",
        "",
        *markdown_table(("kind", "fine", "keys read", "all queries", "the question's"), rows).splitlines(),
        "",
        f"Its tower, {sum(map(len, views)) * model.adapter.merge**2} patches: relative error of the tokens behind the "
        "last block.",
        "",
        *markdown_table(("kind", "fine", "neighbours", "tokens"), towers).splitlines(),
        "",
    ]


def attention_inputs(model: VLM, image: Any) -> Layers:
    """Of a question about an image with all tokens that the unmodified model would read."""
    adapter = model.adapter
    (picture,) = model.prepare(image).pictures
    prompt = conversation_about(1, READER_QUESTION, adapter.marks)
    inputs = adapter.prepare(prompt, picture.texture, own_grid(adapter, picture.texture))
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def keep(attention: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        cos, sin = kwargs["position_embeddings"]
        query, key = query_and_key(attention, hidden, cos, sin, adapter.normed_heads)
        value = attention.v_proj(hidden).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        found.append((query, key, value))

    layers = adapter.language_of(adapter.model).layers
    hooks = [one.self_attn.register_forward_pre_hook(keep, with_kwargs=True) for one in layers]
    try:
        with torch.no_grad():
            adapter.model(**inputs)
    finally:
        for one in hooks:
            one.remove()
    ids = inputs["input_ids"]
    visual = torch.isin(ids, torch.tensor(adapter.visual_ids, device=ids.device))
    order = visual_order(adapter, ids, visual, {"get_image_features": inputs["pixel_values"]})
    return Layers(found, order, int(visual[0].nonzero()[-1]) + 1)


def layer_errors(layers: Layers, kind: str, fine: float, *, block: int = 64) -> tuple[list[float], list[float], float]:
    """Per layer, of all queries and of those behind the image; and the share of keys that the latter read."""
    length, whole, asking = layers.inputs[0][1].shape[2], [], []
    sizes: Any = {"block": block, "group": block, "neighbours": None if kind == "linear" else 1}
    layout = BlockLayout.of(1, length, length, visual=layers.visual, causal=True, device=layers.visual.device, **sizes)
    for q, k, v in layers.inputs:
        found = hierarchical_attention(q, k, v, layout=layout, fine=fine, kind=kind, block=block)
        dense = dense_attention(q, k, v, causal=True)
        whole.append(relative_error(found, dense))
        asking.append(relative_error(found[:, :, layers.last :], dense[:, :, layers.last :]))
    chosen = 0.0 if kind in ("linear", "window") else float(layout.allowed(fine)[0, -1])
    read = (float((layout.state[0, -1] == FINE).sum()) + chosen) / layout.keys.shape[1]
    return whole, asking, read


def _spread(values: list[float]) -> str:
    return f"{sum(values) / len(values):.1%} ({min(values):.1%} to {max(values):.1%})"


def own_views(model: VLM, image: Any) -> Sequence[View]:
    """The views of an image on the model's own grid."""
    (picture,) = model.prepare(image).pictures
    (views,) = model.adapter.groups(PromptImage(picture.texture, own_grid(model.adapter, picture.texture)))
    return views


def tower_tokens(adapter: Any, views: Sequence[View], options: AttentionOptions | None = None) -> Tensor:
    """(n, D): what the language model gets of views from a tower that attends so, densely by default."""
    hooks = [] if options is None else list(TowerAttention(adapter, options).hooks())
    try:
        with torch.no_grad():
            return torch.cat(adapter.embed(views)[0])
    finally:
        for one in reversed(hooks):
            one.remove()
