"""Looks that stop when the model is sure: a cheap overview, an answer, and only then, if need be, more tokens.

The overview gets a quarter of the budget, chosen as always. If the answer to it is likely to be right, that is the
answer. Else the rest of the budget goes where the model's attention and the relevance point and the overview is not
legible yet; its tokens are appended to the K/V cache at their true positions, and nothing is read twice but the end of
the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.ask.answer import Answer, FirstToken, Stopwatch, chance_of, features_of, length_of, logprobs_of
from texturevlm.ask.attention import FIRST_LOOK, pointed_at
from texturevlm.ask.config import AskConfig
from texturevlm.ask.decoding import PREPARING, end_ids, in_one_config, option_of
from texturevlm.ask.messages import VIDEO, conversation_with
from texturevlm.ask.session import ImageSession, VideoSession
from texturevlm.placement import Placement, place_together
from texturevlm.vlm import PromptImage, View, evaluating
from texturevlm.vlm.growing import GrowingPrompt
from texturevlm.vlm.views import still_views


@dataclass(eq=False)
class Look:
    """What the model sees so far: the ids behind its last visual token, its tokens, and how many were read."""

    end: list[int]
    placements: list[Placement]
    used: int


class ImageLooks:
    """Further tokens continue the pictures that they belong to."""

    def __init__(self, session: ImageSession) -> None:
        self.session, self.views, self.levels = session, list[View](), ""

    def overview(self, prompt: GrowingPrompt, said: Any, question: str, how: AskConfig, apart: bool) -> Look:
        """Read the first tokens. said: the prompt of the caller, a text or messages"""
        self.levels = how.levels or prompt.adapter.trained.levels
        adapter = prompt.adapter
        conversation = conversation_with(said, len(self.session.pictures), adapter.marks, apart=apart)
        placements = self.session.placements(question, replace(how, looks=1))
        images = [PromptImage(placed.picture.texture, placed.allocation) for placed in placements]
        self.views = [self._view(prompt, image) for image in images]
        ids = adapter.spell(conversation, images, [adapter.filling([view], 0) for view in self.views])
        last = max(index for index, token in enumerate(ids) if token in adapter.visual_ids) + 1
        prompt.read(ids[:last], self.views)
        return Look(ids[last:], placements, sum(map(len, self.views)))

    def closer(self, prompt: GrowingPrompt, look: Look, question: str, how: AskConfig) -> Look | None:
        """Append the rest of the budget; None if there is nothing left to see."""
        pointed = _pointed(prompt, look, self.views)
        pictures = [placed.picture for placed in look.placements]
        more = place_together(pictures, question, how.tokens, evidence=pointed, after=look.placements)
        if not more:
            return None
        for number, placed in enumerate(more):
            view = self._view(prompt, PromptImage(placed.picture.texture, placed.allocation))
            beside = self.views[number] if view.causal else None
            prompt.look_closer(number, view, beside=beside)
        found = [placed.after(seen) for seen, placed in zip(look.placements, more)]
        return Look(look.end, found, look.used + sum(placed.tokens for placed in more))

    def _view(self, prompt: GrowingPrompt, image: PromptImage) -> View:
        (view,) = still_views("ask", image, prompt.adapter.side, levels=self.levels)
        return view


class VideoLooks:
    """Further moments, and further tokens of moments, follow as moments with their own times."""

    def __init__(self, session: VideoSession) -> None:
        self.session, self.views = session, list[View]()

    def overview(self, prompt: GrowingPrompt, said: Any, question: str, how: AskConfig, apart: bool) -> Look:
        adapter = prompt.adapter
        conversation = conversation_with(said, 1, adapter.marks, apart=apart, block=VIDEO)
        groups, placements = self._placed(prompt, question, how)
        ids = adapter.spell(conversation, [], [adapter.filling(group, group[0].fps) for group in groups])
        last = len(ids) - ids[::-1].index(adapter.wrapper_ids[1])  # behind what ends the last moment
        prompt.read(ids[:last], [view for group in groups for view in group])
        return Look(ids[last:], placements, sum(len(view) for group in groups for view in group))

    def closer(self, prompt: GrowingPrompt, look: Look, question: str, how: AskConfig) -> Look | None:
        rest = how.tokens.budget - look.used
        if rest < 1:
            return None
        seen = dict(zip([moment.time for moment in self.session.shown], _pointed(prompt, look, self.views)))
        groups, placements = self._placed(prompt, question, _with_budget(how, rest), seen)
        if not groups:
            return None
        text = "".join(prompt.adapter.filling(group, group[0].fps) for group in groups)
        ids = prompt.adapter.tokenizer(text, add_special_tokens=False)["input_ids"]
        prompt.read(ids, [view for group in groups for view in group])
        used = look.used + sum(len(view) for group in groups for view in group)
        return Look(look.end, [*look.placements, *placements], used)

    def _placed(
        self, prompt: GrowingPrompt, question: str, how: AskConfig, attention: Mapping[float, Tensor] | None = None
    ) -> tuple[list[list[View]], list[Placement]]:
        placements = self.session.placements(question, how, attention)
        self.views = self.session.views(how)
        return prompt.adapter.clip_groups(self.views) if placements else [], placements


def _with_budget(how: AskConfig, budget: int) -> AskConfig:
    return replace(how, tokens=replace(how.tokens, budget=budget))


def _pointed(prompt: GrowingPrompt, look: Look, views: Sequence[View]) -> list[Tensor]:
    """Maps (1, h, w) of where the end of the prompt attends to, one per view; all together sum to 1."""
    attention = prompt.attention(look.end)
    slots, read, allocations = [], 0, [placement.allocation for placement in look.placements]
    for view, allocation in zip(views, allocations):
        own = attention[read : read + len(view)]
        slots.append(own.new_zeros(allocation.budget).index_put((view.slot.to(own.device),), own))
        read += len(view)
    return pointed_at(slots, allocations)


def answer_by_looks(
    session: ImageSession | VideoSession,
    said: Any,
    question: str,
    how: AskConfig,
    options: dict[str, Any],
    *,
    apart: bool,
    seconds: dict[str, float],
) -> Answer:
    """An answer after as many looks as it takes.

    said:    the prompt, a text or messages; apart: whether its images were given apart
    options: of `generate`, for one sequence
    seconds: of the stages before
    """
    model = session.model
    options = {name: value for name, value in options.items() if name not in PREPARING}  # `how` has them
    watch = Stopwatch(model.device, wait=True)
    looking = ImageLooks(session) if isinstance(session, ImageSession) else VideoLooks(session)
    fewest = len(session.pictures) if isinstance(session, ImageSession) else 1
    with model.adapter.lock, torch.no_grad(), evaluating(model.model):
        prompt = GrowingPrompt(model.adapter, coordinates=how.coordinates)
        few = _with_budget(how, max(fewest, round(how.tokens.budget * FIRST_LOOK)))
        look = looking.overview(prompt, said, question, few, apart)
        watch.stage("choose")
        answer = _answered(prompt, look, options, watch, seconds, looks=1)
        sure = answer.confidence is not None and answer.confidence >= how.sure
        more = None if sure else looking.closer(prompt, look, question, how)
        if more is not None:
            watch.stage("look")
            answer = replace(_answered(prompt, more, options, watch, seconds, looks=2), earlier=answer)
    session.kept(question, how, answer.placements)
    return answer


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
    tokens, logprobs = adapter.tokenizer.convert_ids_to_tokens(ids[:length]), logprobs_of(found)[0, :length].tolist()
    said, taken = adapter.decode(found.sequences)[0].strip(), {**seconds, **watch.seconds}
    sure = chance_of(features, adapter.trained.confidence)
    return Answer(said, tokens, logprobs, look.placements, taken, doubt, looks, sure, features)
