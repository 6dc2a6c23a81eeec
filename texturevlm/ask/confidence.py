"""How sure a model is of an answer: a chance from the probabilities of its tokens, calibrated by `texturevlm train`.

Four numbers describe an answer; a logistic regression turns them into the chance that it is right. A checkpoint that
was calibrated has its weights in the table `texturevlm` of its config.json. Others get weights that ask for much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from torch import Tensor

from texturevlm.ask.answer import AnswerFeatures, length_of, logprobs_of

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
