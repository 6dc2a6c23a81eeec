"""What a model has seen of a stream, alive in its cache: changed tokens replace old ones, questions come at any time.

A frame's tokens are compared with what the model was last shown at their place. Those that changed are encoded, and
take the place of older ones of the same moment, or begin a new moment. They go through the language model together with
the first tokens of the moment (`refresh`), against everything else as it is in the cache. When the cache is full, the
moment of least worth leaves: what is old and what no question looked at. The text before the video and the first moment
stay.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from texturevlm.ask.attention import pointed_at
from texturevlm.ask.decoding import end_ids
from texturevlm.check import check_count
from texturevlm.types import Allocation
from texturevlm.video.change import CHANGED, block_means
from texturevlm.video.config import StreamConfig
from texturevlm.video.layout import MomentSlots, TokenEncoder, TokenPlace, Wording, lay_out, token_places
from texturevlm.video.stream import Keyframe, Step
from texturevlm.vlm import evaluating
from texturevlm.vlm.growing import TokenMemory, check_watchable

if TYPE_CHECKING:
    from texturevlm.ask.model import VLM

SCRATCH = 768  # slots for the text before the video, a question and its answer
RELEVANCE_KEPT = 0.7  # share of a moment's relevance that stays when another question looks elsewhere
SAME = 1e-3  # pixels: footprints that differ by less are one


class LiveAnswer(NamedTuple):
    """An answer.

    logprobs:  of its tokens
    logits:    (V,), of the first of them
    attention: (C,), of the question, by the slots of the memory
    """

    text: str
    logprobs: list[float]
    logits: Tensor
    attention: Tensor


class Conversation:
    """The memory of a stream.

    model:  a VLM of a Qwen family
    size:   (height, width) of the frames
    config: of the stream: its budget, limit, refresh and interval count
    """

    def __init__(self, model: VLM, size: tuple[int, int], config: StreamConfig) -> None:
        self.model, self.adapter, self.config = model, model.adapter, config
        check_watchable(model.adapter)
        self.wording = Wording(model.adapter)
        check_count("VideoStream", "limit", config.limit, 2 * (config.tokens.budget + self.wording.longest))
        self.extent = float(max(model.adapter.grid_for(size)))
        self.memory = TokenMemory(model.adapter, config.limit + SCRATCH)
        self.encode = TokenEncoder(model.adapter, captured=model.graphs.wanted)
        self.moments: list[MomentSlots] = []
        self.head_ids, _ = self.wording.of_question("")
        self.head = self.memory.take(len(self.head_ids))
        self.memory.write_text(self.head, self.head_ids)
        self.shown: Tensor | None = None  # (K, 3, h, w): block means of what was last shown in each slot of the stream
        self.allocation: Allocation | None = None  # of that, on the CPU
        self.stepped: Allocation | None = None  # the same object as the stream has it
        self.places: dict[int, TokenPlace] = {}  # of that, by slot, in reading order
        self.failed = False  # whether tokens may be in the memory that were not computed
        self.follow = len(self.head), float(len(self.head))  # number and position of what comes next
        self.lost = False  # whether footprints of the current moment are no longer among those of the stream
        self.computed = 0  # tokens that the last frame took through the language model
        self.evicted = 0  # moments in all
        self.frames = 0  # that showed something new

    @property
    def tokens(self) -> int:
        """Tokens of the video that are kept, with the text between them."""
        return sum(map(len, self.moments))

    @torch.no_grad()
    def see(self, step: Step) -> None:
        """Take in a frame."""
        self.computed = 0
        different, means = self._different(step)
        if math.isinf(self.config.interval) and (self.lost or step.reuse.keyframe is Keyframe.CUT):
            self._forget()
            different = step.allocation.valid[0]
        changed = [slot for slot, differs in enumerate(different.tolist()) if differs]
        if not changed:
            return
        with self.adapter.lock, evaluating(self.model.model):
            try:
                self._take_in(step, changed)
            except BaseException:
                self._drop_unfinished()
                raise
        assert self.shown is not None
        self.shown = means.where(different[:, None, None, None], self.shown)

    def _take_in(self, step: Step, changed: list[int]) -> None:
        new = not self.moments or self.lost or step.reuse.keyframe is Keyframe.CUT
        new = new or step.time - self.moments[-1].time >= self.config.interval
        before = [] if new else self.moments[-1].visual()
        self._make_room(changed, step.time, new=new)
        if new:
            self.moments.append(self._opened(step.time))
            self.moments[-1].number, self.moments[-1].start = self.follow
            self.lost = False
        moment = self.moments[-1]
        added = [slot for slot in changed if slot not in moment.tokens]
        moment.tokens |= zip(added, self.memory.take(len(added)))
        stream_slot = {own: slot for slot, own in moment.tokens.items()}
        again = before if self.config.refresh == "full" else before[: int(self.config.refresh)]  # encoded along
        encoded = {*changed, *(stream_slot[slot] for slot in again)}
        slots = [slot for slot in self.places if slot in encoded]
        own = [moment.tokens[slot] for slot in slots]
        self.memory.write(own, self.encode(step.patches.pixels[0], slots))
        if added:
            moment.places |= {moment.tokens[slot]: self.places[slot] for slot in added}
            self._place(len(self.moments) - 1)
        run = {*own, *moment.closing, *(moment.opening if new else ())}
        if self.config.refresh == "full" or self.frames == 0 or self.failed:
            run = set(self._all())
        self.computed = len(run)
        self.memory.run(sorted(run))
        self.failed = False
        self.frames += 1

    def _opened(self, time: float) -> MomentSlots:
        """A new moment without tokens."""
        opening, closing = self.wording.of_moment(time)
        moment = MomentSlots(time, self.memory.take(len(opening)), self.memory.take(len(closing)))
        self.memory.write_text(moment.opening, opening)
        self.memory.write_text(moment.closing, closing)
        return moment

    def _place(self, first: int) -> None:
        """Give tokens their order and positions, from a moment on; from the head on if that is the first."""
        if first == 0:
            slots, order, position, number, after = lay_out(self.head, self.moments, self.extent)
        else:
            begin, moments = self.moments[first], self.moments[first:]
            slots, order, position, number, after = lay_out(
                [], moments, self.extent, number=begin.number, start=begin.start
            )
        self.memory.place(slots, order, position)
        self.follow = number, after

    def _make_room(self, changed: list[int], now: float, *, new: bool) -> None:
        """Take out the moments of least worth until the tokens that changed fit. new: whether they begin a moment"""
        kept = () if new else self.moments[-1].tokens
        needed = sum(slot not in kept for slot in changed) + (self.wording.longest if new else 0)
        evicted, left = self.evicted, self.config.limit - self.tokens
        while left < needed:
            others = self.moments[1:] if new else self.moments[1:-1]
            least = min(others, key=lambda moment: moment.worth(now))
            self.moments.remove(least)
            self.memory.give_back(least.slots())
            self.evicted += 1
            left += len(least)
        if self.evicted > evicted:
            self._place(0)
            self.memory.turn()

    def _forget(self) -> None:
        """Take all moments out of the cache."""
        for moment in self.moments:
            self.memory.give_back(moment.slots())
        self.moments, self.lost = [], False
        self.follow = len(self.head), float(len(self.head))

    def _drop_unfinished(self) -> None:
        """After a failure: forget tokens that were begun and not placed, so that the next frame can try again."""
        self.failed = True
        for moment in self.moments[-1:]:
            begun = [slot for slot, own in moment.tokens.items() if own not in moment.places]
            self.memory.give_back([moment.tokens.pop(slot) for slot in begun])
            if not moment.places:
                self.moments.pop()
                self.memory.give_back([*moment.opening, *moment.closing])

    def _different(self, step: Step) -> tuple[Tensor, Tensor]:
        """(K,): which tokens show something else than what the model was last shown there; and all block means."""
        pixels, used = step.patches.pixels[0], step.allocation.valid[0]
        means = block_means(pixels)
        if step.allocation is not self.stepped:
            self._chosen_again(step.allocation, pixels.device)
        if self.shown is None:
            self.shown = torch.full_like(means, torch.inf)
        return ((means - self.shown).abs().amax((1, 2, 3)) > CHANGED) & used, means  # true of what is infinite

    def _chosen_again(self, chosen: Allocation, device: torch.device) -> None:
        """The stream has chosen its tokens: which of them were shown, and where they stand."""
        allocation = chosen.to("cpu")
        if self.allocation is not None and self.shown is not None:
            origin = _same_footprint(self.allocation, allocation)
            self._follow_slots(origin.where(allocation.valid[0], -1).tolist())
            origin = origin.to(device)
            self.shown = self.shown[origin.clamp(min=0)].where((origin >= 0)[:, None, None, None], torch.inf)
        self.stepped, self.allocation = chosen, allocation
        self.places = token_places(self.adapter, allocation)
        self.encode.hold(allocation, device)

    def _follow_slots(self, origin: list[int]) -> None:
        """The stream chose its tokens again: find those of the current moment. origin: by slot, the one before"""
        if not self.moments or self.lost:
            return
        moment = self.moments[-1]
        found = {slot: moment.tokens[before] for slot, before in enumerate(origin) if before in moment.tokens}
        self.lost = len(found) < len(moment.tokens)
        moment.tokens = moment.tokens if self.lost else found

    def ask(self, question: str, *, max_new_tokens: int) -> LiveAnswer:
        """Answer by the most probable tokens; the memory is as before afterwards."""
        check_count("ask", "max_new_tokens", max_new_tokens, 1)
        if not self.moments:
            raise ValueError("ask: question must come after the first frame, got one before it")
        head, tail = self._fitting("ask", question, max_new_tokens)
        with self.adapter.lock, torch.no_grad(), evaluating(self.model.model):
            self._begin_with(head)
            slots = self.memory.take(len(tail) + max_new_tokens)
            try:
                return self._answer(tail, slots)
            finally:
                self.memory.give_back(slots)

    def _fitting(self, function: str, question: str, more: int) -> tuple[list[int], list[int]]:
        """The ids before and behind the video, if they and `more` fit into their slots."""
        head, tail = self.wording.of_question(question)
        if len(head) + len(tail) + more > SCRATCH:
            wanted = f"at most {SCRATCH} tokens with its prompt and its answer"
            raise ValueError(f"{function}: question must take {wanted}, got {len(head) + len(tail)} and {more}")
        return head, tail

    def _answer(self, tail: list[int], slots: list[int]) -> LiveAnswer:
        number, start = self.follow
        order = range(number, number + len(slots))
        self.memory.place(slots, order, (torch.arange(len(slots)) + start).expand(3, -1))
        asking = slots[: len(tail)]
        self.memory.write_text(asking, tail)
        first = logits = self.memory.ask(asking)
        attention = self.memory.attention.clone()
        ends, ids, logprobs = end_ids(self.model.model), list[int](), list[float]()
        for slot in slots[len(tail) :]:
            best = logits.float().log_softmax(-1).max(-1)
            ids.append(int(best.indices))
            logprobs.append(float(best.values))
            if ids[-1] in ends or slot == slots[-1]:
                break
            self.memory.write_text([slot], ids[-1:])
            logits = self.memory.ask([slot])
        self._pay(attention)
        text = self.adapter.decode(torch.tensor([ids]))[0].strip()
        return LiveAnswer(text, logprobs, first, attention)

    def attended(self, attention: Tensor, size: tuple[int, int]) -> Tensor:
        """(1, h, w): where a question looked, in the frame that is held: the tokens last shown at each place.

        attention: of a `LiveAnswer`; size: (height, width) of the frames
        """
        newest: dict[tuple[float, ...], float] = {}
        looked = attention.tolist()
        for moment in self.moments:
            newest |= {place.box: looked[slot] for slot, place in moment.places.items()}
        boxes = torch.tensor([list(newest)])
        allocation = Allocation.of_boxes(boxes, size, self.adapter.side)
        (found,) = pointed_at([torch.tensor(list(newest.values()))], [allocation])
        return found

    def expect(self, question: str) -> None:
        """Prepare for a question, in a model whose prompts begin with it, so that frames are read with it in mind."""
        head, _ = self._fitting("watch", question, 0)
        with self.adapter.lock, torch.no_grad(), evaluating(self.model.model):
            self._begin_with(head)

    def _begin_with(self, head: list[int]) -> None:
        """The text before the video; if it is another one, or if a frame has failed, all is computed anew."""
        if head != self.head_ids:
            self.memory.give_back(self.head)
            self.head_ids, self.head = head, self.memory.take(len(head))
            self.memory.write_text(self.head, head)
            self._place(0)
            self.failed = True
        if self.failed and self.moments:
            self.memory.run(self._all())
            self.failed = False

    def _all(self) -> list[int]:
        return [*self.head, *(slot for moment in self.moments for slot in moment.slots())]

    def _pay(self, attention: Tensor) -> None:
        """Remember which moments a question looked at."""
        counts = [len(moment.places) for moment in self.moments]
        slots = np.fromiter(chain.from_iterable(moment.places for moment in self.moments), np.int64, sum(counts))
        firsts = np.cumsum([0, *counts[:-1]])
        each = np.add.reduceat(attention.cpu().numpy()[slots], firsts).tolist()
        total = max(sum(each), 1e-30)
        for moment, own in zip(self.moments, each):
            moment.relevance = max(RELEVANCE_KEPT * moment.relevance, own / total)


def _same_footprint(before: Allocation, after: Allocation) -> Tensor:
    """(K,): the slot in `before` with the same footprint, −1 if there is none."""
    columns = [torch.cat([choice.centre[0], choice.ddx[0], choice.ddy[0]], -1) for choice in (after, before)]
    away = (columns[0][:, None] - columns[1]).abs().amax(-1)
    nearest = away.where(before.valid[0], torch.inf).min(1)
    return nearest.indices.where(nearest.values < SAME, -1)
