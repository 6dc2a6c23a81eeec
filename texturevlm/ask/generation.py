"""Generate the answers to prompts whose tokens are chosen, from a captured prefill where that is possible.

A VLM has one captured model for single questions, and one per number of questions that are answered together: by twos,
fours and eights; a rest is answered by the next smaller number. Graphs belong to one budget: another one takes the
place of the last. They are captured when they are first needed.

An answer may come in pieces. `generate` blocks until it is done, so it runs in a thread; an error there is raised in
the caller, and if the caller stops reading, generation stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from threading import Event, Thread
from typing import Any

import torch

from texturevlm.ask.answer import Answer, FirstToken, Request, Stopwatch, has_column, length_of, logprobs_of
from texturevlm.ask.decoding import end_ids, in_one_config, not_captured_because, option_of
from texturevlm.cuda.graph import can_capture
from texturevlm.placement import in_slots
from texturevlm.vlm import Adapter, CapturedDecode, CapturedPrefill, evaluating
from texturevlm.vlm.adapter import answer_ids
from texturevlm.vlm.captured_generate import decoded_by_graph
from texturevlm.vlm.hook import CapturedModel, running

TOGETHER = (8, 4, 2)  # questions
BATCH = TOGETHER[0]  # questions that are answered together at most


class CapturedModels:
    """Finds the captured model for questions.

    adapter:   of the model
    processor: a TextureProcessor; the model is captured for its budget
    captured:  whether it is; None: on a GPU
    fixed:     the captured model for one question, once one was needed
    together:  those for several, by their number
    decode:    what decodes the last answers whose prompts the model read itself, if it is captured
    """

    def __init__(self, adapter: Adapter, processor: Any, *, captured: bool | None) -> None:
        self.adapter, self.processor, self.captured = adapter, processor, captured
        self.fixed: CapturedModel | None = None
        self.together: dict[int, CapturedPrefill] = {}
        self.decode: CapturedDecode | None = None
        self._decodes = 0  # prompts that it decodes for
        self._fixed_for: Any = None  # its budget and its hooks
        self._used: CapturedModel | None = None
        self._unfixed: str | None = None  # why the prompt of the last answer was not read from a graph
        self._undecoded: str | None = None  # why its tokens did not come from one although a hook acts in the model

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "fixed": None, "together": {}, "decode": None, "_used": None}  # graphs stay there

    @property
    def wanted(self) -> bool:
        """Whether capture is wanted."""
        return can_capture(self.adapter.device) if self.captured is None else self.captured

    @property
    def reasons(self) -> list[str]:
        """Why the last answer, or a part of it, was not captured although it should have been."""
        if self._unfixed:
            replay = None if self.decode is None else self.decode.replay
            decoding = self._undecoded or (None if replay is None else replay.reason)
            return [self._unfixed, *([] if decoding is None else [decoding])]
        return [] if self._used is None else self._used.reasons

    def release(self) -> None:
        """Free the graphs and their memory."""
        self.fixed = self._used = self.decode = None
        self.together.clear()

    def batches(self, count: int, most: int) -> list[int]:
        """How so many questions are best divided, if at most `most` may be answered together."""
        sizes = [size for size in (*TOGETHER, 1) if size <= most] if self.wanted else [most]
        found = []
        while count:
            found.append(next((size for size in sizes if size <= count), count))
            count -= found[-1]
        return found

    def find(self, asked: Sequence[Request], options: Mapping[str, Any]) -> CapturedModel | None:
        """The captured model, if it is wanted and possible for these answers."""
        self._unfixed = self._undecoded = self._used = None
        if not self.wanted:
            self.release()  # a model that was moved away from the GPU
            return None
        self._unfixed = self._not_captured_because(asked, options)
        if self._unfixed is not None:
            return None
        with self.adapter.lock:  # two first questions in threads share one
            try:
                found = self._one(asked) if len(asked) == 1 else self._several(len(asked))
            except ValueError as error:
                self._unfixed, found = str(error), None
            self._used = found
        return found

    def decoding(self, asked: Sequence[Request], options: Mapping[str, Any]) -> CapturedDecode | None:
        """What decodes answers whose prompts the model reads itself, if it is wanted and possible.

        Only where a hook acts in the model: other prompts come in too many lengths.
        """
        possible = self.wanted and self.adapter.captured and any(not hook.repaints for hook in asked[0].hooks)
        if possible:
            self._undecoded = not_captured_because(options, getattr(self.adapter.model, "generation_config", None))
        if not possible or self._undecoded is not None:
            self.decode = None
            return None
        if self.decode is None or self.decode.stale or self._decodes != len(asked):
            self.decode, self._decodes = CapturedDecode(self.adapter), len(asked)
        return self.decode

    def _one(self, asked: Sequence[Request]) -> CapturedModel:
        hooks = asked[0].hooks
        budget = asked[0].budget if hooks else self.processor.budget
        if self.fixed is None or self.fixed.stale or self._fixed_for != (budget, hooks):
            self.fixed = None  # its memory is needed
            captured: Any = hooks[0].captured if hooks else partial(CapturedPrefill, masked=True)
            self.fixed, self._fixed_for = captured(self.adapter, budget), (budget, hooks)
        return self.fixed

    def _several(self, count: int) -> CapturedPrefill:
        budget, known = self.processor.budget, self.together.get(count)
        if known is None or known.stale or known.budget != budget:
            self.together.pop(count, None)
            # Compiling would take many seconds per number of questions, while their clients wait.
            self.together[count] = CapturedPrefill(self.adapter, budget, batch=count, masked=True, compiled=False)
        return self.together[count]

    def _not_captured_because(self, asked: Sequence[Request], options: Mapping[str, Any]) -> str | None:
        slots, images, hooks = self.processor.budget, {len(request.textures) for request in asked}, asked[0].hooks
        if not self.adapter.captured:
            return f"models of {type(self.adapter).__name__} are not captured"
        for hook in hooks:
            if reason := hook.not_captured_because():
                return reason
        if any(request.clip is not None for request in asked):
            return "videos are not captured"
        if images != {1}:
            return f"one image per question is captured, and these were {max(images)}"
        if len(asked) not in (1, *TOGETHER):
            return f"{len(asked)} questions are not captured together, only 2, 4 or 8"
        if len(asked) > 1 and hooks:
            return "several questions to a model that hooks change are not captured"
        if len(hooks) > 1:
            return "a model that several hooks change is not captured"
        if any(request.textures[0].pages is not None for request in asked):
            return "images that are read by pages are not captured"
        if has_column(asked, "weight"):
            return "weighted tokens are not captured"
        if (budget := asked[0].budget) > slots and not hooks:  # a smaller one leaves slots unused
            return f"a budget of {budget} is not captured, because it is above the {slots} of this VLM"
        return not_captured_because(options, getattr(self.adapter.model, "generation_config", None))


def streamed(generate: Callable[..., Any], tokenizer: Any, criteria: Sequence[Any] | None = None) -> Iterator[str]:
    """Yield the pieces of an answer while a thread generates it.

    generate: takes `streamer` and `stopping_criteria` as transformers' does, and one prompt
    criteria: the caller's own stopping criteria
    """
    from transformers import StoppingCriteriaList, TextIteratorStreamer

    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    broken_off = Event()
    failed: list[BaseException] = []
    stops = StoppingCriteriaList([*(criteria or ()), _When(broken_off)])

    def work() -> None:
        try:
            generate(streamer=streamer, stopping_criteria=stops)
        except BaseException as error:
            failed.append(error)
            streamer.text_queue.put(streamer.stop_signal)

    thread = Thread(target=work, name="texturevlm-answer", daemon=True)
    thread.start()
    try:
        for piece in streamer:
            if piece:
                yield piece
    finally:
        broken_off.set()
        thread.join()
    if failed:
        raise failed[0]


class _When:
    """A stopping criterion: stop when the event is set."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        import torch

        return torch.full((input_ids.shape[0],), self.event.is_set(), dtype=torch.bool, device=input_ids.device)


