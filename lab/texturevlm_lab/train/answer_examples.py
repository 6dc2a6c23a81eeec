"""Questions for a frozen model, whose tower has run already: only the choice of its tokens is left to learn.

A page is cut into candidates, a grid of tokens at one scale. The tower reads all of them once. What a choice does to
the answer is then a matter of the language model alone (`vlm.StoredFeatures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.ask import VLM, conversation_about
from texturevlm.placement import choose_tokens
from texturevlm.scout import encode
from texturevlm.scout.scout import grey_input
from texturevlm.scout.spotter import Spots, Spotter
from texturevlm.types import Texture
from texturevlm.vlm import PromptImage, StoredFeatures, View
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.prompted import Prompted, batched_inputs, end_token, generated
from texturevlm_lab.train.soft_choice import relaxed_top_k

LEAST_MASS = 1e-9  # of a token, before its logarithm


@dataclass(frozen=True, eq=False)
class AnswerExample:
    """One question that the ranker learns from.

    whole:    its prompt with all candidates, whose pixels are blank: nobody looks at them
    ending:   ids of the right answer, with the one that ends it
    features: of the candidates, per part (embedding, DeepStack), each (N, D)
    place:    (N, 2), row and column of each candidate on the page's grid of candidates
    grid:     rows and columns of that
    spots, question: what the ranker gets
    """

    sample: Sample
    whole: Prompted
    ending: list[int]
    features: list[Tensor]
    place: Tensor
    grid: tuple[int, int]
    spots: Spots
    question: tuple[Tensor, Tensor, Tensor]

    def scores(self, ranker: nn.Module) -> Tensor:
        """(N,): the logarithm of the mass that a ranker gives each candidate."""
        return self.mass(ranker, self.grid)[tuple(self.place.T)].log()

    def mass(self, ranker: nn.Module, grid: tuple[int, int]) -> Tensor:
        """(h, w): the mass that a ranker gives each cell of a grid over the page; all of it sums to 1."""
        found = ranker(self.spots, *self.question).softmax(1)[:, :-1]
        chance = found.view(self.spots.text.shape) * self.spots.text.sigmoid()
        mass = functional.adaptive_avg_pool2d(chance[:, None], grid)[0, 0]
        return mass / mass.sum().clamp(min=LEAST_MASS) + LEAST_MASS

    def weights(self, scores: Tensor, budget: int, temperature: float) -> Tensor:
        """(N,): how far each candidate is chosen; all together as many as the budget."""
        return relaxed_top_k(scores, budget, temperature)

    def best(self, scores: Tensor, budget: int) -> Tensor:
        """(K,): the candidates that scores (N,) choose."""
        return scores.topk(min(budget, len(scores))).indices


class Page(NamedTuple):
    """A page that was read: its candidates with blank pixels, their features, what the spotter saw, and its size."""

    view: View
    features: list[Tensor]
    spots: Spots
    size: tuple[int, int]


class AnswerExamples:
    """Makes examples for a model; pages that were read stay known."""

    def __init__(self, vlm: VLM, spotter: Spotter, *, candidates: int) -> None:
        self.vlm, self.spotter, self.candidates = vlm, spotter, candidates
        self._pages: dict[Path, Page] = {}

    @torch.no_grad()
    def example(self, sample: Sample) -> AnswerExample:
        page = self._page(sample.image)
        place, grid = on_grid(page.view.centre, page.size)
        return AnswerExample(**self._shared(sample, page), place=place, grid=grid)

    def _shared(self, sample: Sample, page: Page) -> dict[str, Any]:
        """What examples of every kind have."""
        adapter, count = self.vlm.adapter, len(page.view)
        end = end_token(adapter)
        answer = adapter.tokenizer(sample.answers[0], add_special_tokens=False)["input_ids"]
        letters, traits, asked = (part.to(self.vlm.device) for part in encode([sample.question]))
        return {
            "sample": sample,
            "whole": Prompted(chosen_prompt_ids(self.vlm, sample.question, count), count, [page.view]),
            "ending": [*answer, *([] if end is None else [end])],
            "features": page.features,
            "spots": page.spots,
            "question": (self.spotter.question(letters, traits), traits, asked),
        }

    def _page(self, path: Path) -> Page:
        if path not in self._pages:
            texture = Texture.open(path, device=self.vlm.device).mipmapped()
            (view,) = self.views(texture)
            features = [part[0] for part in self.vlm.adapter.embed([view])]
            view = replace(view, pixels=view.pixels.new_zeros(()).expand_as(view.pixels))
            self._pages[path] = Page(view, features, self.spotter(grey_input(texture)), texture.size)
        return self._pages[path]

    def views(self, texture: Texture) -> list[View]:
        """The candidates of a page: one grid over all of it."""
        how: Any = {"budget": self.candidates, "patch": self.vlm.adapter.side}
        allocation = choose_tokens(texture, allocator="resize", relevance="none", **how)
        return [view for group in self.vlm.adapter.groups(PromptImage(texture, allocation)) for view in group]


def chosen_prompt_ids(vlm: VLM, question: str, tokens: int) -> list[int]:
    """The ids of a prompt about one image of so many tokens."""
    adapter = vlm.adapter
    return adapter.spell(conversation_about(1, question, adapter.marks), [], [adapter.image_filling(tokens)])


def on_grid(centre: Tensor, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
    """Rows and columns (N, 2) of centres (x, y) that lie on a grid over an image, and the grid's extent."""
    axes = [centre[:, 1], centre[:, 0]]
    extent = [len(axis.round(decimals=1).unique()) for axis in axes]
    place = [(axis / side * count).long().clamp(0, count - 1) for axis, side, count in zip(axes, size, extent)]
    return torch.stack(place, 1), (extent[0], extent[1])


def surprise(vlm: VLM, examples: Sequence[AnswerExample], weights: Sequence[Tensor]) -> Tensor:
    """(B,): the mean negative log-likelihood of each right answer, if each candidate's features are multiplied by its
    weight (N,); differentiable in the weights."""
    adapter = vlm.adapter
    endings = [one.ending for one in examples]
    inputs = batched_inputs(adapter, [one.whole for one in examples], endings)
    parts = [[part * weight[:, None] for part in one.features] for one, weight in zip(examples, weights)]
    longest = max(map(len, endings))
    with adapter.lock, StoredFeatures([list(part) for part in zip(*parts)]).run(adapter):
        logits = adapter.model(**inputs, logits_to_keep=longest + 1, use_cache=False).logits
    said = logits[:, -longest - 1 : -1].float().log_softmax(-1)
    right = said.gather(-1, inputs["input_ids"][:, -longest:, None])[..., 0]
    lengths = torch.tensor([len(one) for one in endings], device=right.device)
    counted = torch.arange(longest, device=right.device) >= longest - lengths[:, None]
    cost: Tensor = -(right * counted).sum(1) / lengths
    return cost


@torch.no_grad()
def answers_from(vlm: VLM, examples: Sequence[AnswerExample], chosen: Sequence[Tensor], *, length: int) -> list[str]:
    """The model's answers if it gets the chosen candidates (K,) of each example alone."""
    prompts, features = [], []
    for one, some in zip(examples, chosen):
        (view,) = one.whole.views
        order = some.sort().values  # as the page is read
        ids = chosen_prompt_ids(vlm, one.sample.question, len(order))
        prompts.append(Prompted(ids, len(order), [view.part(order)]))
        features.append([part[order] for part in one.features])
    read = StoredFeatures([list(part) for part in zip(*features)])
    return generated(vlm.adapter, prompts, hooks=[read], max_new_tokens=length)
