"""Train Token Compensator's low-rank difference: with it, a model whose tower merges tokens answers like the whole one.

A model answers questions of a train split with all tokens. Then tokens are reduced in its tower, and the difference
learns to give the same probabilities for the tokens of those answers (Kullback-Leibler divergence). Nothing else of the
model changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.ask.decoding import GREEDY
from texturevlm.check import check_choice, check_count
from texturevlm.progress import Progress
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.prompted import Prompted, batched_inputs
from texturevlm_lab.rivals import METHODS, ReduceStep, steps_of
from texturevlm_lab.rivals.hooks.low_rank import LowRankDifference, layer_shapes
from texturevlm_lab.rivals.hooks.reducible import check_reducible
from texturevlm_lab.rivals.hooks.reducing import reduced
from texturevlm_lab.train.asked import AskedSettings, frozen_model, split_questions
from texturevlm_lab.train.fit import draw_examples


class AnsweredPrompt(NamedTuple):
    """A prompt and the answer of the whole model."""

    prompt: Prompted
    answer: list[int]


class CompensatorTask:
    """A task of `fit`: a difference of the tower makes up for tokens that are merged."""

    @dataclass(frozen=True)
    class Settings(AskedSettings):
        method: str = "tome"  # a method that acts in the tower
        keep: float = 0.5  # share of the tokens that stays
        rank: int = 4

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        for name in ("rank", "budget", "samples", "length", "batch"):
            check_count("CompensatorTask", name, getattr(settings, name), 1)
        within = [name for name, method in METHODS.items() if "tower" in method.acts]
        check_choice("CompensatorTask", "method", settings.method, within)
        self.settings, self.device = settings, device
        self.steps: tuple[ReduceStep, ...] = steps_of("CompensatorTask", settings.method, settings.keep)
        learned, held = split_questions("CompensatorTask", settings.data, settings.samples)
        self.vlm = frozen_model(settings.model, settings.budget, device)
        check_reducible("CompensatorTask", self.vlm.model.config, self.steps)
        self.progress = Progress(len(learned) + len(held), "questions")
        self.learned, self.held = list(map(self._answered, learned)), list(map(self._answered, held))
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.module = LowRankDifference(layer_shapes(self.vlm.adapter.tower_blocks), settings.rank)

    def batch(self, step: int) -> list[AnsweredPrompt]:
        drawn = draw_examples(len(self.learned), self.settings.batch, seed=self.settings.seed, step=step)
        return [self.learned[index] for index in drawn]

    def losses(self, batch: Sequence[AnsweredPrompt], step: int) -> dict[str, Tensor]:
        return {"divergence": self.divergence(batch, compensated=True)}

    def evaluate(self) -> dict[str, float]:
        """On held-out images: the divergence from the whole model with and without the difference."""
        found: dict[str, float] = {}
        for name, compensated in (("divergence", True), ("uncompensated", False)):
            size = self.settings.batch
            parts = [self.held[first : first + size] for first in range(0, len(self.held), size)]
            sums = [len(part) * float(self.divergence(part, compensated=compensated)) for part in parts]
            found[name] = sum(sums) / len(self.held)
        return found

    def divergence(self, batch: Sequence[AnsweredPrompt], *, compensated: bool) -> Tensor:
        """Mean over the tokens of the answers, in nats."""
        endings = [one.answer for one in batch]
        inputs = batched_inputs(self.vlm.adapter, [one.prompt for one in batch], endings)
        with self.vlm.adapter.lock, ExitStack() as undo:
            with torch.no_grad():
                whole = self._logits(inputs)
            if compensated:
                for hook in self.module.hooks(self.vlm.adapter.tower_blocks):
                    undo.callback(hook.remove)
            undo.enter_context(reduced(self.vlm.adapter, self.steps, endings=[len(one) for one in endings]))
            found = self._logits(inputs)
        ours, theirs = (one.log_softmax(-1).flatten(0, 1) for one in (found, whole))
        return functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)

    def _logits(self, inputs: dict[str, Tensor]) -> Tensor:
        """(B, length, V), of the tokens of the answers."""
        length = self.settings.length
        logits: Tensor = self.vlm.model(**inputs, logits_to_keep=length + 1, use_cache=False).logits
        return logits[:, -length - 1 : -1].float()

    @torch.no_grad()
    def _answered(self, sample: Sample) -> AnsweredPrompt:
        settings, adapter = self.settings, self.vlm.adapter
        prompt = settings.prompt(self.vlm, sample)
        options: dict[str, Any] = {"max_new_tokens": settings.length, "min_new_tokens": settings.length}
        found = adapter.model.generate(**batched_inputs(adapter, [prompt]), **(GREEDY | options))
        self.progress.step()
        return AnsweredPrompt(prompt, found[0, len(prompt.ids) :].tolist())
