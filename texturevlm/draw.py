"""Pictures: what the tokens deliver, their footprints, the relevance they were chosen by, and a sheet of all layers."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.channels import CHANNELS, build, resolve
from texturevlm.draw_parts import SIDE, box_around, coarse_part, cut, cut_relevance, fine_part
from texturevlm.placement import Placement
from texturevlm.rebuilding import PixelBox, median_grey, rebuild, resized
from texturevlm.relevance import SCORERS, Relevance
from texturevlm.types import COLOURS, Allocation, Texture

# From fine (bright) to coarse (dark). Lightness alone separates them, for the colour-blind and for print.
RAMP = ((253, 231, 37), (122, 209, 81), (34, 168, 132), (42, 120, 142), (65, 68, 135), (68, 1, 84))
# From irrelevant (white) to relevant (dark red); the image is multiplied by it.
HEAT = ((255, 255, 255), (254, 217, 118), (253, 141, 60), (227, 26, 28), (128, 0, 38))
PALE = 10.0  # times the mean relevance: a maximum below this is not drawn in full colour
WASH = 70  # of 255: opacity of a footprint's colour
MARGIN = 16
PANEL, TALLEST = 620, 1400  # width of one panel, and its height at most
CLOSE_UP = PANEL // 3, PANEL // 6  # width and height, in pixels of the image
INK, PAPER, FAINT, _EMPTY = (25, 28, 35), (255, 255, 255), (120, 125, 135), (244, 244, 246)
KEPT = (150, 155, 165)  # of a stream's tokens that were not sampled again
_TILE, _GAP, _CAPTION, _COLUMNS = 232, 14, 46, 8  # of the sheet of layers


class Panel(NamedTuple):
    """One column: a title, a picture, a caption, a close-up, and a legend of its colours if they mean something."""

    title: str
    image: Image.Image
    caption: str
    close_up: Image.Image
    key: Image.Image | None = None


def look_picture(texture: Texture, allocation: Allocation, point: tuple[float, float] | None = None) -> Image.Image:
    """The whole image resized to the budget, what the tokens deliver, and their footprints; below, a close-up.

    allocation: of the image; the texture may hold a smaller copy of it
    point:      (x, y) in pixels of the texture that the close-up shows; the centre of the finest footprint if None
    """
    if point is None:
        placed = allocation.scaled_to(texture.size)
        finest = torch.where(placed.valid[0], placed.area[0], math.inf).argmin()
        point = tuple(placed.centre[0, finest].tolist())
    if texture.pages is not None:
        (whole, scale), (fine, box) = coarse_part(texture), fine_part(texture, point)
        above = look_picture(whole, allocation, (point[0] * scale, point[1] * scale))
        return stacked([above, look_picture(fine, cut(allocation, box), (point[0] - box[0], point[1] - box[1]))])
    view = View.of(texture, allocation, point)
    how: Any = {"budget": allocation.budget, "patch": allocation.patch}
    baseline, close_up = to_pil(resized(view.whole, **how)), to_pil(resized(texture, **how, box=view.near))
    tokens = f"{int(allocation.valid[0].sum())} tokens of {allocation.patch}x{allocation.patch}"
    return _arrange(
        Panel(f"whole image resized to {tokens}", baseline, "close-up", _enlarge(close_up)),
        Panel(f"level of detail: {tokens}", view.seen, "close-up", view.seen_near),
        view.footprints,
    )


def draw(placements: Sequence[Placement], titles: str | Sequence[str] = "") -> Image.Image:
    """What a model reads of each picture, where its tokens lie, and why; one below the other.

    titles: one for all, or one per placement
    """
    if not isinstance(placements, Sequence):
        got = type(placements).__name__
        raise TypeError(f"draw: placements must be a sequence of Placements, such as answer.placements, got {got}")
    each = [titles] * len(placements) if isinstance(titles, str) else titles
    drawn = [
        question_picture(placed.picture.texture, placed.allocation, placed.relevance, title)
        for placed, title in zip(placements, each)
    ]
    return stacked(drawn)


def question_picture(texture: Texture, allocation: Allocation, relevance: Relevance, question: str = "") -> Image.Image:
    """What the tokens deliver, their footprints, and the relevance that they were chosen by; below, a close-up.

    The close-up shows the most relevant part, beside the original and the whole image resized to as many tokens.
    allocation: as in `look_picture`
    """
    if texture.pages is not None:
        (whole, _), (fine, box) = coarse_part(texture), fine_part(texture, weightiest(relevance, (SIDE, SIDE)))
        title = f"the part at {box[0]}, {box[1]} of {texture.size[1]} x {texture.size[0]} pixels"
        below = question_picture(fine, cut(allocation, box), cut_relevance(relevance, box), title)
        return stacked([question_picture(whole, allocation, replace(relevance, size=whole.size), question), below])
    point = weightiest(relevance, CLOSE_UP)
    view = View.of(texture, allocation, point)
    used = int(allocation.valid[0].sum())
    known = SCORERS.get(relevance.scorer)  # a caller's own scorer has only its name
    described = getattr(known, "description", relevance.scorer)
    baseline = _enlarge(to_pil(resized(texture, budget=used, patch=allocation.patch, box=view.near)))
    tokens = f"{used} tokens of {allocation.patch}x{allocation.patch}"
    caption, key = "close-up of the whole image resized to as many tokens", _key(HEAT, "matters least", "matters most")
    return _arrange(
        Panel(
            f"what the model sees: {tokens}", _framed(view.seen, view.near, texture.size), "close-up", view.seen_near
        ),
        view.footprints,
        Panel(f"relevance, by {described}", heat(to_pil(view.whole.levels[0]), relevance), caption, baseline, key),
        heading=question,
    )


class View(NamedTuple):
    """An image and what its tokens deliver: all of it at the mip level that a panel needs, and a close-up of level 0.

    near: the box of the close-up
    """

    whole: Texture
    near: PixelBox
    seen: Image.Image
    seen_near: Image.Image
    footprints: Panel

    @classmethod
    def of(cls, texture: Texture, given: Allocation, point: tuple[float, float]) -> View:
        """given: as in `look_picture`"""
        whole, near = panel_level(texture), box_around(point, CLOSE_UP, texture.size)
        left, top, right, bottom = near
        grey = median_grey(whole)
        seen = rebuild(whole, given.scaled_to(whole.size), grey=grey)
        seen_near = rebuild(texture, given.scaled_to(texture.size), box=near, grey=grey)
        close_up = _enlarge(to_pil(texture.levels[0][..., top:bottom, left:right]))
        drawn = footprints(to_pil(whole.levels[0]), given)
        panel = Panel("footprints by level", drawn, "close-up of the original", close_up, legend(given))
        return cls(whole, near, to_pil(seen), _enlarge(to_pil(seen_near)), panel)


def panel_level(texture: Texture, size: tuple[int, int] = (PANEL, TALLEST)) -> Texture:
    """The coarsest mip level that has the pixels of a panel of a size (width, height), as an image of its own."""
    shrunk = max(1.0, texture.size[1] / size[0], texture.size[0] / size[1])
    number = int(math.log2(shrunk))
    levels = texture.mipmapped(number + 1).levels[number:]
    return Texture(levels, texture.names, reduce=texture.reduce)


def heat(image: Image.Image, relevance: Relevance) -> Image.Image:
    """A faded image, multiplied by the colours of its relevance: the darker, the more relevant."""
    mass = relevance.mass[:1, None].detach().float()
    density = torch.nn.functional.interpolate(mass, (image.height, image.width), mode="bilinear")[0, 0].cpu()
    faded = 0.45 + 0.55 * np.array(image.convert("L"))[..., None] / 255
    return Image.fromarray((faded * ramp_colours(strength(density), HEAT)).round().astype(np.uint8))


def strength(density: Tensor) -> Any:
    """Relevance spans orders of magnitude: the square root makes low values visible. Uniform relevance stays pale."""
    return (density / density.max().maximum(PALE * density.mean()).clamp(min=1e-30)).sqrt().numpy()


def stacked(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures below one another."""
    tops = list(accumulate((one.height for one in pictures), initial=0))
    whole = Image.new("RGB", (max(one.width for one in pictures), tops[-1]), PAPER)
    for one, top in zip(pictures, tops):
        whole.paste(one, (0, top))
    return whole