class Generator:
    """Generates with one model.

    adapter: of the model
    graphs:  the model in graphs, where it can be
    """

    def __init__(self, adapter: Adapter, graphs: CapturedModels) -> None:
        self.adapter, self.graphs = adapter, graphs

    def answers(self, asked: Sequence[Request], options: dict[str, Any], seconds: dict[str, float] | None) -> list[Any]:
        """The answers to any number of prompts, a list per prompt if the options make several sequences.

        seconds: of the stages before, for answers with their details; None: texts
        """
        left, found = iter(asked), list[Any]()
        for count in self.graphs.batches(len(asked), BATCH):
            batch = list(islice(left, count))
            found += self._texts(batch, options) if seconds is None else self._details(batch, options, seconds)
        return found

    def _texts(self, asked: Sequence[Request], options: dict[str, Any]) -> list[Any]:
        """The answers; a list per prompt if the options make several sequences."""
        found = self._work(asked, options)()
        texts = [text.strip() for text in self.adapter.decode(getattr(found, "sequences", found))]
        return _per_prompt(texts, len(asked))

    def stream(self, asked: Request, options: dict[str, Any]) -> Iterator[str]:
        """The pieces of one answer, as they come."""
        criteria = options.get("stopping_criteria")
        others = {name: value for name, value in options.items() if name != "stopping_criteria"}
        return streamed(self._work([asked], others), self.adapter.tokenizer, criteria)

    def _details(self, asked: Sequence[Request], options: dict[str, Any], seconds: dict[str, float]) -> list[Any]:
        """The answers with their details.

        seconds: of the stages before
        """
        watch = Stopwatch(self.adapter.device, wait=True)
        criteria = [*(options.get("stopping_criteria") or ()), FirstToken(watch)]
        wanted = {"output_logits": True, "return_dict_in_generate": True, "stopping_criteria": criteria}
        found = self._work(asked, {**options, **wanted})()
        watch.stage("decode")
        stopped = option_of(options, "stop_strings") or options.get("stopping_criteria")
        ends = end_ids(self.adapter.model, option_of(options, "eos_token_id"))
        pad = self.adapter.tokenizer.pad_token_id if stopped else None
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
            slots = [in_slots(request.placements[0].allocation, fixed.budget) for request in asked]
            if len(asked) == 1:
                return partial(fixed.generate, asked[0].prompt, asked[0].textures[0], slots[0])
            several: Any = fixed  # for more than one prompt it is a CapturedPrefill
            prompts, images = [request.prompt for request in asked], [request.textures[0] for request in asked]
            return partial(several.generate_each, prompts, images, slots)
        if any(request.clip is not None for request in asked):
            return partial(_generate_clips, self.adapter, asked)
        allocations = [[placed.allocation for placed in own.placements] for own in asked]
        more: dict[str, Any] = {}
        for name, column in (("weights", "weight"), ("pixels", "pixels")):
            if has_column(asked, column):
                more[name] = [[getattr(placed, column) for placed in own.placements] for own in asked]
        prompts, textures = [request.prompt for request in asked], [request.textures for request in asked]
        return partial(self.adapter.generate, prompts, textures, allocations, **more)

    def _doubts(self, found: Any, prompts: int) -> list[float | None]:
        """How likely an answer to each prompt was to begin as the one for what cannot be read, if there is one."""
        first = self.adapter.unreadable_id
        if first is None:
            return [None] * prompts
        logits = found.logits[0][:: len(found.logits[0]) // prompts]  # the beams of a prompt begin alike
        chances: list[float | None] = logits.float().softmax(-1)[:, first].tolist()
        return chances


def _generate_clips(
    adapter: Adapter,
    asked: Sequence[Request],
    *,
    levels: str | None = None,
    coordinates: str | None = None,
    **options: Any,
) -> Any:
    """The ids of the answers to questions about videos. levels: the views were made with them"""
    clips = [request.clip for request in asked if request.clip is not None]
    if len(clips) != len(asked):
        raise ValueError("ask: questions that are answered together must all be about videos, or all about images")
    ids = [
        adapter.spell(request.prompt, [], [adapter.filling(group, group[0].fps) for group in groups])
        for request, groups in zip(asked, clips)
    ]
    views = [view for groups in clips for group in groups for view in group]
    inputs = adapter.assemble(ids, views, coordinates=coordinates)
    return answer_ids(adapter.model.generate(**inputs, **options), inputs["input_ids"].shape[1])


def _per_prompt(answers: list[Any], prompts: int) -> list[Any]:
    """One answer per prompt, or one list where `generate` returns several sequences."""
    each = len(answers) // prompts
    return answers if each == 1 else [answers[at : at + each] for at in range(0, len(answers), each)]
