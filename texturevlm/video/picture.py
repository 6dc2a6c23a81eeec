"""A stream as a person would like to see it: what the model sees, its footprints, and what each frame cost.

Left, the picture that the tokens deliver. Right, the frame with the footprints: those that were sampled for this frame
in the colour of their level, those that were kept in grey. Below, a strip that runs on: a bar a frame, its height the
share of the tokens that were paid for, and a line at the share of the tiles that changed; keyframes are red.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from texturevlm.draw import FAINT, INK, MARGIN, PAPER, ramp_colour, to_pil
from texturevlm.rebuilding import rebuild
from texturevlm.video.result import Step

PANEL = 560  # pixels: width of one panel
STRIP, BAR = 64, 4  # height of the strip, width of a bar
KEPT = (150, 155, 165)
PAID, MARKED = (120, 180, 195), (214, 120, 105)
HEAD = 34


class StreamPicture:
    """Draws one frame after the other; remembers what the last ones cost."""

    def __init__(self, size: tuple[int, int]) -> None:
        self.scale = PANEL / size[1]
        self.tall = max(1, round(size[0] * self.scale))
        self.size = (HEAD + self.tall + 34 + STRIP + MARGIN, 2 * PANEL + 3 * MARGIN)
        self.costs: deque[tuple[float, float, bool]] = deque(maxlen=(self.size[1] - 2 * MARGIN) // BAR)

    def draw(self, step: Step, frame: Tensor) -> np.ndarray:
        """(H, W, 3) bytes. frame: (3, H, W) bytes, as it came."""
        reuse = step.reuse
        used = max(1, reuse.tokens)
        self.costs.append((reuse.fresh / used, reuse.share, bool(reuse.keyframe)))
        picture = Image.new("RGB", (self.size[1], self.size[0]), PAPER)
        draw, font = ImageDraw.Draw(picture), ImageFont.load_default(17)
        panel = (PANEL, self.tall)
        seen = to_pil(rebuild(step.texture, step.allocation)).resize(panel, Image.Resampling.BICUBIC)
        picture.paste(seen, (MARGIN, HEAD))
        original = Image.fromarray(frame.permute(1, 2, 0).cpu().numpy()).resize(panel, Image.Resampling.BILINEAR)
        picture.paste(self._footprints(original, step), (2 * MARGIN + PANEL, HEAD))
        draw.text((MARGIN, 8), f"what the model sees: {reuse.tokens} tokens", fill=INK, font=font)
        beside = f"sampled now {reuse.fresh}, kept {reuse.kept}"
        draw.text((2 * MARGIN + PANEL, 8), beside, fill=INK, font=font)
        self._strip(draw, step)
        return np.asarray(picture)

    def _footprints(self, image: Image.Image, step: Step) -> Image.Image:
        picture = Image.blend(image, Image.new("RGB", image.size, PAPER), 0.35)
        draw = ImageDraw.Draw(picture)
        allocation = step.allocation
        level = allocation.level[0].cpu()
        sampled, boxes = step.reuse.sampled.cpu(), (allocation.boxes[0] * self.scale).cpu()
        used = allocation.valid[0].cpu().nonzero()[:, 0]
        low, high = float(level[used].min()), float(level[used].max())
        order = used[
            torch.argsort(sampled[used].float() * 100 - level[used])
        ]  # kept ones below, coarse ones below fine
        for slot in order.tolist():
            colour = ramp_colour((float(level[slot]) - low) / max(high - low, 1e-6)) if sampled[slot] else KEPT
            draw.rectangle(boxes[slot].tolist(), outline=colour, width=2 if sampled[slot] else 1)
        return picture

    def _strip(self, draw: ImageDraw.ImageDraw, step: Step) -> None:
        top, font = HEAD + self.tall + 34, ImageFont.load_default(14)
        for index, (paid, moved, marked) in enumerate(self.costs):
            x = MARGIN + index * BAR
            draw.rectangle([x, top + STRIP * (1 - paid), x + BAR - 2, top + STRIP], fill=MARKED if marked else PAID)
            height = top + STRIP * (1 - moved)
            draw.rectangle([x, height - 1, x + BAR - 1, height + 1], fill=INK)
        text = (
            f"{step.time:6.2f} s   tokens paid for (bars; red: a keyframe), tiles that changed (line): "
            f"{100 * step.reuse.share:.0f}%" + (f"   keyframe: {step.reuse.keyframe}" if step.reuse.keyframe else "")
        )
        draw.text((MARGIN, HEAD + self.tall + 10), text, fill=FAINT, font=font)
