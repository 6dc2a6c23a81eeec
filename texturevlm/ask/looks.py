"""Looks that stop when the model is sure: a cheap overview, an answer, and only then, if need be, more tokens.

The overview gets a quarter of the budget, chosen as always. If the answer to it is likely to be right, that is the
answer. Else the rest of the budget goes where the model's attention and the relevance point and the overview is not
legible yet; its tokens are appended to the K/V cache at their true positions, and nothing is read twice but the end of
the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from texturevlm.allocate.value import delivered_scale
from texturevlm.ask.answer import Answer, FirstToken, Stopwatch, length_of, logprobs_of
from texturevlm.ask.attention import pointed_at
from texturevlm.ask.choose import Chosen, joined, spend
from texturevlm.ask.confidence import chance_of, features_of
from texturevlm.ask.decoding import PREPARING, end_ids, in_one_config, option_of
from texturevlm.ask.evaluating import evaluating
from texturevlm.ask.messages import VIDEO, conversation_with
from texturevlm.ask.options import Choosing
from texturevlm.ask.session import FIRST_LOOK, ImageSession
from texturevlm.ask.videos import VideoSession
from texturevlm.ops.legibility import legibility
from texturevlm.relevance import AttentionScorer, Relevance
from texturevlm.relevance.maps import normalised
from texturevlm.video import MomentEvidence, MomentTokens
from texturevlm.vlm.growing import GrowingPrompt
from texturevlm.vlm.prompts import Picture
from texturevlm.vlm.views import View, still_views

SURE = 0.8  # chance of being right from which an answer is kept


@dataclass(eq=False)
class Look:
    """What the model sees so far: the ids behind its last visual token, its tokens, and how many were read."""

    end: list[int]
    chosen: list[Chosen]
    used: int


class Looking(Protocol):
    """How one kind of session looks."""

    def overview(self, prompt: GrowingPrompt, said: Any, question: str, how: Choosing, apart: bool) -> Look:
        """Read the first tokens. said: the prompt of the caller, a text or messages"""

    def closer(self, prompt: GrowingPrompt, look: Look, question: str, how: Choosing) -> Look | None:
        """Append the rest of the budget; None if there is nothing left to see."""


class ImageLooks:
    """Further tokens continue the pictures that they belong to."""

    def __init__(self, session: ImageSession) -> None:
        self.session, self.views, self.levels = session, list[View](), ""
        self.first = 0.0  # tokens per image of the overview

    def overview(self, prompt: GrowingPrompt, said: Any, question: str, how: Choosing, apart: bool) -> Look:
        self.levels = how.levels or prompt.adapter.trained.levels
        adapter, images = prompt.adapter, self.session.images
        self.first = how.budget / len(images)
        conversation = conversation_with(said, len(images), adapter.marks, apart=apart)
        chosen = self.session.chosen(question, replace(how, looks=1))
        pictures = [Picture(image.texture, one.allocation) for image, one in zip(images, chosen)]
        self.views = [self._view(prompt, one) for one in pictures]
        ids = adapter.spell(conversation, pictures, [adapter.filling([view], 0) for view in self.views])
        last = max(index for index, one in enumerate(ids) if one in adapter.visual_ids) + 1
        prompt.read(ids[:last], self.views)
        return Look(ids[last:], chosen, sum(map(len, self.views)))

    def closer(self, prompt: GrowingPrompt, look: Look, question: str, how: Choosing) -> Look | None:
        images, rest = self.session.images, how.budget - look.used
        maps, chances = self._unseen(prompt, look, question)
        if rest < len(images) or sum(chances) <= 0:
            return None
        each = rest / len(images)
        maps = [image.for_budget(own, each, made_for=self.first) for image, own in zip(images, maps)]
        more = spend(images, maps, chances, rest, how.allocator)
        chosen = [
            Chosen(joined(one.allocation, other.allocation), other.relevance) for one, other in zip(look.chosen, more)
        ]
        for number, (image, one) in enumerate(zip(images, more)):
            view = self._view(prompt, Picture(image.texture, one.allocation))
            beside = self.views[number] if view.causal else None
            prompt.look_closer(number, view, beside=beside)
        return Look(look.end, chosen, look.used + sum(int(one.allocation.valid.sum()) for one in more))

    def _view(self, prompt: GrowingPrompt, picture: Picture) -> View:
        (view,) = still_views("ask", picture, prompt.adapter.side, levels=self.levels)
        return view

    def _unseen(self, prompt: GrowingPrompt, look: Look, question: str) -> tuple[list[Relevance], list[float]]:
        """What attention and relevance point at and the overview leaves illegible; the share of it in each image."""
        pointed = _pointed(prompt, look, self.views)
        maps, chances = [], []
        for image, one, where in zip(self.session.images, look.chosen, pointed):
            seen = image.relevance(question, budget=self.first, relevance=AttentionScorer(where))
            mass = one.relevance.mass + seen.mass
            scale = delivered_scale(one.allocation, one.relevance.grid).to(mass)
            left = mass * (1 - legibility(one.relevance.legible_scale, scale))
            chances.append(float(left.sum()))
            maps.append(replace(one.relevance, mass=normalised(left), scorer="attention"))
        return maps, chances


class VideoLooks:
    """Further moments, and further tokens of moments, follow as moments with their own times."""

    def __init__(self, session: VideoSession) -> None:
        self.session, self.views = session, list[View]()
        self.shown: list[MomentTokens] = []

    def overview(self, prompt: GrowingPrompt, said: Any, question: str, how: Choosing, apart: bool) -> Look:
        adapter = prompt.adapter
        conversation = conversation_with(said, 1, adapter.marks, apart=apart, block=VIDEO)
        groups, chosen = self._shown(prompt, question, how)
        ids = adapter.spell(conversation, [], [adapter.filling(group, group[0].fps) for group in groups])
        last = len(ids) - ids[::-1].index(adapter.wrapper_ids[1])  # behind what ends the last moment
        prompt.read(ids[:last], [view for group in groups for view in group])
        return Look(ids[last:], chosen, sum(len(view) for group in groups for view in group))

    def closer(self, prompt: GrowingPrompt, look: Look, question: str, how: Choosing) -> Look | None:
        rest = how.budget - look.used
        if rest < 1:
            return None
        pointed = _pointed(prompt, look, self.views)
        seen = {one.time: MomentEvidence(one.allocation, own) for one, own in zip(self.shown, pointed)}
        groups, chosen = self._shown(prompt, question, replace(how, budget=rest), seen)
        if not groups:
            return None
        text = "".join(prompt.adapter.filling(group, group[0].fps) for group in groups)
        ids = prompt.adapter.tokenizer(text, add_special_tokens=False)["input_ids"]
        prompt.read(ids, [view for group in groups for view in group])
        used = look.used + sum(len(view) for group in groups for view in group)
        return Look(look.end, [*look.chosen, *chosen], used)

    def _shown(
        self, prompt: GrowingPrompt, question: str, how: Choosing, seen: Mapping[float, MomentEvidence] | None = None
    ) -> tuple[list[list[View]], list[Chosen]]:
        self.shown = self.session.shown(question, how, seen)
        if not self.shown:
            return [], []
        self.views = self.session.views(self.shown, how)
        return prompt.adapter.clip_groups(self.views), [Chosen(one.allocation, one.relevance) for one in self.shown]


def _pointed(prompt: GrowingPrompt, look: Look, views: Sequence[View]) -> list[Tensor]:
    """Maps (1, h, w) of where the end of the prompt attends to, one per view; all together sum to 1."""
    attention = prompt.attention(look.end)
    slots, read = [], 0
    for view, one in zip(views, look.chosen):
        own = attention[read : read + len(view)]
        slots.append(own.new_zeros(one.allocation.budget).index_put((view.slot.to(own.device),), own))
        read += len(view)
    return pointed_at(slots, [one.allocation for one in look.chosen])


def answer_by_looks(
    session: ImageSession | VideoSession,
    said: Any,
    question: str,
    how: Choosing,
    options: dict[str, Any],
    *,
    sure: float,
    apart: bool,
    seconds: dict[str, float],
) -> Answer:
    """An answer after as many looks as it takes.

    said:    the prompt, a text or messages; apart: whether its images were given apart
    options: of `generate`, for one sequence
    sure:    chance of being right from which an answer is kept
    seconds: of the stages before
    """
    model = session.model
    options = {name: value for name, value in options.items() if name not in PREPARING}  # `how` has them
    watch = Stopwatch(model.device, wait=True)
    looking: Looking = ImageLooks(session) if isinstance(session, ImageSession) else VideoLooks(session)
    with model.adapter.lock, torch.no_grad(), evaluating(model.model):
        prompt = GrowingPrompt(model.adapter, coordinates=how.coordinates)
        few = replace(how, budget=max(_fewest(session), round(how.budget * FIRST_LOOK)))
        look = looking.overview(prompt, said, question, few, apart)
        watch.stage("choose")
        answer = _answered(prompt, look, options, watch, seconds, looks=1)
        if answer.confidence is not None and answer.confidence >= sure:
            return _as_given(session, answer)
        more = looking.closer(prompt, look, question, how)
        if more is None:
            return _as_given(session, answer)
        watch.stage("look")
        last = _answered(prompt, more, options, watch, seconds, looks=2)
        return replace(_as_given(session, last), earlier=_as_given(session, answer))


def _as_given(session: ImageSession | VideoSession, answer: Answer) -> Answer:
    """Tokens in the images as they were given, which may be turned."""
    return replace(answer, chosen=session.as_given(answer.chosen)) if isinstance(session, ImageSession) else answer


def _fewest(session: ImageSession | VideoSession) -> int:
    return len(session.images) if isinstance(session, ImageSession) else 1


def _answered(
    prompt: GrowingPrompt,
    look: Look,
    options: dict[str, Any],
    watch: Stopwatch,
    seconds: dict[str, float],
    *,
    looks: int,
) -> Answer:
    adapter = prompt.adapter
    criteria: Sequence[Any] = [*(options.get("stopping_criteria") or ()), FirstToken(watch)]
    wanted = {"output_logits": True, "return_dict_in_generate": True, "stopping_criteria": criteria}
    found = prompt.answer(look.end, **in_one_config({**options, **wanted}))
    watch.stage("decode" if looks == 1 else "decode again")
    ends = end_ids(adapter.model, option_of(options, "eos_token_id"))
    doubt = None
    if (first := adapter.unreadable_id) is not None:
        doubt = float(found.logits[0][0].float().softmax(-1)[first])
    features = features_of(found, ends, None, doubt)
    ids = found.sequences[0].tolist()
    length = length_of(ids, ends, None)
    return Answer(
        adapter.decode(found.sequences)[0].strip(),
        adapter.tokenizer.convert_ids_to_tokens(ids[:length]),
        logprobs_of(found)[0, :length].tolist(),
        look.chosen,
        {**seconds, **watch.seconds},
        doubt,
        looks,
        chance_of(features, adapter.trained.confidence),
        features,
    )
