"""Generate the answers to prompts whose tokens are chosen, from a captured prefill where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from texturevlm.ask.answer import Answer, FirstToken, Stopwatch, length_of, logprobs_of
from texturevlm.ask.capturable import not_captured_because
from texturevlm.ask.choose import Chosen, in_slots
from texturevlm.ask.decoding import end_ids, in_one_config, option_of
from texturevlm.ask.evaluating import evaluating
from texturevlm.ask.messages import Message
from texturevlm.ask.stream import streamed
from texturevlm.reduce import ReduceStep
from texturevlm.types import Texture
from texturevlm.vlm import Adapter, FixedBudget, reduced
from texturevlm.vlm.adapter import answer_ids
from texturevlm.vlm.reduction.captured import ReducedBudget, no_captured_reduction_because
from texturevlm.vlm.views import View


@dataclass(frozen=True, eq=False)
class Asked:
    """A prompt, its images and the tokens chosen in each.

    budget: that they were chosen for
    reduce: what drops or merges them in the model
    pages:  of a document, tokens by page number
    clip:   of a video, instead of textures: the views of its moments, one group per placeholder
    given:  the tokens in the images as they were given; None: they are the textures
    """

    prompt: list[Message]
    textures: list[Texture]
    chosen: list[Chosen]
    budget: int
    reduce: tuple[ReduceStep, ...] = ()
    clip: list[list[View]] | None = None
    pages: dict[int, int] = field(default_factory=dict)
    given: list[Chosen] | None = None


class Generator:
    """Generates with one model.

    adapter:   of the model
    processor: a TextureProcessor; the model is captured for its budget
    captured:  whether it is; None: on a GPU
    fixed:     the captured model, once one was needed
    """

    def __init__(self, adapter: Adapter, processor: Any, *, captured: bool | None) -> None:
        self.adapter, self.processor, self.captured = adapter, processor, captured
        self.fixed: FixedBudget | ReducedBudget | None = None
        self._unfixed: str | None = None  # why the last answer was not captured

    @property
    def reasons(self) -> list[str]:
        """Why the last answer, or a part of it, was not captured although it should have been."""
        if self._unfixed:
            return [self._unfixed]
        return [] if self.fixed is None else self.fixed.reasons

    @property
    def wanted(self) -> bool:
        """Whether capture is wanted."""
        return self.adapter.device.type == "cuda" if self.captured is None else self.captured

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fixed": None}  # graphs stay on their device

    def texts(self, asked: Sequence[Asked], options: dict[str, Any]) -> list[Any]:
        """The answers; a list per prompt if the options make several sequences."""
        found = self._work(asked, options)()
        texts = [text.strip() for text in self.adapter.decode(getattr(found, "sequences", found))]
        return _per_prompt(texts, len(asked))

    def stream(self, asked: Asked, options: dict[str, Any]) -> Iterator[str]:
        """The pieces of one answer, as they come."""
        criteria = options.get("stopping_criteria")
        others = {name: value for name, value in options.items() if name != "stopping_criteria"}
        return streamed(self._work([asked], others), self.adapter.tokenizer, criteria)

    def details(self, asked: Sequence[Asked], options: dict[str, Any], seconds: dict[str, float]) -> list[Any]:
        """The answers with their details.

        seconds: of the stages before
        """
        watch = Stopwatch(self.adapter.device, wait=True)
        criteria = [*(options.get("stopping_criteria") or ()), FirstToken(watch)]
        wanted = {"output_logits": True, "return_dict_in_generate": True, "stopping_criteria": criteria}
        found = self._work(asked, {**options, **wanted})()
        watch.stage("decode")
        stopped = option_of(options, "stop_strings") or options.get("stopping_criteria")
        ends, pad = self._ends(options), self.adapter.tokenizer.pad_token_id if stopped else None
        each, doubts = len(found.sequences) // len(asked), self._doubts(found, len(asked))
        answers = []
        for index, (text, ids, logprobs) in enumerate(
            zip(self.adapter.decode(found.sequences), found.sequences.tolist(), logprobs_of(found).tolist())
        ):
            length = length_of(ids, ends, pad)
            tokens = self.adapter.tokenizer.convert_ids_to_tokens(ids[:length])
            own, doubt, taken = asked[index // each], doubts[index // each], {**seconds, **watch.seconds}
            chosen = own.chosen if own.given is None else own.given
            details = text.strip(), tokens, logprobs[:length], chosen, taken, doubt
            answers.append(Answer(*details, pages=own.pages, reduce=own.reduce))
        return _per_prompt(answers, len(asked))

    def _work(self, asked: Sequence[Asked], options: dict[str, Any]) -> Callable[..., Any]:
        """Generate answers to prompts, in any thread."""
        fixed, device = self._fixed_budget(asked, options), self.adapter.device
        generate = self._generate(asked, fixed)
        steps = asked[0].reduce if fixed is None else ()
        here = torch.cuda.current_stream(device) if device.type == "cuda" else None

        def work(**streaming: Any) -> Any:
            # Threads have a gradient mode, a device and a stream of their own.
            run = reduced(self.adapter, steps, function="ask")
            with self.adapter.lock, torch.no_grad(), torch.cuda.stream(here), evaluating(self.adapter.model), run:
                return generate(**in_one_config({**options, **streaming}))

        return work

    def _generate(self, asked: Sequence[Asked], fixed: FixedBudget | ReducedBudget | None) -> Callable[..., Any]:
        if fixed is not None:
            (one,) = asked
            slots = in_slots(one.chosen[0].allocation, fixed.budget)
            return partial(fixed.generate, one.prompt, one.textures[0], slots)
        if any(one.clip is not None for one in asked):
            return partial(_generate_clips, self.adapter, asked)
        allocations = [[one.allocation for one in own.chosen] for own in asked]
        more: dict[str, Any] = {}
        for name in ("weights", "shares"):
            if _has(asked, name):
                more[name] = [[getattr(one, name) for one in own.chosen] for own in asked]
        prompts, textures = [one.prompt for one in asked], [one.textures for one in asked]
        return partial(self.adapter.generate, prompts, textures, allocations, **more)

    def _doubts(self, found: Any, prompts: int) -> list[float | None]:
        """How likely an answer to each prompt was to begin as the one for what cannot be read, if there is one."""
        said = self.adapter.trained.unreadable
        if said is None:
            return [None] * prompts
        first = self.adapter.tokenizer(said, add_special_tokens=False)["input_ids"][0]
        logits = found.logits[0][:: len(found.logits[0]) // prompts]  # the beams of a prompt begin alike
        chances: list[float | None] = logits.float().softmax(-1)[:, first].tolist()
        return chances

    def _ends(self, options: dict[str, Any]) -> list[int]:
        """The ids that end an answer."""
        return end_ids(self.adapter.model, option_of(options, "eos_token_id"))

    def _fixed_budget(self, asked: Sequence[Asked], options: dict[str, Any]) -> FixedBudget | ReducedBudget | None:
        """The captured path, if it is wanted and possible for these answers."""
        self._unfixed = None
        if not self.wanted:
            self.fixed = None  # of a model that was moved away from the GPU
            return None
        self._unfixed = self._not_fixed_because(asked, options)
        steps = asked[0].reduce
        wanted = (asked[0].budget if steps else self.processor.budget), steps
        with self.adapter.lock:  # two first questions in threads share one
            if self._unfixed is None and (
                self.fixed is None or self.fixed.stale or (self.fixed.budget, self.fixed.steps) != wanted
            ):
                self.fixed = None  # its memory is needed
                try:
                    slots, steps = wanted
                    self.fixed = (
                        ReducedBudget(self.adapter, slots, steps)
                        if steps
                        else FixedBudget(self.adapter, slots, masked=True)
                    )
                except ValueError as error:
                    self._unfixed = str(error)
            return None if self._unfixed else self.fixed

    def _not_fixed_because(self, asked: Sequence[Asked], options: dict[str, Any]) -> str | None:
        images, slots = sum(len(one.textures) for one in asked), self.processor.budget
        if not self.adapter.captured:
            return f"models of {type(self.adapter).__name__} are not captured"
        if any(one.clip is not None for one in asked):
            return "videos are not captured"
        if images > 1:
            return f"one image is captured, and these were {images}"
        if asked[0].textures[0].pages is not None:
            return "images that are read by pages are not captured"
        if reason := no_captured_reduction_because(asked[0].reduce):
            return reason
        if _has(asked, "weights") or _has(asked, "shares"):
            return "weighted and merged tokens are not captured"
        if asked[0].budget > slots and not asked[0].reduce:  # a smaller one leaves slots unused
            return f"a budget of {asked[0].budget} is not captured, because it is above the {slots} of this VLM"
        return not_captured_because(options, getattr(self.adapter.model, "generation_config", None))


def _generate_clips(
    adapter: Adapter,
    asked: Sequence[Asked],
    *,
    levels: str | None = None,
    coordinates: str | None = None,
    **options: Any,
) -> Any:
    """The ids of the answers to questions about videos. levels: the views were made with them"""
    clips = [one.clip for one in asked if one.clip is not None]
    if len(clips) != len(asked):
        raise ValueError("ask: questions that are answered together must all be about videos, or all about images")
    ids = [
        adapter.spell(one.prompt, [], [adapter.filling(group, group[0].fps) for group in groups])
        for one, groups in zip(asked, clips)
    ]
    views = [view for groups in clips for group in groups for view in group]
    inputs = adapter.assemble(ids, views, coordinates=coordinates)
    return answer_ids(adapter.model.generate(**inputs, **options), inputs["input_ids"].shape[1])


def _has(asked: Sequence[Asked], column: str) -> bool:
    return getattr(asked[0].chosen[0], column) is not None


def _per_prompt(answers: list[Any], prompts: int) -> list[Any]:
    """One answer per prompt, or one list where `generate` returns several sequences."""
    each = len(answers) // prompts
    return answers if each == 1 else [answers[at : at + each] for at in range(0, len(answers), each)]
