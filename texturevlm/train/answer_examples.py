"""Questions for a frozen model, whose tower has run already: only the choice of its tokens is left to learn.

A page is cut into candidates, a grid of tokens at one scale. The tower reads all of them once. What a choice does to
the answer is then a matter of the language model alone (`vlm.stored_features`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.ask import VLM
from texturevlm.ask.messages import conversation_about
from texturevlm.ask.prompted import Prompted, batched_inputs, chosen_prompt, end_token, generated
from texturevlm.evaluate.data import Sample
from texturevlm.pipeline import choose_tokens
from texturevlm.scout import encode
from texturevlm.scout.scout import grey_input
from texturevlm.scout.spotter import Spots, Spotter
from texturevlm.types import Texture
from texturevlm.vlm import stored_features

LEAST_MASS = 1e-9  # of a token, before its logarithm


@dataclass(frozen=True, eq=False)
class AnswerExample:
    """One question.

    whole:    its prompt with all candidates, whose pixels are blank: nobody looks at them
    few:      ids of the prompt with as many tokens as the budget has
    ending:   ids of the right answer, with the one that ends it
    features: of the candidates, per part (embedding, DeepStack), each (N, D)
    place:    (N, 2), row and column of each candidate on the page's grid of candidates
    grid:     rows and columns of that
    spots, question: what the ranker gets
    """

    sample: Sample
    whole: Prompted
    few: list[int]
    ending: list[int]
    features: list[Tensor]
    place: Tensor
    grid: tuple[int, int]
    spots: Spots
    question: tuple[Tensor, Tensor, Tensor]

    def scores(self, ranker: nn.Module) -> Tensor:
        """(N,): the logarithm of the mass that a ranker gives each candidate."""
        found = ranker(self.spots, *self.question).softmax(1)[:, :-1]
        chance = found.view(self.spots.text.shape) * self.spots.text.sigmoid()
        mass = functional.adaptive_avg_pool2d(chance[:, None], self.grid)[0, 0]
        return (mass / mass.sum().clamp(min=LEAST_MASS) + LEAST_MASS).log()[tuple(self.place.T)]


class AnswerExamples:
    """Makes examples for a model; pages that were read stay known."""

    def __init__(self, vlm: VLM, spotter: Spotter, *, budget: int, candidates: int) -> None:
        self.vlm, self.spotter, self.budget, self.candidates = vlm, spotter, budget, candidates
        self._pages: dict[Path, tuple[Texture, list[Tensor], Spots]] = {}

    @torch.no_grad()
    def example(self, sample: Sample) -> AnswerExample:
        adapter, device = self.vlm.adapter, self.vlm.device
        if sample.image not in self._pages:
            texture = Texture.open(sample.image, device=device).mipmapped()
            views = self._prompt(texture, sample.question).views
            spots = self.spotter(grey_input(texture))
            self._pages[sample.image] = texture, [part[0] for part in adapter.embed(views)], spots
        texture, features, spots = self._pages[sample.image]
        whole = self._prompt(texture, sample.question)
        (view,) = whole.views
        view = replace(view, pixels=view.pixels.new_zeros(()).expand_as(view.pixels))
        few = chosen_prompt_ids(self.vlm, sample.question, min(self.budget, len(view)))
        end = end_token(adapter)
        answer = adapter.tokenizer(sample.answers[0], add_special_tokens=False)["input_ids"]
        letters, traits, asked = (part.to(device) for part in encode([sample.question]))
        place, grid = _on_grid(view.centre, texture.size)
        return AnswerExample(
            sample,
            replace(whole, views=[view]),
            few,
            [*answer, *([] if end is None else [end])],
            features,
            place,
            grid,
            spots,
            (self.spotter.question(letters, traits), traits, asked),
        )

    def _prompt(self, texture: Texture, question: str) -> Prompted:
        how: Any = {"budget": self.candidates, "patch": self.vlm.adapter.side}
        allocation = choose_tokens(texture, allocator="resize", relevance="none", **how)
        return chosen_prompt(self.vlm.adapter, question, [texture], [allocation])


def chosen_prompt_ids(vlm: VLM, question: str, tokens: int) -> list[int]:
    """The ids of a prompt about one image of so many tokens."""
    adapter = vlm.adapter
    return adapter.spell(conversation_about(1, question, adapter.marks), [], [adapter.image_filling(tokens)])


def _on_grid(centre: Tensor, size: tuple[int, int]) -> tuple[Tensor, tuple[int, int]]:
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
    with adapter.lock, stored_features(adapter, [list(part) for part in zip(*parts)]):
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
        prompts.append(Prompted(one.few, len(order), [view.part(order)]))
        features.append([part[order] for part in one.features])
    with vlm.adapter.lock, stored_features(vlm.adapter, [list(part) for part in zip(*features)]):
        return generated(vlm.adapter, prompts, max_new_tokens=length)
