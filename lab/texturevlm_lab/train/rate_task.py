"""Train the rate of `dyrate`: from the attention of an answer's second token to the share of tokens that is needed.

A model answers questions of a train split. Then it is made to give the same answers again while only a share of the
visual tokens stays. Needed is the smallest share at which the probabilities of the next tokens hardly change: their
mean Kullback-Leibler divergence stays below a tolerance. Too few is worse than too many (pinball loss).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from texturevlm.ask import VLM, load_vlm
from texturevlm.ask.decoding import GREEDY
from texturevlm.check import check_count
from texturevlm.progress import Progress
from texturevlm.vlm import evaluating
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.prompted import Prompted, batched_inputs
from texturevlm_lab.rivals import Context, ReduceStep
from texturevlm_lab.rivals.dyrate import RateHead, attention_spread, statistics
from texturevlm_lab.rivals.hooks.reducible import check_reducible
from texturevlm_lab.rivals.hooks.reducing import reduced
from texturevlm_lab.train.asked import AskedSettings, split_questions
from texturevlm_lab.train.fit import draw_examples

RATES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75)  # shares that are tried
QUANTILE = 0.8  # of needed shares that the head aims at


class RateExample(NamedTuple):
    """What the attention of one answer looked like, which share it needed, and what the rule without training keeps."""

    given: Tensor
    needed: float
    rule: float


class RateTask:
    """A task of `fit`: a head learns how many tokens an answer needs."""

    @dataclass(frozen=True)
    class Settings(AskedSettings):
        length: int = 6
        tolerance: float = 0.05  # of the mean divergence, in nats
        batch: int = 64

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        for name, least in (("budget", 2), ("samples", 2), ("length", 3), ("batch", 1)):
            check_count("RateTask", name, getattr(settings, name), least)
        self.settings, self.device = settings, device
        learned, held = split_questions("RateTask", settings.data, settings.samples)
        vlm = load_vlm(settings.model, budget=settings.budget, device=device, captured=False)
        check_reducible("RateTask", vlm.model.config, [ReduceStep("dyrate", 1)])
        progress = Progress(len(learned) + len(held), "questions")

        def made(sample: Sample) -> RateExample:
            progress.step()
            return rate_example(vlm, settings.prompt(vlm, sample), settings)

        self.learned, self.held = list(map(made, learned)), list(map(made, held))
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.module = RateHead()

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        drawn = draw_examples(len(self.learned), self.settings.batch, seed=self.settings.seed, step=step)
        return self._stacked([self.learned[index] for index in drawn])

    def losses(self, batch: tuple[Tensor, Tensor], step: int) -> dict[str, Tensor]:
        given, needed = batch
        short = needed - self.module(given)
        return {"pinball": torch.maximum(QUANTILE * short, (QUANTILE - 1) * short).mean()}

    def evaluate(self) -> dict[str, float]:
        """On held-out images: how often enough is kept, and which share; the rule without training beside it."""
        given, needed = self._stacked(self.held)
        kept, rule = self.module(given), torch.tensor([one.rule for one in self.held], device=self.device)
        return {
            "enough": float((kept >= needed).float().mean()),
            "kept": float(kept.mean()),
            "rule_enough": float((rule >= needed).float().mean()),
            "rule_kept": float(rule.mean()),
            "needed": float(needed.mean()),
        }

    def _stacked(self, examples: Sequence[RateExample]) -> tuple[Tensor, Tensor]:
        given = torch.stack([one.given for one in examples])
        return given.to(self.device), torch.tensor([one.needed for one in examples], device=self.device)


class Forced:
    """A processor of logits that makes `generate` give this answer."""

    def __init__(self, answer: Tensor, begins: int) -> None:
        self.answer, self.begins = answer, begins

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        wanted = self.answer[ids.shape[1] - self.begins]
        return torch.full_like(scores, -torch.inf).index_fill(1, wanted[None], 0.0)


def rate_example(vlm: VLM, prompt: Prompted, settings: RateTask.Settings) -> RateExample:
    """Answer a question with all tokens, then again with ever more of them."""
    seen: list[tuple[Tensor, float]] = []

    def watching(context: Context, keep: int) -> int:
        seen.append((statistics(context), attention_spread(context, 1) / len(context)))
        return len(context)

    answer, full = answered_with(vlm, prompt, ReduceStep("dyrate", 1, rate=watching), settings.length)
    needed = 1.0
    for share in RATES:
        _, fewer = answered_with(vlm, prompt, ReduceStep("dyrate", share, rate=_at_once), settings.length, answer)
        if divergence(full[2:], fewer[2:]) <= settings.tolerance:
            needed = share
            break
    return RateExample(seen[0][0], needed, seen[0][1])


def answered_with(
    vlm: VLM, prompt: Prompted, step: ReduceStep, length: int, answer: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The ids of an answer (length,), the given one or the model's own, and the logits of its tokens (length, V)."""
    inputs = batched_inputs(vlm.adapter, [prompt])
    begins = inputs["input_ids"].shape[1]
    options: dict[str, Any] = {"max_new_tokens": length, "min_new_tokens": length, "output_logits": True}
    if answer is not None:
        options["logits_processor"] = [Forced(answer, begins)]
    model = vlm.adapter.model
    with vlm.adapter.lock, torch.no_grad(), evaluating(model), reduced(vlm.adapter, (step,), function="train"):
        found = model.generate(**inputs, **(GREEDY | options), return_dict_in_generate=True)
    return found.sequences[0, begins:], torch.stack(found.logits, 1)[0].float()


def divergence(full: Tensor, fewer: Tensor) -> float:
    """Mean Kullback-Leibler divergence of the next tokens' probabilities, from logits (n, V)."""
    ours, theirs = full.log_softmax(-1), fewer.log_softmax(-1)
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


def _at_once(context: Context, keep: int) -> int:
    return keep
