"""A contact sheet of a texture's layers: each as a small picture with its name and the time that it took."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.channels import CHANNELS, build, resolve
from texturevlm.draw import FAINT, INK, PAPER, RAMP, ramp_bar, ramp_colours, to_pil
from texturevlm.types import COLOURS, Texture

_TILE, _GAP, _CAPTION, _COLUMNS = 232, 14, 46, 8
_EMPTY = (244, 244, 246)


def contact_sheet(texture: Texture, channels: str | Sequence[str] = "fast") -> tuple[Image.Image, dict[str, float]]:
    """Build the layers one by one and draw them; returns the picture and the milliseconds per layer.

    Layers that share work (edges and edge_distance, the clusters) each count it in full. A preset is drawn without the
    layers that need a model.
    """
    names = resolve(channels)
    if isinstance(channels, str):
        names = tuple(name for name in names if CHANNELS[name].cost != "model")
    milliseconds: dict[str, float] = {}
    pictures: list[tuple[str, Image.Image]] = []
    build(texture, list(names))  # compiling and loading at first use must not count as a layer's time
    for name in names:
        _wait(texture)
        started = time.perf_counter()
        layer = build(texture, [name]).levels[0][0, 0]
        _wait(texture)
        milliseconds[name] = (time.perf_counter() - started) * 1e3
        pictures.append((name, layer_picture(name, layer)))
    return _arrange(pictures, milliseconds, texture.size), milliseconds


def _wait(texture: Texture) -> None:
    if texture.device.type == "cuda":
        torch.cuda.synchronize(texture.device)


def layer_picture(name: str, layer: Tensor) -> Image.Image:
    """Red, green and blue in their own colour, regions in contrasting colours, everything else on one ramp."""
    layer = layer.float().cpu()
    if name in COLOURS:
        hue = torch.zeros(3, *layer.shape)
        hue[COLOURS.index(name)] = layer
        return to_pil(hue[None])
    if name == "cluster_id":
        mixed = torch.stack([(layer * step) % 1.0 for step in (0.61803, 0.35410, 0.81966)])
        return to_pil((0.25 + 0.75 * mixed)[None])
    low, high = CHANNELS[name].range
    if name == "cluster_size":
        high = max(layer.max().item(), 1e-6)
    shade = ramp_colours(1 - ((layer - low) / (high - low)).clamp(0, 1).numpy())
    return Image.fromarray(shade.round().astype(np.uint8))


def _arrange(
    pictures: Sequence[tuple[str, Image.Image]], milliseconds: dict[str, float], size: tuple[int, int]
) -> Image.Image:
    height = max(24, min(round(_TILE * size[0] / size[1]), 2 * _TILE))
    columns = min(_COLUMNS, len(pictures))
    rows = -(-len(pictures) // columns)
    head = 44
    sheet = Image.new("RGB", (_GAP + columns * (_TILE + _GAP), head + rows * (height + _CAPTION + _GAP) + _GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    title, large, small = (ImageFont.load_default(points) for points in (20, 16, 12))
    draw.text((_GAP, 12), f"{len(pictures)} layers of {size[1]} x {size[0]} pixels", fill=INK, font=title)
    sheet.paste(ramp_bar(160, 15, RAMP[::-1]), (sheet.width - _GAP - 160, 14))
    draw.text((sheet.width - _GAP - 168, 14), "none", fill=FAINT, font=small, anchor="ra")
    for index, (name, picture) in enumerate(pictures):
        x = _GAP + index % columns * (_TILE + _GAP)
        y = head + index // columns * (height + _CAPTION + _GAP)
        if missing := CHANNELS[name].needs:  # a single image has no history
            draw.rectangle([x, y, x + _TILE - 1, y + height - 1], fill=_EMPTY)
            draw.text((x + _TILE / 2, y + height / 2), "nothing known yet", fill=FAINT, font=small, anchor="mm")
        else:
            sheet.paste(picture.resize((_TILE, height), Image.Resampling.BOX), (x, y))
        draw.rectangle([x - 1, y - 1, x + _TILE, y + height], outline=FAINT)
        draw.text((x, y + height + 5), f"{CHANNELS[name].layer} {name}", fill=INK, font=large)
        cost = f"{milliseconds[name]:.1f} ms" + (f", needs {missing}" if missing else "")
        draw.text((x, y + height + 26), cost, fill=FAINT, font=small)
    return sheet
