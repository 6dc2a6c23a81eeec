"""Names of scorers as users write them: a name of SCORERS, or `embedding:MODEL,PCA`, which loads its models.

MODEL is a CLIP or SigLIP model by hub id or folder, PCA the file that `texturevlm fit-pca` made for it. As text it
travels wherever a name does: into `ask`, `attach`, `compile`, a saved processor and the command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from texturevlm.check import check_choice

EMBEDDING_PREFIX = "embedding:"
BY_HAND = ("embedding", "attention")  # scorers that their name alone does not make: they need models, or a map
# What a user may write where it does not work, with what to do instead.
ELSEWHERE = {
    "model": "'model', a model's own attention, which ask, attach and eval with a model take",
    "embedding": "'embedding' without its models: write embedding:MODEL,PCA",
}


def check_relevance(function: str, relevance: str, known: Iterable[str], argument: str = "relevance") -> str:
    """A known name, or embedding:MODEL,PCA with a PCA file that exists."""
    if isinstance(relevance, str) and relevance.startswith(EMBEDDING_PREFIX):
        embedding_parts(function, relevance, argument)
        return relevance
    known = tuple(known)
    if isinstance(relevance, str) and relevance in ELSEWHERE and relevance not in known:
        raise ValueError(f"{function}: {argument} must be one of {', '.join(known)}, got {ELSEWHERE[relevance]}")
    return check_choice(function, argument, relevance, known)


def embedding_parts(function: str, relevance: str, argument: str = "relevance") -> tuple[str, Path]:
    """MODEL and PCA of embedding:MODEL,PCA."""
    model, comma, pca = relevance.removeprefix(EMBEDDING_PREFIX).rpartition(",")
    if not (model and comma and pca):
        raise ValueError(f"{function}: {argument} must be {EMBEDDING_PREFIX}MODEL,PCA, got {relevance!r}")
    if not Path(pca).is_file():
        raise FileNotFoundError(
            f"{function}: {argument} must name a PCA file of `texturevlm fit-pca`, got {pca}, which does not exist"
        )
    return model, Path(pca)
