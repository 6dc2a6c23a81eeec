"""Train an encoder to keep detail: what a token shows must be readable from its features, band by band.

A low-rank difference of the tower's weights and a linear decoder learn to rebuild the samples of each token, as the
bands of a Laplacian pyramid. Each band counts by its own variance, so that fine detail is not drowned by what is
coarse. An anchor holds the features near those that the language model was trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.channels.structure import luma
from texturevlm.check import check_count
from texturevlm.progress import Progress
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.prompted import Prompted
from texturevlm_lab.rivals.hooks.low_rank import LowRankDifference, layer_shapes
from texturevlm_lab.train.asked import AskedSettings, answer_scores, frozen_model, split_questions
from texturevlm_lab.train.fit import draw_examples
from texturevlm_lab.train.gains import Gain, gains_table
from texturevlm_lab.train.laplacian import laplacian_pyramid

BANDS = 4  # the last one is what is left: the coarse picture
RIDGE = 1e-2  # of the mean variance of a feature, in the decoders that are compared


class BandsTask:
    """A task of `fit`: a difference of the tower learns to keep detail."""

    @dataclass(frozen=True)
    class Settings(AskedSettings):
        rank: int = 4
        samples: int = 192
        length: int = 24
        batch: int = 4
        anchor: float = 1.0  # weight of the features' distance from their own, over their variance

    def __init__(self, settings: Settings, *, device: str = "cpu") -> None:
        for name in ("rank", "budget", "samples", "length", "batch"):
            check_count("BandsTask", name, getattr(settings, name), 1)
        if settings.anchor < 0:
            raise ValueError(f"BandsTask: anchor must be at least 0, got {settings.anchor}")
        self.settings, self.device = settings, device
        learned, self.asked = split_questions("BandsTask", settings.data, settings.samples)
        self.vlm = frozen_model(settings.model, settings.budget, device)
        self.progress = Progress(len(learned) + len(self.asked), "questions")
        self.learned, self.held = list(map(self._prompt, learned)), list(map(self._prompt, self.asked))
        wide = sum(part[0].shape[1] for part in self._embedded(self.learned[:1], changed=False))
        deep = self._bands(self.learned[:1]).shape[1]
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            difference = LowRankDifference(layer_shapes(self.vlm.adapter.tower_blocks), settings.rank)
            self.module = nn.ModuleDict({"difference": difference, "decoder": nn.Linear(wide, deep)}).to(device)
        with torch.no_grad():
            rows, bands = self._rows(self.learned, changed=False), self._bands(self.learned)
            self.centre, self.spread = rows.mean(0), rows.std(0).clamp(min=1e-6)
            self.variance = bands.var(0).clamp(min=1e-6)
            self.before = self.after = self._said(changed=False)
            self.blind = self.now = self._errors(changed=False)

    def batch(self, step: int) -> list[int]:
        return draw_examples(len(self.learned), self.settings.batch, seed=self.settings.seed, step=step)

    def losses(self, batch: Sequence[int], step: int) -> dict[str, Tensor]:
        some = [self.learned[index] for index in batch]
        rows, own = self._rows(some, changed=True), self._rows(some, changed=False)
        wanted = self._bands(some)
        found = self.module["decoder"]((rows - self.centre) / self.spread)
        share = self._of_bands((found - wanted).square() / self.variance).mean(0)
        return {
            "bands": share.sum(),
            "anchor": self.settings.anchor * ((rows - own) / self.spread).square().mean(),
        }

    def evaluate(self) -> dict[str, float]:
        """On held-out images: the share of each band that a linear decoder misses, and ANLS, before and now."""
        self.now, self.after = self._errors(changed=True), self._said(changed=True)
        found = {}
        for band in range(BANDS):
            found[f"band_{band}_before"], found[f"band_{band}_after"] = (
                float(part[:, band].mean()) for part in (self.blind, self.now)
            )
        for name, gain in zip(("bands", "answers"), (one.change for one in self._gains()[:2])):
            found |= {f"{name}_change": gain.mean, f"{name}_low": gain.low, f"{name}_high": gain.high}
        return found | {"answers_before": mean(self.before), "answers_after": mean(self.after)}

    def report(self) -> str:
        """The share of the bands that is missed, and ANLS, without and with the trained difference."""
        return gains_table(self._gains())

    def _gains(self) -> list[Gain]:
        """Of all bands, of the answers, and of each band, finest first."""
        pages = [str(sample.image) for sample in self.asked]

        def missed(name: str, before: Tensor, after: Tensor) -> Gain:
            return Gain(name, before.tolist(), after.tolist(), pages, low_is_good=True)

        each = [missed(f"missed of band {n}", self.blind[:, n], self.now[:, n]) for n in range(BANDS)]
        every = missed("missed of all bands", self.blind.mean(1), self.now.mean(1))
        return [every, Gain("ANLS", self.before, self.after, pages), *each]

    def _errors(self, *, changed: bool) -> Tensor:
        """(pages, BANDS): the share that the best linear decoder of the learned pages misses on held-out ones."""
        rows, bands = self._rows(self.learned, changed=changed).double(), self._bands(self.learned).double()
        centre, middle = rows.mean(0), bands.mean(0)
        rows = rows - centre
        gram = rows.T @ rows
        gram += RIDGE * gram.diagonal().mean() * torch.eye(len(gram), device=gram.device)
        decoder = torch.linalg.solve(gram, rows.T @ (bands - middle))
        found = []
        for one in self.held:
            wanted = self._bands([one]).double()
            left = (self._rows([one], changed=changed).double() - centre) @ decoder + middle - wanted
            found.append(self._of_bands(left.square() / self.variance).mean(0))
        return torch.stack(found)

    def _said(self, *, changed: bool) -> list[float]:
        """ANLS of the answers to held-out questions."""
        with self.vlm.adapter.lock, ExitStack() as undo:
            self._change(undo, changed)
            return answer_scores(self.vlm, self.held, self.asked, self.settings.length)

    def _rows(self, prompts: Sequence[Prompted], *, changed: bool) -> Tensor:
        """(tokens, W): the features of all tokens, with the difference or without it."""
        parts = self._embedded(prompts, changed=changed)
        return torch.cat([torch.cat(own, -1) for own in zip(*parts)])

    def _embedded(self, prompts: Sequence[Prompted], *, changed: bool) -> list[list[Tensor]]:
        with self.vlm.adapter.lock, ExitStack() as undo, torch.set_grad_enabled(changed and torch.is_grad_enabled()):
            self._change(undo, changed)
            return self.vlm.adapter.embed([view for one in prompts for view in one.views])

    def _change(self, undo: ExitStack, changed: bool) -> None:
        if changed:
            difference: Any = self.module["difference"]
            for hook in difference.hooks(self.vlm.adapter.tower_blocks):
                undo.callback(hook.remove)

    def _bands(self, prompts: Sequence[Prompted]) -> Tensor:
        """(tokens, numbers): the bands of the grey samples of each token, finest first."""
        pixels = torch.cat([view.pixels[:, 0] for one in prompts for view in one.views])
        return torch.cat([band.flatten(1) for band in laplacian_pyramid(luma(pixels), levels=BANDS)], 1)

    def _of_bands(self, values: Tensor) -> Tensor:
        """(tokens, numbers) → (tokens, BANDS): the mean of each band."""
        side = self.vlm.adapter.side
        sizes = [(-(-side // 2**band)) ** 2 for band in range(BANDS)]
        return torch.stack([part.mean(1) for part in values.split(sizes, 1)], 1)

    def _prompt(self, sample: Sample) -> Prompted:
        self.progress.step()
        return self.settings.prompt(self.vlm, sample)
