"""Summaries of keys and values fetched by texture units, at whole and fractional levels: error and time.

    python -m texturevlm_lab.studies.kv_texture examples --out results [--model reader]

Keys and values of a trained model on one page are the channels of an image with one texel per visual token; its mips
are the summaries. Blocks are 8 × 8 tokens, so level 3 at the centre of a block is its mean, and so is every level down
to 2, whose four texels meet there; below, the middle of the block counts alone, above, its neighbours count too. The
error is that of attention with 10% of the blocks fine against dense attention. Times need a GPU: K of 65,536 tokens, 8
heads of 128.
"""

import argparse
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.ask import load_vlm
from texturevlm.ops import DeviceTexture, lookup, mipmap
from texturevlm_lab.attention.block_layout import BlockLayout
from texturevlm_lab.attention.hierarchical import hierarchical_attention
from texturevlm_lab.attention.key_value_texture import KeyValueLevel, KeyValueTexture, block_means
from texturevlm_lab.bench.attention_error import Layers, attention_inputs, dense_attention, relative_error
from texturevlm_lab.bench.timing import Work, device_warm
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.studies.study import MODEL, provenance, study_main

SIDE = 8  # of a block, in tokens
LEVEL = 3  # at which a texel is a block
LODS = (0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 3.25, 3.5, 4.0)
FINE_SHARE = 0.1
TIMED = (256, 1024)  # tokens along a side, channels


def measure(options: argparse.Namespace) -> dict[str, Any]:
    page = options.data / "invoice.png"
    if not page.is_file():
        raise FileNotFoundError(f"DATA must hold invoice.png, got {options.data}")
    model = load_vlm(options.model)
    layers = attention_inputs(model, page)
    grid = model.adapter.grid_for(model.prepare(page).pictures[0].texture.size)
    rows = errors(layers, grid, int(layers.visual.min()), options.limit)
    return {"model": options.model, "tokens": list(grid), "rows": rows, "times": times()}


def errors(layers: Layers, grid: tuple[int, int], first: int, limit: int | None) -> list[dict[str, Any]]:
    """Per way to summarise: the error of each layer.

    grid:  rows and columns of the visual tokens, which stand in reading order
    first: where the first of them stands
    limit: at most so many layers
    """
    table = square_blocks(grid, first).to(layers.visual.device)
    length = layers.inputs[0][1].shape[2]
    layout = BlockLayout.of(1, length, length, visual=table, causal=True, device=table.device)
    found: dict[str, list[float]] = {}
    for q, k, v in layers.inputs[:limit]:
        dense = dense_attention(q, k, v, causal=True)
        exact = block_means(k, v, layout.table, layout.block)
        for name, level in {"block means": exact, **fetched(k, v, grid, first, exact)}.items():
            texture = KeyValueTexture(level, layout.block)
            out = hierarchical_attention(q, k, v, layout=layout, fine=FINE_SHARE, texture=texture)
            found.setdefault(name, []).append(relative_error(out, dense))
    return [{"summary": name, "errors": values} for name, values in found.items()]


def square_blocks(grid: tuple[int, int], first: int) -> Tensor:
    """(n,): tokens in blocks of SIDE × SIDE, row by row of blocks; -1 beyond the grid."""
    rows, columns = grid
    index = first + torch.arange(rows * columns).view(rows, columns)
    padded = functional.pad(index, (0, -columns % SIDE, 0, -rows % SIDE), value=-1)
    found: Tensor = padded.unflatten(0, (-1, SIDE)).unflatten(2, (-1, SIDE)).transpose(1, 2).flatten()
    return found


