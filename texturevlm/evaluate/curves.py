"""Curves of a score over the budget, one a method, drawn with Pillow: no plotting package is needed to evaluate."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from texturevlm.draw import FAINT, INK, PAPER

Colour = tuple[int, int, int]
# Told apart by the colour-blind (Okabe and Ito), without the yellow, which is too faint on white.
COLOURS: tuple[Colour, ...] = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (230, 159, 0),
)
RULE: Colour = (226, 228, 233)
WIDTH, HEIGHT = 1500, 860
LEFT, TOP, BOTTOM = 90, 104, 90
KEY = 380  # the width of the legend, right of the plot
SMOOTH = 2  # drawn that much larger, then shrunk: lines without steps


@dataclass(frozen=True)
class Plot:
    """Where the axes run, in pixels of the drawing."""

    low: float  # the least and the greatest budget
    high: float
    bottom: float  # the least and the greatest score
    top: float

    def at(self, budget: float, score: float) -> tuple[float, float]:
        right = WIDTH - KEY
        span = math.log(self.high / self.low) or 1.0
        x = LEFT + (right - LEFT) * (math.log(budget / self.low) / span if self.high > self.low else 0.5)
        y = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (score - self.bottom) / (self.top - self.bottom)
        return x * SMOOTH, y * SMOOTH


def curves(
    methods: Mapping[str, Mapping[int, float]], *, title: str, score: str, ceiling: float | None = None
) -> Image.Image:
    """A picture of methods → budget → score; budgets on a logarithmic axis, the ceiling as a broken line.

    The first method is the baseline, drawn in black.
    """
    budgets = sorted({budget for points in methods.values() for budget in points})
    scores = [value for points in methods.values() for value in points.values()]
    if not budgets:
        raise ValueError("curves: methods must have points, got none")
    highest = max([*scores, ceiling if ceiling is not None else -math.inf])
    step = _step(min(0.0, *scores), highest)
    bottom = math.floor(min(0.0, *scores) / step) * step
    plot = Plot(budgets[0], budgets[-1], bottom, max(bottom + step, math.ceil(highest / step - 1e-9) * step))
    picture = Image.new("RGB", (WIDTH * SMOOTH, HEIGHT * SMOOTH), PAPER)
    draw = ImageDraw.Draw(picture)
    _axes(draw, plot, budgets, step, title, score)
    if ceiling is not None:
        _broken_line(draw, plot, ceiling)
    for number, (name, points) in enumerate(methods.items()):
        _curve(draw, plot, sorted(points.items()), name, number)
    return picture.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def _step(low: float, high: float) -> float:
    """Between two rules of the score axis: 1, 2 or 5 times a power of ten, five to ten of them."""
    rough = max(high - low, 1e-6) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size * SMOOTH)


def _axes(draw: ImageDraw.ImageDraw, plot: Plot, budgets: Sequence[int], step: float, title: str, score: str) -> None:
    draw.text((LEFT * SMOOTH, 18 * SMOOTH), title, fill=INK, font=_font(24))
    draw.text((LEFT * SMOOTH, 80 * SMOOTH), score, fill=FAINT, font=_font(17), anchor="ls")
    for count in range(round((plot.top - plot.bottom) / step) + 1):
        value = plot.bottom + count * step
        (x0, y), (x1, _) = plot.at(plot.low, value), ((WIDTH - KEY) * SMOOTH, 0)
        x0 = LEFT * SMOOTH
        draw.line([(x0, y), (x1, y)], fill=RULE, width=SMOOTH)
        draw.text((x0 - 14 * SMOOTH, y), f"{value:g}", fill=FAINT, font=_font(16), anchor="rm")
    last = -math.inf
    for budget in budgets:
        x, y = plot.at(budget, plot.bottom)
        draw.line([(x, y), (x, y + 6 * SMOOTH)], fill=FAINT, width=SMOOTH)
        if x - last > 34 * SMOOTH:  # labels that would touch are left out
            draw.text((x, y + 12 * SMOOTH), str(budget), fill=FAINT, font=_font(16), anchor="mt")
            last = x
    middle = (LEFT + WIDTH - KEY) / 2 * SMOOTH
    draw.text((middle, (HEIGHT - 28) * SMOOTH), "tokens", fill=FAINT, font=_font(17), anchor="mm")


def _broken_line(draw: ImageDraw.ImageDraw, plot: Plot, ceiling: float) -> None:
    y = plot.at(plot.low, ceiling)[1]
    for x in range(LEFT * SMOOTH, (WIDTH - KEY) * SMOOTH, 20 * SMOOTH):
        draw.line([(x, y), (x + 10 * SMOOTH, y)], fill=FAINT, width=2 * SMOOTH)
    draw.text(((LEFT + 6) * SMOOTH, y - 4 * SMOOTH), "full image", fill=FAINT, font=_font(15), anchor="ls")


def _curve(draw: ImageDraw.ImageDraw, plot: Plot, points: Sequence[tuple[int, float]], name: str, number: int) -> None:
    colour = INK if number == 0 else COLOURS[(number - 1) % len(COLOURS)]
    hollow = number > len(COLOURS)  # a second round of the colours
    places = [plot.at(*point) for point in points]
    draw.line(places, fill=colour, width=3 * SMOOTH, joint="curve")
    x, y = (WIDTH - KEY + 36) * SMOOTH, (TOP + 14 + 30 * number) * SMOOTH
    draw.line([(x, y), (x + 40 * SMOOTH, y)], fill=colour, width=3 * SMOOTH)
    for centre_x, centre_y in [*places, (x + 20 * SMOOTH, y)]:
        radius = 5 * SMOOTH
        around = [centre_x - radius, centre_y - radius, centre_x + radius, centre_y + radius]
        draw.ellipse(around, fill=PAPER if hollow else colour, outline=colour, width=2 * SMOOTH)
    draw.text((x + 54 * SMOOTH, y), f"{name:.40}", fill=INK, font=_font(17), anchor="lm")