def to_pil(image: Tensor) -> Image.Image:
    """The first image of a batch (B, C, H, W): colour if it has three channels or more, else grey."""
    colour = image[0, :3] if image.shape[1] >= 3 else image[0, :1].expand(3, -1, -1)
    pixels = (colour.detach().float().clamp(0, 1) * 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())


def footprints(image: Image.Image, allocation: Allocation, kept: Tensor | None = None) -> Image.Image:
    """An image, or a smaller copy of it, with its tokens' footprints on top, the coarse ones first, coloured by level.

    kept: (K,), tokens that are only outlined, in grey, below the others
    """
    picture = Image.blend(image, Image.new("RGB", image.size, PAPER), 0.35)
    over = Image.new("RGBA", image.size)
    draw = ImageDraw.Draw(over)
    line = max(1, round(max(image.size) / 700))
    allocation = allocation.scaled_to((image.height, image.width))
    low, high = _level_range(allocation)
    half = allocation.patch / 2
    centre, ddx, ddy = (tensor[0].double().cpu() for tensor in (allocation.centre, allocation.ddx, allocation.ddy))
    level = allocation.level[0].double().cpu().numpy()
    around = ((-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1))
    corners = torch.stack([centre + u * half * ddx + v * half * ddy for u, v in around], 1).flatten(1).tolist()
    colours = ramp_colours((level - low) / (high - low)).round().astype(int).tolist()
    grey = [False] * allocation.budget if kept is None else kept.tolist()
    for slot in sorted(allocation.valid[0].nonzero()[:, 0].tolist(), key=lambda slot: (not grey[slot], -level[slot])):
        if not grey[slot]:
            draw.polygon(corners[slot][:-2], fill=(*colours[slot], WASH))
        draw.line(corners[slot], fill=(*(KEPT if grey[slot] else colours[slot]), 255), width=line)
    picture.paste(over, mask=over)
    return picture