def fetched(k: Tensor, v: Tensor, grid: tuple[int, int], first: int, exact: KeyValueLevel) -> dict[str, KeyValueLevel]:
    """The summaries at each of LODS, at the centres of blocks; by texture units on a GPU, in software without one."""
    rows, columns = grid
    image = torch.cat([k, v], -1)[:, :, first : first + rows * columns].mT.flatten(1, 2).unflatten(2, grid).float()
    image = functional.pad(image, (0, -columns % SIDE, 0, -rows % SIDE), mode="replicate")
    levels = mipmap(image.contiguous(), levels=LEVEL + 2)
    across, down = image.shape[3] // SIDE, image.shape[2] // SIDE
    y, x = torch.meshgrid(torch.arange(down), torch.arange(across), indexing="ij")
    centres = ((torch.stack([x, y], -1).reshape(1, -1, 2) + 0.5) * SIDE).float().to(k.device)
    source: Any = DeviceTexture(levels, half=True) if k.is_cuda else levels
    found = {}
    for lod in LODS:
        values = lookup(source, centres, torch.full(centres.shape[:2], lod, device=k.device))
        both = values.unflatten(2, (k.shape[1], -1)).transpose(1, 2).to(k.dtype)
        key, value = both.split([k.shape[3], v.shape[3]], -1)
        found[f"level {lod:g}"] = KeyValueLevel(key.contiguous(), value.contiguous(), exact.count)
    return found


def times() -> list[dict[str, Any]]:
    """Microseconds on a GPU; none without one."""
    if not torch.cuda.is_available():
        return []
    side, channels = TIMED
    image = torch.randn(1, channels, side, side, device="cuda", dtype=torch.float16)
    levels = mipmap(image, levels=LEVEL + 2)
    texture = DeviceTexture(levels, half=True)
    blocks = side // SIDE
    y, x = torch.meshgrid(torch.arange(blocks), torch.arange(blocks), indexing="ij")
    centres = ((torch.stack([x, y], -1).reshape(1, -1, 2) + 0.5) * SIDE).float().cuda()
    keys = torch.randn(1, 8, side * side, channels // 8, device="cuda", dtype=torch.float16)
    stored = torch.randn(1, 8, blocks**2, channels // 8, device="cuda", dtype=torch.float16)
    whole, between = (torch.full(centres.shape[:2], lod, device="cuda") for lod in (3.0, 2.5))
    works: dict[str, Work] = {
        "mips of K, as an image": partial(mipmap, image, levels=LEVEL + 2),
        "the same into texture units": partial(texture.fill, levels),
        "fetch of all blocks by texture units, level 3": partial(lookup, texture, centres, whole),
        "fetch of all blocks by texture units, level 2.5": partial(lookup, texture, centres, between),
        "the same by our kernel, level 2.5": partial(lookup, levels, centres, between, backend="cuda"),
        "block means of K and V from tokens, Triton": partial(KeyValueTexture.of, keys, keys),
        "stored block means, read and copied": stored.clone,
    }
    return [{"work": work, "microseconds": device_warm(call, repeats=7).median} for work, call in works.items()]


def report(record: dict[str, Any]) -> str:
    rows = [
        [row["summary"], f"{sum(row['errors']) / len(row['errors']):.1%}", *(f"{one:.1%}" for one in row["errors"])]
        for row in record["rows"]
    ]
    heads = ["summary", "mean", *(f"layer {number}" for number in range(len(record["rows"][0]["errors"])))]
    tokens = "{} × {}".format(*record["tokens"])
    taken = [[row["work"], f"{row['microseconds']:.1f}"] for row in record["times"]]
    side, channels = TIMED
    return markdown_page(
        "# Keys and values in texture units",
        f"Relative error of attention, {record['model']}, {tokens} visual tokens, blocks of {SIDE} × {SIDE}, "
        f"{FINE_SHARE:.0%} of them fine; the others are summaries fetched at a level of detail.",
        markdown_table(heads, rows),
        f"Time, {side} × {side} tokens, {channels} channels in half precision, warm caches."
        if taken
        else "Time: not measured, no GPU.",
        *([markdown_table(["work", "µs"], taken)] if taken else []),
        provenance(record),
    )


main = study_main(__name__, __doc__, measure, report, MODEL)
