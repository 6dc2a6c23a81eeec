"""Train the scout's ranker by the answers of a frozen model, instead of the boxes of answers.

Three objectives. `likelihood`: candidates are weighted by a relaxed top-K of the ranker's scores, and the loss is the
surprise of the model at the right answer. `cuts`: the same with candidates that form a hierarchy, weighted by a relaxed
cut, as `dag` makes sharp ones. `reinforce`: so many tokens as the budget has are drawn, the model answers,
and draws whose answers are better than the others' become likelier. Several data sets may form a curriculum. Questions
that are answered wrongly can weigh more in the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.allocate import ALLOCATORS
from texturevlm.check import check_choice, check_count
from texturevlm.defaults import ALLOCATOR
from texturevlm.progress import Progress
from texturevlm.relevance.scorers import ScoutScorer
from texturevlm.scout import Scout
from texturevlm.scout.ranker import Ranker
from texturevlm.scout.scout import shipped_parts
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.train.answer_examples import AnswerExample, AnswerExamples, answers_from, surprise
from texturevlm_lab.train.asked import TOGETHER, answer_scores, asked_prompt, frozen_model, split_questions
from texturevlm_lab.train.cut_examples import CutExamples
from texturevlm_lab.train.fit import draw_questions, generator_at
from texturevlm_lab.train.gains import Gain, gains_table
from texturevlm_lab.train.soft_choice import draw_top_k, leave_one_out, log_chance

OBJECTIVES = ("likelihood", "reinforce", "cuts")
LEAST = {"budget": 1, "samples": 4, "batch": 1, "draws": 2, "length": 1, "curriculum": 0, "round": 0}  # of settings


class LearnedRanker(nn.Module):
    """A ranker, and the weight of each question that it learns from."""

    weight: Tensor

    def __init__(self, ranker: Ranker, questions: int) -> None:
        super().__init__()
        self.ranker = ranker
        self.register_buffer("weight", torch.ones(questions))


class AnswerTask:
    """A task of `fit`: a ranker learns where a model must look to answer."""

    @dataclass(frozen=True)
    class Settings:
        data: tuple[Path, ...]  # data sets with a train split, the easiest first
        model: str = "reader"
        objective: str = OBJECTIVES[0]
        allocator: str = ALLOCATOR  # how tokens of held-out pages are chosen
        budget: int = 64
        candidates: int = 384  # tokens of a page that the choice is made from
        samples: int = 192  # questions per data set
        length: int = 24  # tokens of an answer at most
        batch: int = 8
        draws: int = 4  # per question, for reinforce
        temperature: float = 1.0  # of the relaxed choice
        curriculum: int = 0  # steps until all data sets are drawn alike; 0: from the start
        round: int = 0  # steps after which all questions are answered and weighted anew; 0: never
        harder: float = 2.0  # weight of a wrongly answered question, over one that was answered rightly
        seed: int = 0

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        check_choice("AnswerTask", "objective", settings.objective, OBJECTIVES)
        check_choice("AnswerTask", "allocator", settings.allocator, ALLOCATORS)
        for name, least in LEAST.items():
            check_count("AnswerTask", name, getattr(settings, name), least)
        check_count("AnswerTask", "candidates", settings.candidates, settings.budget)
        if not settings.data or settings.temperature <= 0 or settings.harder < 1:
            got = f"{len(settings.data)}, {settings.temperature} and {settings.harder}"
            wanted = "data must be at least one folder, temperature above 0, harder at least 1"
            raise ValueError(f"AnswerTask: {wanted}, got {got}")
        self.settings, self.device = settings, device
        sets = [split_questions("AnswerTask", folder, settings.samples) for folder in settings.data]
        self.vlm = frozen_model(settings.model, settings.budget, device)
        spotter, ranker = shipped_parts()
        self.spotter = spotter.to(device).eval().requires_grad_(False)
        kind = CutExamples if settings.objective == "cuts" else AnswerExamples
        make = kind(self.vlm, self.spotter, candidates=settings.candidates)
        self.learned: list[AnswerExample] = []
        self.sizes: list[int] = []
        progress = Progress(sum(len(learned) for learned, _ in sets), "questions")
        for learned, _ in sets:
            self.learned += map(make.example, learned)
            self.sizes.append(len(learned))
            progress.step(len(learned))
        self.held = [sample for _, held in sets for sample in held]
        self.held_sets = [folder.name for folder, (_, held) in zip(settings.data, sets) for _ in held]
        self.module = LearnedRanker(ranker.to(device), len(self.learned))
        self.before = self.after = self._scores(self.module.ranker)

    def batch(self, step: int) -> list[int]:
        given = {"seed": self.settings.seed, "step": step, "steps": self.settings.curriculum}
        return draw_questions(self.sizes, self.settings.batch, **given)

    def losses(self, batch: Sequence[int], step: int) -> dict[str, Tensor]:
        self.module.eval()  # one page at a time has no statistics to normalise by
        if self.settings.round and step and step % self.settings.round == 0:
            self.module.weight.copy_(self._weighed())
        examples = [self.learned[index] for index in batch]
        weight = self.module.weight[list(batch)]
        scores = [one.scores(self.module.ranker) for one in examples]
        if self.settings.objective != "reinforce":
            how = (self.settings.budget, self.settings.temperature)
            costs = surprise(self.vlm, examples, [one.weights(own, *how) for one, own in zip(examples, scores)])
            return {"surprise": (costs * weight).sum() / weight.sum()}
        costs = self._reinforced(examples, scores, step)
        return {"reinforce": (costs * weight).sum() / weight.sum()}

    def _reinforced(self, examples: Sequence[AnswerExample], scores: Sequence[Tensor], step: int) -> Tensor:
        """(B,): what makes draws likelier that were answered better than the other draws for their question."""
        generator, draws = generator_at(self.settings.seed, step, "draws"), self.settings.draws
        counts = [min(self.settings.budget, len(one)) for one in scores]
        drawn = [draw_top_k(*pair, generator=generator) for pair in zip(scores, counts) for _ in range(draws)]
        asked = [one for one in examples for _ in range(draws)]
        said = answers_from(self.vlm, asked, drawn, length=self.settings.length)
        found = [anls(text, one.sample.answers) for text, one in zip(said, asked)]
        rewards = torch.tensor(found, device=scores[0].device).view(-1, draws)
        costs = []
        for number, (own, count) in enumerate(zip(scores, counts)):
            some = drawn[number * draws : (number + 1) * draws]
            chances = torch.stack([log_chance(own, one) for one in some]) / count
            costs.append(-(leave_one_out(rewards[number]) * chances).mean())
        return torch.stack(costs)

    @torch.no_grad()
    def _weighed(self) -> Tensor:
        """The weight of each question, from the model's answers to the best tokens as the ranker sees them now."""
        found = []
        for first in range(0, len(self.learned), TOGETHER):
            some = self.learned[first : first + TOGETHER]
            chosen = [one.best(one.scores(self.module.ranker), self.settings.budget) for one in some]
            said = answers_from(self.vlm, some, chosen, length=self.settings.length)
            found += [1 - anls(text, one.sample.answers) for text, one in zip(said, some)]
        return 1 + (self.settings.harder - 1) * torch.tensor(found, device=self.module.weight.device)

    def evaluate(self) -> dict[str, float]:
        """On held-out images: ANLS of the model's answers, tokens chosen as `ask` does, before training and now."""
        self.after = self._scores(self.module.ranker)
        gain = self._gain("ANLS", self.held_sets).change
        found = {"questions": float(len(self.after)), "before": mean(self.before), "after": mean(self.after)}
        return found | {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}

    def report(self) -> str:
        """ANLS on held-out pages by the shipped ranker and by the trained one, of all data sets and of each."""
        names = list(dict.fromkeys(self.held_sets))
        alone = [self._gain(f"ANLS, {name}", [name]) for name in names] if len(names) > 1 else []
        return gains_table([self._gain(f"ANLS, {' and '.join(names)}", names), *alone])

    def _gain(self, name: str, sets: Sequence[str]) -> Gain:
        """Of the held-out questions of some data sets."""
        rows = [row for row in zip(self.before, self.after, self.held, self.held_sets) if row[3] in sets]
        before, after, samples, _ = zip(*rows)
        return Gain(name, before, after, [str(sample.image) for sample in samples])

    @torch.no_grad()
    def _scores(self, ranker: Ranker) -> list[float]:
        """ANLS of each held-out question, with this ranker as the scout's."""
        dtype = torch.float16 if self.device.startswith("cuda") else torch.float32  # what the kernels take
        scorer = ScoutScorer(Scout(deepcopy(self.spotter), deepcopy(ranker), dtype).to(self.device))
        how: Any = {"budget": self.settings.budget, "allocator": self.settings.allocator, "relevance": scorer}
        prompts = [asked_prompt(self.vlm, sample.image, sample.question, **how) for sample in self.held]
        return answer_scores(self.vlm, prompts, self.held, self.settings.length)