def legend(allocation: Allocation) -> Image.Image:
    """The colours of the levels, and how many pixels a sample covers."""
    first, last = (f"level {level:.1f}: {2**level:.1f} px per sample" for level in _level_range(allocation))
    return _key(RAMP, first, last if last != first else "")


def _key(ramp: Sequence[tuple[int, ...]], first: str, last: str) -> Image.Image:
    picture = Image.new("RGB", (PANEL, 54), PAPER)
    picture.paste(ramp_bar(PANEL, 17, ramp))
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(15)
    draw.text((0, 24), first, fill=FAINT, font=font, anchor="la")
    draw.text((PANEL, 24), last, fill=FAINT, font=font, anchor="ra")
    return picture


def _level_range(allocation: Allocation) -> tuple[float, float]:
    level = allocation.level[0][allocation.valid[0]]
    low, high = (level.min().item(), level.max().item()) if level.numel() else (0.0, 1.0)
    return low, max(high, low + 1e-6)


def ramp_colours(position: Any, ramp: Sequence[tuple[int, ...]] = RAMP) -> Any:
    """The colours (…, 3), 0 to 255, at positions (…), 0 to 1, of a ramp."""
    stops = np.linspace(0, 1, len(ramp))
    return np.stack([np.interp(position, stops, channel) for channel in zip(*ramp)], -1)


def ramp_bar(width: int, height: int, ramp: Sequence[tuple[int, ...]] = RAMP) -> Image.Image:
    """All colours of a ramp, from left to right."""
    row = ramp_colours(np.linspace(0, 1, width), ramp).round().astype(np.uint8)
    return Image.fromarray(np.tile(row, (height, 1, 1)))


def weightiest(relevance: Relevance, size: tuple[int, int]) -> tuple[float, float]:
    """The point (x, y) around which a box (width, height) in pixels holds most relevance."""
    rows, columns = relevance.grid
    down, across = relevance.size[0] / rows, relevance.size[1] / columns
    tall, wide = (2 * int(extent / cell / 2) + 1 for extent, cell in zip(size[::-1], (down, across)))
    mass = relevance.mass[:1, None].detach().float().cpu()
    around = torch.nn.functional.avg_pool2d(
        mass, (tall, wide), stride=1, padding=(tall // 2, wide // 2), divisor_override=1
    )
    row, column = divmod(int(around.argmax()), columns)
    return (column + 0.5) * across, (row + 0.5) * down


def _framed(image: Image.Image, box: PixelBox, size: tuple[int, int]) -> Image.Image:
    """A copy with a frame around a box in pixels of the full image, of (height, width)."""
    picture = image.copy()
    line = max(1, round(max(image.size) / 500))
    left, top, right, bottom = (round(edge * image.width / size[1]) for edge in box)
    ImageDraw.Draw(picture).rectangle(
        [left, top, max(left, right - 1), max(top, bottom - 1)], outline=HEAT[-1], width=line
    )
    return picture


def _enlarge(part: Image.Image) -> Image.Image:
    """A close-up: a part of an image, as wide as a panel."""
    return part.resize((PANEL, max(1, round(part.height * PANEL / part.width))), Image.Resampling.BICUBIC)


def _fit(image: Image.Image) -> Image.Image:
    """Resize to the width of a panel, or to its greatest height."""
    scale = min(PANEL / image.width, TALLEST / image.height)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST)


def _arrange(*panels: Panel, heading: str = "") -> Image.Image:
    title, small = ImageFont.load_default(20), ImageFont.load_default(15)
    scaled = [(panel, _fit(panel.image), _fit(panel.close_up)) for panel in panels]
    top = 44 if heading else 0
    head, tall, near = top + 40, scaled[0][1].height, max(close_up.height for _, _, close_up in scaled)
    size = (MARGIN + len(scaled) * (PANEL + MARGIN), head + tall + 34 + near + 20 + 54)
    picture = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(picture)
    if heading:
        font = ImageFont.load_default(26)
        draw.text((MARGIN, 12), _shortened(heading, font, size[0] - 2 * MARGIN), fill=INK, font=font)
    for index, (panel, image, close_up) in enumerate(scaled):
        x = MARGIN + index * (PANEL + MARGIN)
        draw.text((x, top + 10), panel.title, fill=INK, font=title)
        draw.text((x, head + tall + 10), panel.caption, fill=FAINT, font=small)
        for part, y in ((image, head), (close_up, head + tall + 34)):
            picture.paste(part, (x, y))
            draw.rectangle([x - 1, y - 1, x + part.width, y + part.height], outline=FAINT)
        if panel.key is not None:
            picture.paste(panel.key, (x, head + tall + 34 + near + 14))
    return picture


def _shortened(text: str, font: Any, width: int) -> str:
    """One line that fits."""
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text
    fitting = bisect_right(range(len(text)), width, key=lambda length: font.getlength(text[:length] + " ..."))
    return text[: max(0, fitting - 1)] + " ..."


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
    return _arrange_layers(pictures, milliseconds, texture.size), milliseconds


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


def _arrange_layers(
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
