"""Learn the balance of each scorer: how far to trust what it says about a question, and how sharp to take it.

Two numbers per scorer, explore and focus of Balance, fitted by the logarithm of the mass that lies on the answer's
cells. The pages are those that the training of the scout held out: on pages that it learned from it is too sure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from texturevlm.check import check_choice, check_count
from texturevlm.progress import Progress
from texturevlm.relevance.maps import Balance, ImageMaps
from texturevlm.relevance.named import SCORERS
from texturevlm.relevance.prepared import prepare
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.train.channel_task import is_held_out, place_shares
from texturevlm_lab.train.fit import draw_examples
from texturevlm_lab.train.pages import SETS, held_images

TRAINED = ("scout", "prior", "channels")
_LEAST = 1e-6  # mass whose logarithm is taken


class Balances(nn.Module):
    """Explore (as a logit) and focus (as a logarithm), one of each per scorer; they begin as the even balance."""

    def __init__(self, scorers: tuple[str, ...]) -> None:
        super().__init__()
        even = Balance()
        self.explore = nn.Parameter(torch.full((len(scorers),), float(even.explore)).logit())
        self.focus = nn.Parameter(torch.full((len(scorers),), float(even.focus)).log())

    def of(self, scorer: int) -> Balance:
        """The balance of a scorer, as tensors."""
        return Balance(explore=self.explore[scorer].sigmoid(), focus=self.focus[scorer].exp())


class Asked(NamedTuple):
    """One question by one scorer: its query (1, h, w), the maps of the page, and the share of the answer per cell."""

    query: Tensor
    maps: ImageMaps
    place: Tensor


class BalanceTask:
    """A task of `fit`: two numbers per scorer learn how far it is right."""

    @dataclass(frozen=True)
    class Settings:
        data: Path  # folder of the data sets that the scout was trained on
        set: str = "docvqa_half"  # one of them
        scorers: tuple[str, ...] = TRAINED
        questions: int = 120  # in all
        batch: int = 24  # questions per step
        seed: int = 1

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        check_choice("BalanceTask", "set", settings.set, SETS)
        for name in settings.scorers:
            check_choice("BalanceTask", "scorers", name, SCORERS)
        for name in ("questions", "batch"):
            check_count("BalanceTask", name, getattr(settings, name), 1)
        held = held_images(settings.data, settings.set)
        samples = list(load_data(settings.data / settings.set, split="train", located=True).samples)
        samples = [one for one in samples if one.image.name in held][: settings.questions]
        if not samples:
            raise ValueError(f"BalanceTask: data must hold located questions of held-out pages, got {settings.data}")
        self.settings, self.device = settings, device
        self.learned: list[dict[int, Asked]] = []
        self.held: list[dict[int, Asked]] = []
        self._read(samples)
        if not self.learned or not self.held:
            raise ValueError(f"BalanceTask: questions must be about several pages, got {len(samples)} questions")
        self.module = Balances(settings.scorers).to(device)

    @torch.no_grad()
    def _read(self, samples: list[Sample]) -> None:
        by_image: dict[Path, list[Sample]] = {}
        for sample in samples:
            by_image.setdefault(sample.image, []).append(sample)
        progress = Progress(len(by_image), "pages")
        for path, own in by_image.items():
            texture = Texture.open(path).mipmapped()
            prepared = prepare(texture, "none")
            for sample in own:
                place = place_shares(sample.boxes, texture.size, prepared.maps.grid).view(1, *prepared.maps.grid)
                asked = {}
                for index, name in enumerate(self.settings.scorers):
                    query, maps = prepared.query(sample.question, name)
                    if query is not None:
                        asked[index] = Asked(query.float(), maps, (place > 0).float())
                (self.held if is_held_out(path) else self.learned).append(asked)
            progress.step()

    def batch(self, step: int) -> list[int]:
        """The numbers of the questions of a step."""
        return draw_examples(len(self.learned), self.settings.batch, seed=self.settings.seed, step=step)

    def losses(self, batch: list[int], step: int) -> dict[str, Tensor]:
        """The loss of each scorer, under its name."""
        return {
            name: torch.stack([self._loss(self.learned[one], index) for one in batch]).mean()
            for index, name in enumerate(self.settings.scorers)
        }

    def _loss(self, asked: dict[int, Asked], scorer: int, balance: Balance | None = None) -> Tensor:
        query, maps, place = asked[scorer]
        own = self.module.of(scorer) if balance is None else balance
        found = own.weigh(query, maps, (maps.grid[0], maps.grid[1]))
        return -((found.mass * place).sum() + _LEAST).log()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """On held-out pages: the loss of each scorer with its balance, what the even one loses more, and the values."""
        found = {}
        for index, name in enumerate(self.settings.scorers):
            losses = [[float(self._loss(one, index, own)) for one in self.held] for own in (None, Balance())]
            own = self.module.of(index)
            found[f"loss_{name}"] = float(np.mean(losses[0]))
            found[f"gain_{name}"] = float(np.mean(losses[1]) - np.mean(losses[0]))
            found[f"explore_{name}"], found[f"focus_{name}"] = float(own.explore), float(own.focus)
        return found
