"""Level of detail for vision-language models, in one file of plain PyTorch. Run it on a picture:

    python examples/nano.py examples/invoice.png --budget 128 --at 620,877 --out nano.png

A vision-language model cuts an image into equal patches, and each becomes a token. A page of 1240 x 1754 pixels has
2,145 patches of 32 x 32, most of them white paper. Graphics hardware has shown large textures in small memory for forty
years: it keeps every texture at several resolutions (a mip pyramid) and reads each part at the level that it needs.
Here a token is a *footprint*: a square of the image, 1, 2, 4, ... times as wide as a patch, shown in as many samples as
any patch. Blank paper gets few wide footprints and print many narrow ones. There are six steps:

    mips        the image at every resolution
    detail      what each footprint would lose by its coarseness: the score
    cut         the footprints that lose least in all, for a budget
    patches     their pixels, each read from the level of its size
    positions   where the model is told that each one lies
    picture     what the tokens show, so that people can judge it

The library does the same with better scores (a small network reads the question), kernels, and adapters for pretrained
models. tests/test_nano.py checks that both agree.
"""

import argparse
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from torch import Tensor

PATCH = 32  # samples along each side of a token; Qwen3-VL reads 32 x 32 pixels per token


class Footprint(NamedTuple):
    """A square of the dyadic grid: `row` and `column` count squares that are PATCH · 2^level pixels wide."""

    level: int
    row: int
    column: int

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom in pixels."""
        side = PATCH * 2**self.level
        return self.column * side, self.row * side, (self.column + 1) * side, (self.row + 1) * side


# 1. The image at every resolution
def mips(image: Tensor) -> list[Tensor]:
    """Make the levels of an image (C, H, W), finest first: each has half the extent of the one before, rounded down."""
    levels = [image]
    while max(levels[-1].shape[1:]) > 1:
        fine = levels[-1]
        levels.append(halving(fine.shape[1]) @ fine @ halving(fine.shape[2]).T)
    return levels


def halving(extent: int) -> Tensor:
    """Make the matrix (extent // 2, extent) of means over equal parts.

    At an odd extent a part is a little more than two texels long, and takes from each texel the share that lies in it.
    """
    count = max(1, extent // 2)
    edges = torch.arange(count + 1, dtype=torch.float64) * (extent / count)
    texel = torch.arange(extent, dtype=torch.float64)
    overlap = torch.minimum(edges[1:, None], texel + 1) - torch.maximum(edges[:-1, None], texel)
    return (overlap.clamp(min=0) * (count / extent)).float()


# 2. What each footprint would lose
def detail(image: Tensor, relevance: Tensor) -> list[Tensor]:
    """Score every footprint of the dyadic grid: the contrast that is lost inside its samples.

    A sample that is 2^level pixels wide shows the mean of its pixels; what it loses is their standard deviation.

    image:     (3, H, W), values 0 to 1
    relevance: (H, W), how much each pixel matters; this is where a question enters, or a gaze
    returns    per level (rows, columns), finest first; the last has one footprint. Those beyond the image lose nothing.
    """
    height, width = image.shape[1:]
    levels = 0
    while PATCH * 2**levels < max(height, width):
        levels += 1
    whole = PATCH * 2**levels
    beyond = (0, whole - width, 0, whole - height)
    grey = F.pad(image.mean(0)[None, None], beyond, mode="replicate").double()
    weight = F.pad(relevance[None, None], beyond).double()
    lost = []
    for level in range(levels + 1):
        width_of_sample = 2**level
        mean, square, weights = (F.avg_pool2d(map, width_of_sample) for map in (grey, grey**2, weight))
        contrast = (square - mean**2).clamp(min=0).sqrt() * weights * width_of_sample**2
        lost.append(F.avg_pool2d(contrast, PATCH)[0, 0] * PATCH**2)
    return lost


def gaze(size: tuple[int, int], x: float, y: float) -> Tensor:
    """Say how much each pixel (H, W) matters to an eye that looks at a point: less and less with the distance."""
    height, width = size
    distance = torch.hypot(torch.arange(width) - x, (torch.arange(height) - y)[:, None]) / max(size)
    return 1 / (0.1 + distance) ** 2


# 3. The footprints that lose least in all
def choose(lost: list[Tensor], size: tuple[int, int], budget: int) -> list[Footprint]:
    """Choose at most `budget` footprints that cover the image once and lose as little as possible.

    A token has a price, and a footprint is split into its four quarters wherever that lowers loss plus price. Bisection
    finds the lowest price at which the budget is enough.
    """
    low, high = 0.0, 1.0 + sum(float(level.sum()) for level in lost)
    chosen = cut(lost, size, high)
    for _ in range(60):
        middle = (low + high) / 2
        tried = cut(lost, size, middle)
        if len(tried) <= budget:
            high, chosen = middle, tried
        else:
            low = middle
    return chosen


def cut(lost: list[Tensor], size: tuple[int, int], price: float) -> list[Footprint]:
    """Find the footprints of least loss plus price: from the leaves up what is best, then from the root down."""
    inside = []  # per level: which footprints hold a part of the image
    for level, losses in enumerate(lost):
        rows, columns = (torch.arange(count) * (PATCH * 2**level) for count in losses.shape)
        inside.append((rows < size[0])[:, None] & (columns < size[1]))
    best = (lost[0] + price) * inside[0]
    splits = [torch.zeros_like(inside[0])]
    for losses, used in zip(lost[1:], inside[1:]):
        whole, quarters = (losses + price) * used, F.avg_pool2d(best[None, None], 2)[0, 0] * 4
        splits.append(quarters < whole)
        best = torch.minimum(whole, quarters)
    chosen = []
    reached = inside[-1]
    for level in reversed(range(len(lost))):
        kept = reached & ~splits[level] & inside[level]
        chosen += [Footprint(level, row, column) for row, column in kept.nonzero().tolist()]
        reached = (reached & splits[level]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    return chosen


# 4. Their pixels
def patches(levels: list[Tensor], chosen: list[Footprint]) -> Tensor:
    """Read the pixels (K, C, PATCH, PATCH) of footprints, each from the level where a sample is one texel.

    This is a slice of the level. Where an extent was odd, texels are slightly wider than 2^level pixels, so a sample is
    read between four of them. Beyond the border the edge is repeated.
    """
    height, width = levels[0].shape[1:]
    step = torch.arange(PATCH) + 0.5
    found = []
    for footprint in chosen:
        left, top, _, _ = footprint.box
        x, y = ((first + step * 2**footprint.level) for first in (left, top))
        grid = torch.stack(torch.meshgrid(x / width * 2 - 1, y / height * 2 - 1, indexing="xy"), -1)
        level = levels[min(footprint.level, len(levels) - 1)]
        found.append(F.grid_sample(level[None], grid[None], padding_mode="border", align_corners=False)[0])
    return torch.stack(found)


# 5. Where the model is told that they lie
def positions(chosen: list[Footprint]) -> Tensor:
    """Give each token its row and column (K, 2) among patches of the image's own size.

    A pretrained model takes them as rotary positions. A wide footprint lies at its centre, so they may be fractions.
    """
    return torch.tensor([[(f.row + 0.5) * 2**f.level - 0.5, (f.column + 0.5) * 2**f.level - 0.5] for f in chosen])


# 6. What the tokens show
def picture(pixels: Tensor, chosen: list[Footprint], size: tuple[int, int]) -> Tensor:
    """Paint the patches of footprints, each enlarged (bicubic) to its square: (C, H, W)."""
    extent = [max(length, *(f.box[axis] for f in chosen)) for length, axis in zip(size, (3, 2))]
    canvas = torch.zeros(pixels.shape[1], *extent)
    for patch, footprint in zip(pixels, chosen):
        left, top, right, bottom = footprint.box
        canvas[:, top:bottom, left:right] = enlarged(patch, 2**footprint.level)
    return canvas[:, : size[0], : size[1]]


def enlarged(patch: Tensor, times: int) -> Tensor:
    """Enlarge a patch by a whole number, as though its edge texels went on (two of them matter)."""
    around = F.pad(patch[None], (2, 2, 2, 2), mode="replicate")
    large = F.interpolate(around, scale_factor=times, mode="bicubic", antialias=True)[0]
    return large[:, 2 * times : -2 * times, 2 * times : -2 * times]


def resized(image: Tensor, budget: int) -> Tensor:
    """Show the whole image at the one scale that `budget` tokens allow, enlarged again: the baseline."""
    size = image.shape[1:]
    scale = min(1.0, (budget * PATCH**2 / (size[0] * size[1])) ** 0.5)
    small = F.interpolate(image[None], [max(1, int(length * scale)) for length in size], mode="area")
    return F.interpolate(small, size, mode="bicubic", antialias=True)[0]


# The picture that is saved: resize, tokens, footprints
def to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray((image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())


def drawn(
    image: Tensor, shown: Tensor, chosen: list[Footprint], budget: int, looked_at: tuple[float, float]
) -> Image.Image:
    """Put three panels side by side, and below each a close-up of the point that matters most."""
    height, width = image.shape[1:]
    outlines = to_pil(0.6 + 0.4 * image)
    pen = ImageDraw.Draw(outlines)
    for footprint in chosen:
        blue = min(40 + 40 * footprint.level, 240)
        pen.rectangle(footprint.box, outline=(240 - blue, 40, blue), width=2)
    wide, tall = width // 3, width // 5
    left, top = (max(0, int(at) - part // 2) for at, part in zip(looked_at, (wide, tall)))
    left, top = min(left, width - wide), min(top, height - tall)
    sheet = Image.new("RGB", (3 * width + 40, height + 3 * tall + 20), "white")
    for index, panel in enumerate([to_pil(resized(image, budget)), to_pil(shown), outlines]):
        close_up = panel.crop((left, top, left + wide, top + tall)).resize((width, 3 * tall))
        sheet.paste(panel, (index * (width + 20), 0))
        sheet.paste(close_up, (index * (width + 20), height + 20))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description="Show an image in a budget of tokens.")
    parser.add_argument("image")
    parser.add_argument("--budget", type=int, default=128)
    parser.add_argument("--at", help="x,y in pixels: the point that matters most, by default the middle")
    parser.add_argument("--out", default="nano.png")
    options = parser.parse_args()
    image = torch.from_numpy(np.array(Image.open(options.image).convert("RGB"))).permute(2, 0, 1) / 255
    size = (image.shape[1], image.shape[2])
    x, y = map(float, options.at.split(",")) if options.at else (size[1] / 2, size[0] / 2)
    chosen = choose(detail(image, gaze(size, x, y)), size, options.budget)
    tokens = patches(mips(image), chosen)
    where = positions(chosen)  # a model takes `tokens` as its patches, and `where` as their positions
    print(f"{len(where)} tokens of {PATCH}x{PATCH} for {-(-size[0] // PATCH) * -(-size[1] // PATCH)} patches")
    drawn(image, picture(tokens, chosen, size), chosen, options.budget, (x, y)).save(options.out)


if __name__ == "__main__":
    main()
