"""What a model is asked, and its answer with details: how sure it was of each token, what it saw, how long it took.

Four numbers describe an answer; a logistic regression turns them into the chance that it is right. A checkpoint that
was calibrated (`texturevlm train`) has its weights in the table `texturevlm` of its config.json. Others get weights
that ask for much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask.messages import Message
from texturevlm.placement import Placement
from texturevlm.types import Texture
from texturevlm.vlm import ModelHook, View


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and the tokens of its pictures.

    budget: that the tokens were placed for
    hooks:  what changes the model
    clip:   of a video: the views of its moments, one group per placeholder
    pages:  of a document, tokens by page number
    looks:  of the model, the one at these tokens included
    """

    prompt: list[Message]
    placements: list[Placement]
    budget: int
    hooks: tuple[ModelHook, ...] = ()
    clip: list[list[View]] | None = None
    pages: dict[int, int] = field(default_factory=dict)
    looks: int = 1

    @property
    def textures(self) -> list[Texture]:
        """What the tokens are sampled from; none for a video, whose views hold their pixels."""
        return [] if self.clip is not None else [placement.picture.texture for placement in self.placements]


def has_column(requests: Sequence[Request], name: str) -> bool:
    """Whether the placements have this optional column."""
    return getattr(requests[0].placements[0], name) is not None


@dataclass(frozen=True)
class AnswerFeatures:
    """An answer in numbers.

    logprob:    mean log-probability of its tokens
    entropy:    mean entropy of the distributions that they were taken from, in nats
    margin:     probability of the first token minus that of the runner-up
    unreadable: probability that the answer begins as the one for what cannot be read; 0 for a model without one
    """

    logprob: float
    entropy: float
    margin: float
    unreadable: float = 0.0


@dataclass(frozen=True, eq=False)
class Answer:
    """What `ask` returns with `return_details`.

    text:     the answer
    tokens:   its tokens as text, with the one that ended it
    logprobs: log-probability of each of them, before temperature and other processing
    placements: per image, page or moment, where the tokens lie that the model read, and why; `given` has the footprints
              in the image as it was given
    hooks:    what changed the model
    seconds:  wall clock of each stage: open, choose, first_token, decode; of all questions that were answered together
    unreadable: the probability that the answer begins as the one that this model gives to what it cannot read; None for
              a model whose config names no such answer
    pages:    of a document, the visual tokens of each page that was seen, by its number from 1; a page that was only
              seen small, among others, has 1
    looks:    how often the model looked; earlier: its answer to the look before
    confidence, features: the chance that the answer is right, and what it comes from, with looks="auto"; else None
    """

    text: str
    tokens: list[str]
    logprobs: list[float]
    placements: list[Placement]
    seconds: dict[str, float]
    unreadable: float | None = None
    looks: int = 1
    confidence: float | None = None
    features: AnswerFeatures | None = None
    earlier: Answer | None = None
    pages: dict[int, int] = field(default_factory=dict)
    hooks: tuple[ModelHook, ...] = ()

    @property
    def visual_tokens(self) -> int:
        """How many tokens were chosen, in all images."""
        return sum(placement.tokens for placement in self.placements)

    @property
    def kept(self) -> int:
        """How many of them are left in the last layer of the model."""
        count = self.visual_tokens
        for hook in self.hooks:
            count = hook.kept(count)
        return count

    @property
    def logprob(self) -> float:
        """Log-probability of the whole answer."""
        return sum(self.logprobs)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        kept = f", {self.kept} of them kept" if self.kept < self.visual_tokens else ""
        return (
            f"Answer({self.text!r:.80}, log-probability {self.logprob:.3g} of {len(self.tokens)} tokens, "
            f"{self.visual_tokens} visual tokens{kept}, {sum(self.seconds.values()):.3g} s)"
        )


class Stopwatch:
    """Takes the seconds of each stage of an answer.

    wait: whether to wait for the device, so that a stage has the time of its own kernels
    """

    def __init__(self, device: torch.device, *, wait: bool) -> None:
        self.device, self.wait, self.seconds = device, wait, dict[str, float]()
        self._begun = perf_counter()

    def stage(self, name: str) -> None:
        """A stage has ended, unless one of this name has before."""
        if name in self.seconds:
            return
        if self.wait and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = perf_counter()
        self.seconds[name], self._begun = now - self._begun, now


class FirstToken:
    """A stopping criterion that never stops: it takes the time of the first token."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Tensor:
        self.watch.stage("first_token")
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def logprobs_of(found: Any) -> Tensor:
    """(sequences, tokens): log-probabilities of generated tokens.

    found: what `generate` returned with `output_logits`, its sequences without the prompt
    """
    ids, beams = found.sequences, getattr(found, "beam_indices", None)
    every = torch.arange(len(ids), device=ids.device)
    columns = []
    for step in range(ids.shape[1]):
        row = every if beams is None else beams[:, step].clamp(min=0)  # -1 behind the end of an answer
        columns.append(found.logits[step].float().log_softmax(-1)[row, ids[:, step]])
    return torch.stack(columns, 1)


def length_of(ids: Sequence[int], ends: Sequence[int], pad: int | None) -> int:
    """Tokens of an answer, which may have ended before others of its batch.

    ends: ids that end an answer
    pad:  what follows an answer that was stopped otherwise; None if none can be
    """
    length = next((at + 1 for at, token in enumerate(ids) if token in ends), len(ids))
    while length > 1 and ids[length - 1] == pad:
        length -= 1
    return length


# Of the constant, and of the fields of AnswerFeatures. Not calibrated: a mean log-probability of −0.1 per token with an
# entropy of 0.3 is a chance of 0.84.
UNCALIBRATED = (3.5, 6.0, -4.0, 0.0, -4.0)


def features_of(found: Any, ends: Sequence[int], pad: int | None, doubt: float | None) -> AnswerFeatures:
    """The features of one answer.

    found: what `generate` returned with `output_logits`, its sequences without the prompt
    ends, pad: as for `length_of`
    doubt: as `AnswerFeatures.unreadable`
    """
    length = length_of(found.sequences[0].tolist(), ends, pad)
    steps: list[Tensor] = [step[0].float().log_softmax(-1) for step in found.logits[:length]]
    entropy = [float(-(step.exp() * step.clamp(min=-1e4)).sum()) for step in steps]
    best = steps[0].exp().topk(2).values
    logprob = float(logprobs_of(found)[0, :length].mean())
    return AnswerFeatures(logprob, sum(entropy) / length, float(best[0] - best[1]), doubt or 0.0)


def chance_of(features: AnswerFeatures, weights: Sequence[float] | None) -> float:
    """The chance that an answer is right. weights: of the constant and each feature; None: not calibrated"""
    constant, *others = UNCALIBRATED if weights is None else weights
    score = constant + sum(weight * value for weight, value in zip(others, astuple(features), strict=True))
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, score))))
