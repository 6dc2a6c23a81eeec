"""Answer from stored features: the model takes what its tower gave earlier, or what a codebook kept of that.

The prompt is assembled as always, because its packed rows say where the tokens are; their pixels are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from texturevlm.vlm.adapter import Adapter


@contextmanager
def stored_features(adapter: Adapter, features: Sequence[Sequence[Tensor]]) -> Iterator[None]:
    """Inside, the model of an adapter gets these features instead of running its tower. Hold the adapter's lock.

    adapter:  bound
    features: as from `Adapter.embed`, for the views of one batch of prompts, in their order
    """
    wrong = sorted({one.dim() for part in features for one in part} - {2})
    if not features or wrong:
        got = f"{len(features)} lists" + (f" with a tensor of {wrong[0]} dimensions" if wrong else "")
        raise ValueError(f"stored_features: features must be lists of (n, D), got {got}")
    undo = []
    try:
        for one in adapter.replaced_tower(features):
            undo.append(one)
        yield
    finally:
        while undo:
            undo.pop().remove()
