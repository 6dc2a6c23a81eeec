"""Scorers by name: SCORERS, or `embedding:MODEL,PCA`, which loads its models; and what scorers say of themselves.

MODEL is a CLIP or SigLIP model by hub id or folder, PCA the file that `texturevlm fit-pca` made for it. As text it
travels wherever a name does: into `ask`, `attach`, `compile`, a saved processor and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from texturevlm.check import check_choice
from texturevlm.registry import Registry

if TYPE_CHECKING:
    from texturevlm.relevance.scorers import Scorer

EMBEDDING_PREFIX = "embedding:"
SCORERS: Registry[Callable[..., Scorer]] = Registry(
    "relevance",
    "texturevlm.scorers",
    {
        "words": "texturevlm.relevance.words:WordsScorer",
        "scout": "texturevlm.relevance.scorers:ScoutScorer",
        "prior": "texturevlm.relevance.scorers:PriorScorer",
        "channels": "texturevlm.relevance.channel_scorer:ChannelScorer",
        "embedding": "texturevlm.relevance.scorers:EmbeddingScorer",
        "attention": "texturevlm.relevance.scorers:AttentionScorer",
        "none": "texturevlm.relevance.scorers:SalienceScorer",
    },
    clients=("words", "scout", "prior", "channels", "none"),
)
# What a user may write where it does not work, with what to do instead.
ELSEWHERE = {
    "model": "'model', a model's own attention, which ask, attach and eval with a model take",
    "embedding": "'embedding' without its models: write embedding:MODEL,PCA",
    "attention": "'attention', which needs a map: relevance=tv.SCORERS['attention'](map)",
}


def check_relevance(function: str, relevance: Any, own: Collection[str] = (), argument: str = "relevance") -> Any:
    """Check what a caller gives for relevance, before slow work: auto, a name that makes a scorer, or a scorer.

    own:     names that only this caller knows
    returns  `relevance` as it is
    """
    if isinstance(relevance, type):
        name = relevance.__name__
        raise TypeError(f"{function}: {argument} must be a scorer, got the class {name}; {name}(…) makes a scorer")
    if not isinstance(relevance, str):
        missing = [name for name in ("name", "prepare", "score") if not hasattr(relevance, name)]
        if missing:
            given = f"{relevance!r:.60}, which has no {missing[0]}"
            raise TypeError(f"{function}: {argument} must be a scorer or the name of one, got {given}")
        return relevance
    if relevance.startswith(EMBEDDING_PREFIX):
        embedding_parts(function, relevance, argument)
        return relevance
    by_hand = {name for name in SCORERS.built_in if declares(name, "by_hand")}.difference(own)
    if relevance in SCORERS and relevance not in by_hand:
        return relevance
    known = tuple(dict.fromkeys(("auto", *(name for name in SCORERS if name not in by_hand), *own)))
    if relevance in ELSEWHERE and relevance not in known:
        raise ValueError(f"{function}: {argument} must be one of {', '.join(known)}, got {ELSEWHERE[relevance]}")
    return check_choice(function, argument, relevance, known)


def client_scorers() -> tuple[str, ...]:
    """What a web client may give for relevance: no plug-in, and nothing that reads a file or loads another model."""
    return ("auto", *SCORERS.clients)


def declares(scorer: str | Scorer, trait: str, otherwise: bool = False) -> bool:
    """What a scorer, or the scorer of this name, says of itself, see `Scorer`; `otherwise` if it says nothing."""
    known = SCORERS.get(scorer) if isinstance(scorer, str) else scorer
    return bool(getattr(known, trait, otherwise))


def reads_question(scorer: str | Scorer) -> bool:
    """Whether what a scorer finds depends on the question; auto does."""
    return declares(scorer, "reads_question", True)


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
