"""The model of a VLM in graphs: one for single questions, and one per number of questions that are answered together.

Graphs belong to one budget: another one takes the place of the last. They are captured when they are first needed.
Questions are answered together by twos, fours and eights; a rest is answered by the next smaller number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from texturevlm.ask.capturable import not_captured_because
from texturevlm.ask.request import Request, has_column
from texturevlm.cuda import can_capture
from texturevlm.vlm import Adapter, FixedBudget
from texturevlm.vlm.captured_decode import CapturedDecode
from texturevlm.vlm.hook import CapturedModel

TOGETHER = (8, 4, 2)  # questions


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
        self.together: dict[int, FixedBudget] = {}
        self.decode: CapturedDecode | None = None
        self._decodes = 0  # prompts that it decodes for
        self._fixed_for: Any = None  # its budget and its hooks
        self._used: CapturedModel | None = None
        self._unfixed: str | None = None  # why the last answer was not captured

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
            return [self._unfixed, *([replay.reason] if replay is not None and replay.reason else [])]
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
        self._unfixed = self._used = None
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
        checkpoint = getattr(self.adapter.model, "generation_config", None)
        if (
            not (self.wanted and self.adapter.captured and any(not one.repaints for one in asked[0].hooks))
            or not_captured_because(options, checkpoint) is not None
        ):
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
            captured: Any = hooks[0].captured if hooks else partial(FixedBudget, masked=True)
            self.fixed, self._fixed_for = captured(self.adapter, budget), (budget, hooks)
        return self.fixed

    def _several(self, count: int) -> FixedBudget:
        budget, known = self.processor.budget, self.together.get(count)
        if known is None or known.stale or known.budget != budget:
            self.together.pop(count, None)
            # Compiling would take many seconds per number of questions, while their clients wait.
            self.together[count] = FixedBudget(self.adapter, budget, batch=count, masked=True, compiled=False)
        return self.together[count]

    def _not_captured_because(self, asked: Sequence[Request], options: Mapping[str, Any]) -> str | None:
        slots, images, hooks = self.processor.budget, {len(one.textures) for one in asked}, asked[0].hooks
        if not self.adapter.captured:
            return f"models of {type(self.adapter).__name__} are not captured"
        for hook in hooks:
            if reason := hook.not_captured_because():
                return reason
        if any(one.clip is not None for one in asked):
            return "videos are not captured"
        if images != {1}:
            return f"one image per question is captured, and these were {max(images)}"
        if len(asked) not in (1, *TOGETHER):
            return f"{len(asked)} questions are not captured together, only 2, 4 or 8"
        if len(asked) > 1 and hooks:
            return "several questions to a model that hooks change are not captured"
        if len(hooks) > 1:
            return "a model that several hooks change is not captured"
        if any(one.textures[0].pages is not None for one in asked):
            return "images that are read by pages are not captured"
        if has_column(asked, "weight"):
            return "weighted tokens are not captured"
        if (budget := asked[0].budget) > slots and not hooks:  # a smaller one leaves slots unused
            return f"a budget of {budget} is not captured, because it is above the {slots} of this VLM"
        return not_captured_because(options, getattr(self.adapter.model, "generation_config", None))
