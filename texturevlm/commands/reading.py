"""The images of a command that learns from many, one after the other."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def read_images(paths: Sequence[Path], *, skip_bad: bool) -> "Iterator[Tensor]":
    """Images (1, C, H, W), with progress on stderr; skip_bad: report what cannot be read, and continue."""
    from texturevlm.image import to_tensor
    from texturevlm.progress import Progress

    progress = Progress(len(paths), "images")
    for path in paths:
        try:
            image = to_tensor(path)
        except (ValueError, TypeError, OSError) as error:
            if not skip_bad:
                raise ValueError(f"{path}: {error} (--skip-bad continues without it)") from error
            print(f"skipped {path}: {error}", file=sys.stderr, flush=True)
        else:
            yield image
        progress.step()
