"""How far hierarchical attention is from dense attention in a trained model: the reader, on a page at full detail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask import VLM, load_vlm
from texturevlm.ask.messages import conversation_about
from texturevlm.draw import to_pil
from texturevlm.vlm import own_grid
from texturevlm.vlm.loops import query_and_key
from texturevlm_lab.attention.block_layout import FINE, BlockLayout
from texturevlm_lab.attention.hierarchical import hierarchical_attention
from texturevlm_lab.attention.token_order import visual_order
from texturevlm_lab.bench.attention_error import dense_attention, relative_error
from texturevlm_lab.bench.attention_tower import tower_notes
from texturevlm_lab.bench.pictures import page
from texturevlm_lab.bench.reader import READER_QUESTION, random_reader

INVOICE = Path(__file__).parents[3] / "examples" / "invoice.png"  # in a checkout
ROWS = (("hierarchical", 0.1), ("hierarchical", 0.25), ("hierarchical", 0.5), ("latent", 0.1), ("linear", 0.0),
        ("window", 0.0))  # fmt: skip


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
    """A table of the report; in a quick run of a small network with random weights, which only shows that it works."""
    image: Any
    if quick:
        model, image, name = random_reader(device, 24), to_pil(page(1, 350, 248)), "a random reader"
        model.model.float()
    elif INVOICE.is_file():
        model, image, name = load_vlm("reader", device=device), INVOICE, "the shipped reader on examples/invoice.png"
    else:
        return [f"Trained attention: {INVOICE} is not there.  "]
    layers = attention_inputs(model, image)
    count = layers.visual.shape[1]
    lines = [
        f"Attention of {name}, {count} visual tokens, causal: relative error of dense attention, mean over layers "
        "(lowest to highest).",
        "",
        "| kind | fine | keys read | all queries | the question's |",
        "|---|---|---|---|---|",
    ]
    for kind, fine in ROWS:
        whole, asking, read = layer_errors(layers, kind, fine, block=4 if quick else 64)
        lines.append(f"| {kind} | {fine:.0%} | {read:.0%} | {_spread(whole)} | {_spread(asking)} |")
    return ["", *lines, "", *tower_notes(model, image, block=4 if quick else 64)]


def attention_inputs(model: VLM, image: Any) -> Layers:
    """Of a question about an image with all tokens that the unmodified model would read."""
    adapter = model.adapter
    (prepared,) = model.prepare(image).images
    prompt = conversation_about(1, READER_QUESTION, adapter.marks)
    inputs = adapter.prepare(prompt, prepared.texture, own_grid(adapter, prepared.texture))
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
    layout = BlockLayout.of(
        1,
        length,
        length,
        visual=layers.visual,
        causal=True,
        block=block,
        group=block,
        neighbours=None if kind == "linear" else 1,
        device=layers.visual.device,
    )
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
