"""What tasks share that learn from a frozen model's answers: the model, its questions, their prompts, its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from texturevlm.ask import VLM, load_vlm
from texturevlm.placement import choose_tokens
from texturevlm.types import Texture
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.prompted import Prompted, chosen_prompt, generated

HELD = 4  # one image in so many is evaluated on
TOGETHER = 32  # questions that are answered together


@dataclass(frozen=True)
class AskedSettings:
    """What tasks share that learn from a model's answers to the questions of one data set."""

    data: Path  # a data set with a train split
    model: str = "reader"
    budget: int = 96
    relevance: str = "scout"
    samples: int = 256  # questions
    length: int = 8  # tokens of an answer
    batch: int = 8  # questions of a step
    seed: int = 0

    def prompt(self, vlm: VLM, sample: Sample) -> Prompted:
        """A question with the tokens that are chosen for it."""
        return asked_prompt(vlm, sample.image, sample.question, budget=self.budget, relevance=self.relevance)


def split_questions(function: str, folder: Path, limit: int) -> tuple[list[Sample], list[Sample]]:
    """Questions of a train split to learn from, and those about other images, which a task is evaluated on.

    limit: how many of both; ValueError in the name of `function` if they are about too few images
    """
    samples = load_data(folder, split="train", limit=limit).samples
    numbers = {image: number for number, image in enumerate(dict.fromkeys(sample.image for sample in samples))}
    if len(numbers) < HELD:
        raise ValueError(f"{function}: data must have questions about {HELD} images, got {len(numbers)}")
    held = [numbers[sample.image] % HELD == HELD - 1 for sample in samples]
    learned, judged = ([one for one, other in zip(samples, held) if other == wanted] for wanted in (False, True))
    return learned, judged


def frozen_model(name: str, budget: int, device: str) -> VLM:
    """A model in float32 that learns nothing."""
    vlm = load_vlm(name, budget=budget, device=device, captured=False)
    vlm.model.float().eval().requires_grad_(False)
    return vlm


@torch.no_grad()
def asked_prompt(vlm: VLM, image: Path, question: str, **how: Any) -> Prompted:
    """A question about an image with the tokens that are chosen for it. how: of `choose_tokens`"""
    texture = Texture.open(image, device=vlm.device).mipmapped()
    allocation = choose_tokens(texture, question, patch=vlm.adapter.side, **how)
    return chosen_prompt(vlm.adapter, question, [texture], [allocation])


def answer_scores(vlm: VLM, prompts: Sequence[Prompted], samples: Sequence[Sample], length: int) -> list[float]:
    """ANLS of the model's answers to prompts about samples. length: tokens of an answer at most"""
    said: list[str] = []
    for first in range(0, len(prompts), TOGETHER):
        said += generated(vlm.adapter, prompts[first : first + TOGETHER], max_new_tokens=length)
    return [anls(text, sample.answers) for text, sample in zip(said, samples)]
