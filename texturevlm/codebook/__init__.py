"""Discrete tokens: features of a vision tower as a few uint16 numbers each, 8 to several hundred times smaller.

A `Codebook` belongs to one model. It is fitted to the user's images (`fit_codebook`, `texturevlm fit-codebook`), turns
features into codes and back, and is refused for another model. `vlm.StoredFeatures` lets a model answer from what was
decoded, without running its tower.
"""

from texturevlm.codebook.codebook import Codebook, tower_digest
from texturevlm.codebook.features import TokenFeatures, joined_features, split_features, token_features
from texturevlm.codebook.fit import CodebookReport, Refinement, fit_codebook, refine

__all__ = [
    "Codebook", "CodebookReport", "Refinement", "TokenFeatures", "fit_codebook", "joined_features", "refine",
    "split_features", "token_features", "tower_digest",
]  # fmt: skip
