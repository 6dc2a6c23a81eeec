"""The features of tokens as rows: a token's embedding with its DeepStack features behind it, and its level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_floating, check_shapes
from texturevlm.vlm import Adapter, View


@dataclass(frozen=True, eq=False)
class TokenFeatures:
    """The features of N tokens.

    rows:  (N, W), all that the tower gives for a token
    level: (N,), log2 of the pixels per sample, 0 for the image's own resolution
    parts: equal slices of a row: the embedding and those of DeepStack
    """

    rows: Tensor
    level: Tensor
    parts: int = 1

    def __post_init__(self) -> None:
        check_shapes("TokenFeatures", rows=(self.rows, "N W"), level=(self.level, "N"))
        check_floating("TokenFeatures", rows=self.rows, level=self.level)

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, chosen: Tensor | slice) -> TokenFeatures:
        """Some of the tokens."""
        return replace(self, rows=self.rows[chosen], level=self.level[chosen])


@torch.no_grad()
def token_features(adapter: Adapter, views: Sequence[View]) -> list[TokenFeatures]:
    """The tower's features of each view, float32, on the model's device."""
    found = zip(*adapter.embed(views))
    levels = [view.step.detach().amin(-1).log2().to(adapter.device) for view in views]
    return [TokenFeatures(torch.cat(parts, -1).float(), level, len(parts)) for parts, level in zip(found, levels)]


def joined_features(features: Sequence[TokenFeatures]) -> TokenFeatures:
    """Tokens of several views, one after the other."""
    columns: Any = {name: torch.cat([getattr(view, name) for view in features]) for name in ("rows", "level")}
    return replace(features[0], **columns)


def split_features(adapter: Adapter, rows: Sequence[Tensor]) -> list[list[Tensor]]:
    """Rows (n, W) per view as `Adapter.embed` gives them: embeddings per view, then further lists for DeepStack."""
    wide = int(adapter.model.get_input_embeddings().weight.shape[1])
    return [list(parts) for parts in zip(*(view.split(wide, -1) for view in rows))]
