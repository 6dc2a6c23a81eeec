"""Calibrate the confidence of a model: which of its answers to an overview are right?

The model is asked labelled questions of train splits in one cheap look. A logistic regression learns from the features
of each answer the chance that it is right. Its weights go into the table `texturevlm` of the checkpoint's config.json,
as `confidence`, and decide when `ask(…, looks="auto")` stops.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.ask import load_vlm
from texturevlm.ask.answer import AnswerFeatures
from texturevlm.check import check_count
from texturevlm.progress import Progress
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.journal import append, cut_unfinished, read_journal

RIGHT = 0.5  # ANLS from which an answer counts as right
JUDGED_SHARE = 4  # one image in so many judges the calibration
NEVER = 1e-9  # the chance from which the model is sure: one look
LEAST_SPREAD = 1e-6  # of a feature that never varies


class Calibration(nn.Module):
    """A logistic regression on standardised features."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.mean: Tensor
        self.spread: Tensor
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("spread", features.std(0).nan_to_num(0).clamp(min=LEAST_SPREAD))
        self.weight = nn.Parameter(torch.zeros(features.shape[1]))
        self.constant = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """(n, features) → (n,), the logit of the chance to be right."""
        return (features - self.mean) / self.spread @ self.weight + self.constant

    def table(self) -> tuple[float, ...]:
        """The constant and the weights for features as they are: `confidence` of config.json."""
        weight = self.weight.detach() / self.spread
        constant = self.constant.detach() - (weight * self.mean).sum()
        return tuple(round(float(one), 4) for one in (constant, *weight))


class ConfidenceTask:
    """A task of `fit`: a logistic regression learns which answers are right."""

    @dataclass(frozen=True)
    class Settings:
        """model: as for `load_vlm`; data: folders with questions.jsonl, of which the train split is used;
        answers: a file that keeps what was asked, so that nothing is asked twice; limit: questions per folder;
        budget, relevance: of a question; the overview is a quarter of the budget
        """

        data: tuple[Path, ...]
        answers: Path
        model: str = "reader"
        limit: int = 100
        budget: int = 273
        relevance: str = "scout"

    def __init__(self, settings: Settings, *, device: torch.device | str) -> None:
        check_count("confidence", "limit", settings.limit, 1)
        self.settings, self.device = settings, device
        rows = self._asked()
        columns = [one.name for one in fields(AnswerFeatures)]
        features = torch.tensor([[row[name] for name in columns] for row in rows])
        right = torch.tensor([float(row["right"]) for row in rows])
        if len(set(right.tolist())) < 2:
            raise ValueError(f"confidence: data must have right and wrong answers, got {len(rows)} of one kind")
        names = sorted({row["image"] for row in rows})
        judged = {name for index, name in enumerate(names) if index % JUDGED_SHARE == 0}
        held = torch.tensor([row["image"] in judged for row in rows])
        self.train, self.held = (features[~held], right[~held]), (features[held], right[held])
        self.network = Calibration(self.train[0]).to(device)

    @property
    def module(self) -> nn.Module:
        return self.network

    def batch(self, step: int) -> Any:
        """All of them, at every step."""
        return [one.to(self.device) for one in self.train]

    def losses(self, batch: Any, step: int) -> Mapping[str, Tensor]:
        features, right = batch
        loss = functional.binary_cross_entropy_with_logits(self.network(features), right)
        return {"calibration": loss, "size": 1e-3 * self.network.weight.square().sum()}

    def evaluate(self) -> Mapping[str, float]:
        """On held-out images: the Brier score, and how often answers above a chance of 0.8 are right; the weights."""
        features, right = (one.to(self.device) for one in self.held)
        chance = self.network(features).sigmoid()
        sure = chance >= 0.8
        found = {
            "brier": float((chance - right).square().mean()),
            "right": float(right.mean()),
            "sure": float(sure.float().mean()),
            "right if sure": float(right[sure].mean()) if bool(sure.any()) else 0.0,
        }
        names = ("constant", *(one.name for one in fields(AnswerFeatures)))
        return found | {f"confidence {name}": value for name, value in zip(names, self.network.table())}

    def _asked(self) -> list[dict[str, Any]]:
        """The answers, asked for where the journal has none."""
        path = self.settings.answers
        samples = self._samples()
        known = {
            row["id"]: row for row in read_journal(path, "answers of this task", lambda row: dict(row, id=row["id"]))
        }
        missing = [sample for sample in samples if sample.id not in known]
        if missing:
            cut_unfinished(path)
            model = load_vlm(self.settings.model, budget=self.settings.budget, relevance=self.settings.relevance)
            progress = Progress(len(missing), "questions")
            for sample in missing:
                answer = model.ask(sample.image, sample.question, looks="auto", sure=NEVER, return_details=True)
                row = {"id": sample.id, "image": str(sample.image), "right": anls(answer.text, sample.answers) >= RIGHT}
                row |= dict(zip((one.name for one in fields(AnswerFeatures)), astuple(answer.features)))
                append(path, [row])
                known[sample.id] = row
                progress.step()
        return [known[sample.id] for sample in samples]

    def _samples(self) -> list[Sample]:
        found: list[Sample] = []
        for folder in self.settings.data:
            data = load_data(folder, split="train", limit=self.settings.limit, skip_broken=True, answered=True)
            found += data.samples
        return found
