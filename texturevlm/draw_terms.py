"""Why tokens went where they are: what each channel added to the relevance of the chosen spots, as a bar chart."""

from __future__ import annotations

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.draw import FAINT, HEAT, INK, MARGIN, PAPER, RAMP
from texturevlm.types import Allocation

MOST_BARS = 12
_ROW, _LABEL, _NUMBER = 26, 190, 70  # pixels
_WIDTH = 900


def decided(terms: dict[str, Tensor], allocation: Allocation) -> dict[str, float]:
    """What each term adds at the fine tokens of the first image, beyond its mean over the image; strongest first.

    A token counts by its relevance, since many fine tokens only fill the budget.
    terms: name → (B, h, w), the parts of the logarithm of relevance (`ChannelScorer.terms`)
    """
    used, level = allocation.valid[0], allocation.level[0]
    fine = used & (level <= level[used].median())
    height, width = allocation.size
    x, y = (allocation.centre[0][fine] / torch.tensor([width, height], device=level.device)).unbind(-1)
    values = torch.stack([term[0] for term in terms.values()])
    rows, columns = values.shape[1:]
    there = values[:, (y * rows).long().clamp(0, rows - 1), (x * columns).long().clamp(0, columns - 1)]
    added = there @ there.sum(0).softmax(0) - values.mean((1, 2))
    return dict(sorted(zip(terms, added.tolist()), key=lambda one: -abs(one[1])))


def terms_picture(found: dict[str, float]) -> Image.Image:
    """A bar per term, the strongest first: to the right what drew tokens to the chosen spots, to the left what spoke
    against them."""
    shown = list(found.items())[:MOST_BARS]
    picture = Image.new("RGB", (_WIDTH, 2 * MARGIN + 44 + _ROW * len(shown) + 30), PAPER)
    draw, title, small = ImageDraw.Draw(picture), ImageFont.load_default(20), ImageFont.load_default(15)
    draw.text((MARGIN, MARGIN), "which channels decided, at the fine tokens", fill=INK, font=title)
    longest = max((abs(value) for _, value in shown), default=0.0) or 1.0
    half = (_WIDTH - 2 * MARGIN - _LABEL - 2 * _NUMBER) / 2
    zero = MARGIN + _LABEL + _NUMBER + half
    for row, (name, value) in enumerate(shown):
        top = MARGIN + 44 + row * _ROW
        end = zero + half * value / longest
        colour = HEAT[-1] if value > 0 else RAMP[3]
        draw.text((MARGIN, top), name, fill=INK, font=small)
        draw.rectangle([min(zero, end), top + 2, max(zero, end), top + _ROW - 8], fill=colour)
        anchor = "la" if value >= 0 else "ra"
        draw.text((end + (6 if value >= 0 else -6), top), f"{value:+.2f}", fill=FAINT, font=small, anchor=anchor)
    bottom = MARGIN + 44 + _ROW * len(shown)
    draw.line([zero, MARGIN + 40, zero, bottom], fill=FAINT)
    left = len(found) - len(shown)
    said = "logarithm of relevance at the fine tokens, counted by their relevance, less the mean of the image"
    draw.text((MARGIN, bottom + 8), said + (f"; {left} weaker ones not shown" if left else ""), fill=FAINT, font=small)
    return picture
