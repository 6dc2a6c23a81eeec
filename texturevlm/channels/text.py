"""Where text is: from the structure of its strokes, without a model; or by RapidOCR's detector.

Text is many short vertical strokes, side by side, on lines of limited height. On each of three mip levels:
1. Strokes are changes along x, relative to the contrast around them.
2. Long vertical strokes are ruled lines or the edge of a page, and are removed.
3. Gaps inside and between letters are closed.
4. Regions with few strokes, or no higher than a dash, are removed.
Morphological closing and opening keep borders in place; blurring does not. The constants were chosen on the `train`
images of FUNSD and SROIE.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from texturevlm.channels.pretrained import load_rapidocr
from texturevlm.channels.structure import box_mean, check_image, enlarge, highest, lowest, luma, mip_reach
from texturevlm.check import check_floating, check_shapes

TEXT_SCALES = 3  # levels: text from 10 to about 100 pixels high
CONTRAST = 15  # texels: the window in which a stroke's contrast is measured
FULL = 0.7  # of that contrast: a change this large is a full stroke
_FAINT = 0.02  # added to the contrast, so that noise is not a stroke
RULED = 25  # texels: a longer stroke is a ruled line
LETTER = 5  # texels: the largest vertical gap between the strokes of a letter
_GAP = 17  # texels: the largest gap between letters, and the window in which strokes are counted
SPARSE = 0.06  # of the window; fewer strokes are not text
DASH = (7, 5)  # height and width in texels of the smallest text
_MARGIN = 4  # texels: added to the height and the width of a found region
TEXT_HALF = 0.03  # strokes per texel, weighted by contrast, that become 0.5

# The vertical windows reach further than the horizontal ones: contrast, ruled lines, letters, dash and margin.
TEXELS = CONTRAST // 2 + 2 * (RULED // 2) + 2 * (LETTER // 2) + DASH[0] // 2 + (DASH[0] + _MARGIN) // 2
TEXT_REACH = mip_reach(TEXELS, TEXT_SCALES - 1)


def text_map(image: Tensor, levels: Sequence[Tensor], grey: Sequence[Tensor] | None = None) -> Tensor:
    """Where text is: dark or light, of nearly any contrast, in roughly horizontal lines.

    image:  (B, 3, H, W), 0 to 1
    levels: its mip pyramid, finest first, each (B, 3, H_l, W_l)
    grey:   brightness of the levels, if it was made already
    returns (B, H, W), 0 to 1; above 0.5 text is likely; a changed pixel reaches TEXT_REACH pixels
    """
    check_image("text_map", image, levels)
    grey = [luma(level) for level in (image, *levels[1:TEXT_SCALES])] if grey is None else grey[:TEXT_SCALES]
    found = text_lines(grey[0])
    for index, level in enumerate(grey[1:], 1):
        coarse = enlarge(text_lines(level), image.shape[-2:])
        found = torch.maximum(found, coarse * 0.5**index)
    return (found / (found + TEXT_HALF)).squeeze(1).to(image.dtype)


def text_lines(grey: Tensor) -> Tensor:
    """Lines of text 10 to 25 texels high: (B, 1, H, W) → (B, 1, H, W), strokes per texel, 0 elsewhere."""
    contrast = highest(grey, CONTRAST, CONTRAST) - lowest(grey, CONTRAST, CONTRAST)
    strokes = (_across(box_mean(grey, 3, 1)) / (FULL * contrast + _FAINT)).clamp(max=1)
    ruled = highest(lowest(highest(strokes, 1, 3), RULED, 1), RULED, 3)
    strokes = (strokes - ruled).clamp(min=0)
    letters = lowest(highest(strokes, LETTER, 1), LETTER, 1)
    lines = lowest(highest(letters, 1, _GAP), 1, _GAP)
    dense = lines * (box_mean(strokes, 1, _GAP) - SPARSE).clamp(min=0)
    return highest(lowest(dense, *DASH), DASH[0] + _MARGIN, DASH[1] + _MARGIN)


def _across(grey: Tensor) -> Tensor:
    """The change between the left and the right neighbour."""
    beside = torch.cat([grey[..., :1], grey, grey[..., -1:]], -1)
    return (beside[..., 2:] - beside[..., :-2]).abs()


def text_map_ocr(image: Tensor) -> Tensor:
    """Where RapidOCR's detector finds text (extra `ocr`; its model comes inside the wheel; runs on the CPU).

    image:  (B, 3, H, W), 0 to 1
    returns (B, H, W), 1 inside its boxes and 0 elsewhere; a changed pixel reaches everywhere
    """
    check_shapes("text_map_ocr", image=(image, "B 3 H W"))
    check_floating("text_map_ocr", image=image)
    detector = _detector()
    return torch.stack([_painted(detector, one) for one in image.detach().cpu()]).to(image)


@lru_cache(maxsize=1)
def _detector() -> Any:
    return load_rapidocr("text_map_ocr")


def _painted(detector: Any, image: Tensor) -> Tensor:
    """The detector's boxes of one image (3, H, W) as (H, W)."""
    pixels = (image.float().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    found = detector(np.ascontiguousarray(pixels[..., ::-1]), use_det=True, use_cls=False, use_rec=False)
    mask = Image.new("L", (image.shape[2], image.shape[1]))
    draw = ImageDraw.Draw(mask)
    for box in [] if found.boxes is None else found.boxes:
        draw.polygon([(float(x), float(y)) for x, y in box], fill=1)
    return torch.from_numpy(np.array(mask)).float()
