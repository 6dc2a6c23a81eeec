"""Digests of what answers depend on beside the code: the questions with their answers, the weights of the model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from texturevlm_lab.evaluate.data import Sample

SAMPLED = 1024  # numbers of each tensor of a model


def questions_digest(samples: Sequence[Sample]) -> str:
    """Of questions, answers and boxes, which a file of answers does not hold."""
    digest = hashlib.blake2b(digest_size=8)
    for sample in samples:
        digest.update(repr((sample.id, sample.question, sample.answers, sample.boxes, sample.size)).encode())
    return digest.hexdigest()


def weights_digest(model: Any) -> str:
    """Of the names, the shapes and some evenly spread numbers of every weight: all of them would take minutes.

    How a checkpoint was trained to read chosen tokens, which its config may say, counts too.
    """
    digest = hashlib.blake2b(repr(getattr(model.config, "texturevlm", None)).encode(), digest_size=8)
    with torch.no_grad():
        for name, weight in sorted(model.state_dict().items()):
            digest.update(f"{name}{tuple(weight.shape)}".encode())
            flat = weight.reshape(-1)
            digest.update(flat[:: max(1, len(flat) // SAMPLED)].float().cpu().numpy().tobytes())
    return digest.hexdigest()
