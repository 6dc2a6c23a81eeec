"""One image in any form that users have it in → a texture of red, green and blue.

`Texture.open` takes most forms. Added here: open files, the dicts of `datasets`, arrays with transparency. A range or a
layout that a model would misread without a word is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from texturevlm.types import COLOURS, Texture

OVERSHOOT = 0.1  # what sharp resampling may add to the range 0 … 1


def open_image(source: Any, device: torch.device | str = "cpu") -> Texture:
    """A texture of one image on a device, float32.

    source: what `Texture.open` takes, a Texture, an open file, or a dict with `bytes` or `path`
    """
    if isinstance(source, Texture):
        texture = source.to(device)
    elif isinstance(source, (np.ndarray, Tensor)):
        texture = Texture.open(source, device=device)
        if source.dtype.kind == "f" if isinstance(source, np.ndarray) else source.is_floating_point():
            _check_range(texture)
        if len(texture.names) == 4:
            colours, opacity = texture.levels[0].split([3, 1], 1)
            texture = Texture((colours * opacity + (1 - opacity),), COLOURS)  # over white, as PIL images are
    else:
        texture = Texture.open(_content(source), device=device)
    if texture.batch != 1:
        raise ValueError(f"prepare: each image must be one image, got a batch of {texture.batch}; give a list")
    if texture.names == ("grey",):
        texture = Texture(tuple(level.expand(-1, 3, -1, -1) for level in texture.levels), COLOURS)
    if not set(COLOURS) <= set(texture.names):
        names = texture.names if len(texture.names) < 4 else (*texture.names[:3], "…")
        raise ValueError(
            f"prepare: image must be grey or red, green and blue, got {len(texture.names)} channels "
            f"({', '.join(names)}); an array is (H, W, C), a tensor (C, H, W)"
        )
    return texture.to(dtype=torch.float32)


def _content(source: Any) -> Any:
    """What `Texture.open` takes: the content of an open file, or what a dict of `datasets` holds."""
    if isinstance(source, Mapping):
        held = next((source[key] for key in ("bytes", "path") if source.get(key) is not None), None)
        if held is None:
            raise ValueError(
                f"prepare: an image as a dict must have bytes or a path, got {', '.join(source) or 'none'}"
            )
        return held
    if callable(getattr(source, "read", None)):
        if getattr(source, "seekable", bool)():
            source.seek(0)  # as Pillow does: the file may have been read before
        content = source.read()
        if not isinstance(content, bytes):
            raise TypeError(f'prepare: an open file must be binary (open(…, "rb")), got {type(content).__name__}')
        return content
    return source


def _check_range(texture: Texture) -> None:
    low, high = (float(one) for one in texture.levels[0].aminmax())
    if low < -OVERSHOOT or high > 1 + OVERSHOOT:
        raise ValueError(
            f"prepare: an image of floats must have values from 0 to 1, got {low:.4g} to {high:.4g}; "
            "give uint8, or divide by the largest value"
        )
