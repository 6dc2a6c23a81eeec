"""Evaluation mode while a model answers: it may be asked in the middle of its training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from texturevlm.vlm.weights import modules_of


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Afterwards every module is in the mode in which it was.

    In training mode there is dropout, and with gradient checkpointing transformers generates without a cache: nonsense.
    """
    training = [module for module in modules_of(model) if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
