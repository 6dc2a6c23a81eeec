"""Answer from stored features: the model takes what its tower gave earlier, or what a codebook kept of that.

The prompt is assembled as always, because its packed rows say where the tokens are; their pixels are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor

from texturevlm.vlm.adapter import Adapter
from texturevlm.vlm.captured_generate import KnownOf, dense_keys
from texturevlm.vlm.hook import ModelHook


class StoredFeatures(ModelHook):
    """The model gets features instead of running its tower.

    features: as from `Adapter.embed`, for the views of one batch of prompts, in their order
    """

    def __init__(self, features: Sequence[Sequence[Tensor]]) -> None:
        wrong = sorted({one.dim() for part in features for one in part} - {2})
        if not features or wrong:
            got = f"{len(features)} lists" + (f" with a tensor of {wrong[0]} dimensions" if wrong else "")
            raise ValueError(f"StoredFeatures: features must be lists of (n, D), got {got}")
        self.features = features

    @contextmanager
    def run(self, adapter: Adapter, *, endings: Sequence[int] | None = None) -> Iterator[KnownOf]:
        with ExitStack() as undo:
            for one in adapter.replaced_tower(self.features):
                undo.callback(one.remove)
            yield dense_keys
