"""Pictures for people: what the model would see, and where its tokens lie."""

import math
from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.rebuild import rebuild, resized
from texturevlm.types import Allocation, Texture

# From fine (bright) to coarse (dark); told apart by lightness alone, so also by the colour-blind and in print.
RAMP = ((253, 231, 37), (122, 209, 81), (34, 168, 132), (42, 120, 142), (65, 68, 135), (68, 1, 84))
MARGIN = 16
PANEL, TALLEST = 620, 1400  # width of one panel, and its height at most
INK, PAPER, FAINT = (25, 28, 35), (255, 255, 255), (120, 125, 135)


def look_picture(texture: Texture, allocation: Allocation, point: tuple[float, float] | None = None) -> Image.Image:
    """The whole image resized to the budget, what the tokens deliver, and their footprints; below, a close-up.

    point: (x, y) in level-0 pixels that the close-up shows; the centre of the finest footprint if None
    """
    if point is None:
        finest = torch.where(allocation.valid[0], allocation.area[0], math.inf).argmin()
        point = tuple(allocation.centre[0, finest].tolist())
    baseline = to_pil(resized(texture, budget=allocation.budget, patch=allocation.patch))
    seen = to_pil(rebuild(texture, allocation))
    original = to_pil(texture.levels[0])
    tokens = f"{int(allocation.valid[0].sum())} tokens of {allocation.patch}x{allocation.patch}"
    close_up = _around(point, original.size)
    columns = [
        (f"whole image resized to {tokens}", baseline, _enlarge(baseline, close_up)),
        (f"level of detail: {tokens}", seen, _enlarge(seen, close_up)),
        ("footprints by level", footprints(original, allocation), _enlarge(original, close_up)),
    ]
    return _arrange(columns, legend(allocation))


def to_pil(image: Tensor) -> Image.Image:
    """The first image of a batch (B, C, H, W): colour if it has three channels or more, else grey."""
    colour = image[0, :3] if image.shape[1] >= 3 else image[0, :1].expand(3, -1, -1)
    pixels = (colour.detach().float().clamp(0, 1) * 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())


def footprints(image: Image.Image, allocation: Allocation) -> Image.Image:
    """An image with the footprints of its tokens drawn over it, coarse ones first, coloured by level."""
    picture = Image.blend(image, Image.new("RGB", image.size, PAPER), 0.35)
    draw = ImageDraw.Draw(picture)
    line = max(1, round(max(image.size) / 700))
    low, high = _level_range(allocation)
    half = allocation.patch / 2
    centre, ddx, ddy = (tensor[0].double().cpu() for tensor in (allocation.centre, allocation.ddx, allocation.ddy))
    level = allocation.level[0].tolist()
    for slot in sorted(allocation.valid[0].nonzero()[:, 0].tolist(), key=lambda slot: -level[slot]):
        corners = [
            tuple((centre[slot] + half * (u * ddx[slot] + v * ddy[slot])).tolist())
            for u, v in ((-1, -1), (1, -1), (1, 1), (-1, 1))
        ]
        draw.line([*corners, corners[0]], fill=ramp_colour((level[slot] - low) / (high - low)), width=line)
    return picture


def legend(allocation: Allocation) -> Image.Image:
    """The colours of the levels, in words that need no manual."""
    low, high = _level_range(allocation)
    picture = Image.new("RGB", (PANEL, 54), PAPER)
    draw = ImageDraw.Draw(picture)
    for x in range(PANEL):
        draw.line([(x, 0), (x, 16)], fill=ramp_colour(x / (PANEL - 1)))
    font = ImageFont.load_default(15)
    for text, x, anchor in (
        (f"level {low:.1f}: {2**low:.1f} px a sample", 0, "la"),
        (f"level {high:.1f}: {2**high:.1f} px a sample", PANEL, "ra"),
    ):
        draw.text((x, 24), text, fill=FAINT, font=font, anchor=anchor)
    return picture


def _level_range(allocation: Allocation) -> tuple[float, float]:
    level = allocation.level[0][allocation.valid[0]]
    low, high = (level.min().item(), level.max().item()) if level.numel() else (0.0, 1.0)
    return low, max(high, low + 1e-6)


def ramp_colour(position: float) -> tuple[int, ...]:
    """A place on the ramp, 0 to 1."""
    scaled = min(max(position, 0.0), 1.0) * (len(RAMP) - 1)
    first = min(int(scaled), len(RAMP) - 2)
    return tuple(round(a + (b - a) * (scaled - first)) for a, b in zip(RAMP[first], RAMP[first + 1]))


def _around(point: tuple[float, float], size: tuple[int, int]) -> tuple[int, int, int, int]:
    """A box about a point, a third of the panel wide and a sixth tall, inside the image."""
    width, height = min(PANEL // 3, size[0]), min(PANEL // 6, size[1])
    left = min(max(round(point[0] - width / 2), 0), size[0] - width)
    top = min(max(round(point[1] - height / 2), 0), size[1] - height)
    return left, top, left + width, top + height


def _enlarge(image: Image.Image, box: tuple[int, int, int, int]) -> Image.Image:
    part = image.crop(box)
    return part.resize((PANEL, max(1, round(part.height * PANEL / part.width))), Image.Resampling.BICUBIC)


def _fit(image: Image.Image) -> Image.Image:
    """As wide as a panel, or as tall as one may be."""
    scale = min(PANEL / image.width, TALLEST / image.height)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST)


def _arrange(columns: Sequence[tuple[str, Image.Image, Image.Image]], key: Image.Image) -> Image.Image:
    title = ImageFont.load_default(20)
    small = ImageFont.load_default(15)
    scaled = [(name, _fit(image), _fit(close_up)) for name, image, close_up in columns]
    head, tall, near = 40, scaled[0][1].height, max(close_up.height for _, _, close_up in scaled)
    size = (MARGIN + len(scaled) * (PANEL + MARGIN), head + tall + 34 + near + 20 + key.height)
    picture = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(picture)
    for index, (name, image, close_up) in enumerate(scaled):
        x = MARGIN + index * (PANEL + MARGIN)
        draw.text((x, 10), name, fill=INK, font=title)
        picture.paste(image, (x, head))
        draw.rectangle([x - 1, head - 1, x + image.width, head + image.height], outline=FAINT)
        last = index == len(scaled) - 1
        draw.text((x, head + tall + 10), "close-up" + (" of the original" if last else ""), fill=FAINT, font=small)
        picture.paste(close_up, (x, head + tall + 34))
        draw.rectangle([x - 1, head + tall + 33, x + close_up.width, head + tall + 34 + close_up.height], outline=FAINT)
    picture.paste(key, (MARGIN + (len(scaled) - 1) * (PANEL + MARGIN), head + tall + 34 + near + 14))
    return picture
