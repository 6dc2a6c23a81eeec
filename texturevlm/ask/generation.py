"""Generate the answers to prompts whose tokens are chosen, from a captured prefill where that is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from texturevlm.ask.answer import Answer, FirstToken, Stopwatch, length_of, logprobs_of
from texturevlm.ask.captured_models import CapturedModels
from texturevlm.ask.decoding import end_ids, in_one_config, option_of
from texturevlm.ask.evaluating import evaluating
from texturevlm.ask.request import Request, has_column
from texturevlm.ask.stream import streamed
from texturevlm.placement import in_slots
from texturevlm.vlm import Adapter, FixedBudget
from texturevlm.vlm.adapter import answer_ids
from texturevlm.vlm.captured_generate import decoded_by_graph
from texturevlm.vlm.hook import CapturedModel, running


class Generator:
    """Generates with one model.

    adapter: of the model
    graphs:  the model in graphs, where it can be
    """

    def __init__(self, adapter: Adapter, graphs: CapturedModels) -> None:
        self.adapter, self.graphs = adapter, graphs

    def texts(self, asked: Sequence[Request], options: dict[str, Any]) -> list[Any]:
        """The answers; a list per prompt if the options make several sequences."""
        found = self._work(asked, options)()
        texts = [text.strip() for text in self.adapter.decode(getattr(found, "sequences", found))]
        return _per_prompt(texts, len(asked))

    def stream(self, asked: Request, options: dict[str, Any]) -> Iterator[str]:
        """The pieces of one answer, as they come."""
        criteria = options.get("stopping_criteria")
        others = {name: value for name, value in options.items() if name != "stopping_criteria"}
        return streamed(self._work([asked], others), self.adapter.tokenizer, criteria)

    def details(self, asked: Sequence[Request], options: dict[str, Any], seconds: dict[str, float]) -> list[Any]:
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
            details = text.strip(), tokens, logprobs[:length], own.placements, taken, doubt
            answers.append(Answer(*details, pages=own.pages, hooks=own.hooks, looks=own.looks))
        return _per_prompt(answers, len(asked))

    def _work(self, asked: Sequence[Request], options: dict[str, Any]) -> Callable[..., Any]:
        """Generate answers to prompts, in any thread."""
        fixed, device = self.graphs.find(asked, options), self.adapter.device
        generate = self._generate(asked, fixed)
        hooks = asked[0].hooks if fixed is None else ()  # which the graphs contain
        decode = self.graphs.decoding(asked, options) if fixed is None else None
        here = torch.cuda.current_stream(device) if device.type == "cuda" else None

        def work(**streaming: Any) -> Any:
            # Threads have a gradient mode, a device and a stream of their own.
            given = in_one_config({**options, **streaming})
            with (
                self.adapter.lock,
                torch.no_grad(),
                torch.cuda.stream(here),
                evaluating(self.adapter.model),
                running(self.adapter, hooks) as known,
            ):
                if decode is None:
                    return generate(**given)
                with decoded_by_graph(self.adapter.model, decode, known, given):
                    return generate(**given)

        return work

    def _generate(self, asked: Sequence[Request], fixed: CapturedModel | None) -> Callable[..., Any]:
        if fixed is not None:
            slots = [in_slots(one.placements[0].allocation, fixed.budget) for one in asked]
            if len(asked) == 1:
                return partial(fixed.generate, asked[0].prompt, asked[0].textures[0], slots[0])
            assert isinstance(fixed, FixedBudget)
            prompts, images = [one.prompt for one in asked], [one.textures[0] for one in asked]
            return partial(fixed.generate_each, prompts, images, slots)
        if any(one.clip is not None for one in asked):
            return partial(_generate_clips, self.adapter, asked)
        allocations = [[one.allocation for one in own.placements] for own in asked]
        more: dict[str, Any] = {}
        for name, column in (("weights", "weight"), ("pixels", "pixels")):
            if has_column(asked, column):
                more[name] = [[getattr(one, column) for one in own.placements] for own in asked]
        prompts, textures = [one.prompt for one in asked], [one.textures for one in asked]
        return partial(self.adapter.generate, prompts, textures, allocations, **more)

    def _doubts(self, found: Any, prompts: int) -> list[float | None]:
        """How likely an answer to each prompt was to begin as the one for what cannot be read, if there is one."""
        first = self.adapter.unreadable_id
        if first is None:
            return [None] * prompts
        logits = found.logits[0][:: len(found.logits[0]) // prompts]  # the beams of a prompt begin alike
        chances: list[float | None] = logits.float().softmax(-1)[:, first].tolist()
        return chances

    def _ends(self, options: dict[str, Any]) -> list[int]:
        """The ids that end an answer."""
        return end_ids(self.adapter.model, option_of(options, "eos_token_id"))


def _generate_clips(
    adapter: Adapter,
    asked: Sequence[Request],
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


def _per_prompt(answers: list[Any], prompts: int) -> list[Any]:
    """One answer per prompt, or one list where `generate` returns several sequences."""
    each = len(answers) // prompts
    return answers if each == 1 else [answers[at : at + each] for at in range(0, len(answers), each)]
