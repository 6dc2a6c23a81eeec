"""Ask a model every question under every condition, in batches, and score what it says.

Questions come in blocks of consecutive ones, so that a page is decoded, read and cut once; within a block each
condition is one batch. Answers are written as they come: a stopped run resumes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from texturevlm.progress import Progress
from texturevlm.vlm import Adapter, CapturedDecode, ModelHook, own_grid
from texturevlm.vlm.hook import budgeted, hooks_of
from texturevlm_lab.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm_lab.evaluate.answers import Metric
from texturevlm_lab.evaluate.asked_page import AskedPage
from texturevlm_lab.evaluate.conditions import BLANK, FULL, ORACLE, OWN, PAGE, QUESTION, TEXT, Condition
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.own_input import has_own_input
from texturevlm_lab.evaluate.page_cache import PageCache, costed
from texturevlm_lab.evaluate.prompted import Prompted, chosen_prompt, generated, log_likelihoods, own_prompt
from texturevlm_lab.journal import append

AT_ONCE = 16
TIMED = 5  # questions of each condition whose first token is timed, one by one
NEW_TOKENS = 64
SUFFIX = "Answer the question using a single word or phrase."
CONTEXT_ROOM = 256  # tokens of the context that are kept for the question and the answer
OPENERS = 8  # that decode and cut pages ahead
OWN_INPUTS = (FULL, OWN, PAGE, BLANK)  # conditions for the model's own processor, if it can be asked for few tokens
TOGETHER = ("funsd", "sroie", "coco")  # data sets where all boxes of a question are one answer


def unreadable_text(adapter: Adapter) -> str:
    """What a model answers if it cannot read, as its tokenizer spells it; empty: it has no such answer."""
    said = adapter.trained.unreadable
    ids = None if said is None else adapter.tokenizer(said, add_special_tokens=False)["input_ids"]
    return "" if ids is None else adapter.decode(torch.tensor([ids]))[0].strip()


@dataclass(eq=False)
class Asking:
    """A model that is asked, and how.

    metric:     of the data set
    words:      cache of the pages' words
    suffix:     follows every question; tokens are chosen by the question without it
    together:   whether all boxes of a question are one answer; otherwise the smallest is enough
    turn:       as for `ask`, where tokens are chosen by a question; other conditions show pages as they are
    place:      levels and coordinates as in `Adapter.prepare`, if not the adapter's own
    texts:      a file for the answers as text; begins anew with the rows
    timed:      whether the first tokens of some questions are timed
    decode:     a graph that answers are decoded from, if they are
    """

    adapter: Adapter
    metric: Metric
    rows: AnswerRows
    words: PageCache
    suffix: str = SUFFIX
    batch: int = AT_ONCE
    new_tokens: int = NEW_TOKENS
    together: bool = False
    turn: float | str = 0.0
    place: dict[str, str] = field(default_factory=dict)
    texts: Path | None = None
    timed: bool = True
    decode: CapturedDecode | None = None
    failed: list[str] = field(default_factory=list)  # what could not be asked
    fits: dict[Condition, int] = field(default_factory=dict)  # the largest batch that the memory held, if not all
    warm: set[Condition] = field(default_factory=set)
    samples: Sequence[Sample] = ()
    others: Sequence[int] = ()  # of `other_pages`

    @cached_property
    def _nothing(self) -> set[str]:
        """Texts that say nothing about the page: none, and that it cannot be read, also as the tokenizer spells it."""
        return {"", self.adapter.trained.unreadable or "", unreadable_text(self.adapter)}

    def run(self, samples: Sequence[Sample], wanted: Sequence[Condition]) -> None:
        """Ask what the rows do not have yet."""
        if self.texts is not None and not self.rows.rows:
            self.texts.unlink(missing_ok=True)  # of another run
        self.samples, self.others = samples, other_pages(samples)
        numbers = range(len(samples))
        asked = [(one, n) for one in wanted for n in numbers if suits(one, n, samples, self.others)]
        left = [pair for pair in asked if not self.rows.has(*pair)]
        progress = Progress(len(asked), "answers", done=len(asked) - len(left))
        blocks: dict[int, dict[Condition, list[int]]] = {}
        for condition, n in left:
            blocks.setdefault(n // self.batch, {}).setdefault(condition, []).append(n)
        totals = {one: sum(row.score for row in self.rows.rows.get(one, {}).values()) for one in wanted}
        for block, pages in self._opened([blocks[number] for number in sorted(blocks)]):
            for condition, its in block.items():
                its = [n for n in its if samples[n].image in pages]
                size = self.fits.get(condition, self.batch)
                for first in range(0, len(its), size):
                    part = its[first : first + size]
                    found = self._answers(condition, part, pages)
                    self.rows.add(condition, found)
                    totals[condition] += sum(row.score for row in found.values())
                    progress.note = f"; {condition}: {totals[condition] / max(1, len(self.rows.rows[condition])):.3f}"
                    progress.step(len(part))

    def _opened(
        self, blocks: Sequence[dict[Condition, list[int]]]
    ) -> Iterator[tuple[dict[Condition, list[int]], dict[Path, AskedPage]]]:
        """Each block with its pages, decoded one block ahead in threads; a page that cannot be read is left out."""
        named: set[Path] = set()
        with ThreadPoolExecutor(OPENERS) as threads:

            def begin(block: dict[Condition, list[int]]) -> dict[Path, Future[AskedPage]]:
                limits: dict[Path, set[tuple[str, int | None]]] = {}
                for condition, numbers in block.items():
                    for n in numbers:
                        used = self.samples[self.others[n] if condition.kind == PAGE else n]
                        limits.setdefault(self.samples[n].image, set())
                        limits.setdefault(used.image, set()).update(self._limits(condition, used))
                return {path: threads.submit(self._open, path, tuple(some)) for path, some in limits.items()}

            ahead = begin(blocks[0]) if blocks else {}
            for number, block in enumerate(blocks):
                coming, ahead = ahead, begin(blocks[number + 1]) if number + 1 < len(blocks) else {}
                pages = {}
                for path, page in coming.items():
                    try:
                        pages[path] = page.result()
                    except ValueError as error:
                        if path not in named:
                            self.failed.append(str(error))
                            named.add(path)
                yield block, pages

    def _open(self, path: Path, limits: Sequence[tuple[str, int | None]]) -> AskedPage:
        page = AskedPage(path, self.adapter, self.words)
        _ = page.image
        for kind, most in limits:
            try:
                (page.blank if kind == BLANK else page).own(most)
            except ValueError as error:  # of the model's own processor, which knows no names
                raise ValueError(f"image {path}, by the model's own processor: {error}") from error
        return page

    def _limits(self, condition: Condition, sample: Sample) -> list[tuple[str, int | None]]:
        """What is needed of the model's own processor: of which image, and the most tokens."""
        if condition.kind not in OWN_INPUTS or not has_own_input(self.adapter):
            return []
        shown = BLANK if condition.kind == BLANK else PAGE
        return [(shown, self._full(sample) if condition.kind == FULL else condition.budget)]

    def _full(self, sample: Sample) -> int | None:
        """The most tokens at full resolution: what the context holds; None for no limit."""
        context = getattr(self.adapter.config.get_text_config(), "max_position_embeddings", None)
        rows, columns = self.adapter.grid_for(sample.size)
        if context is None or rows * columns + CONTEXT_ROOM + self.new_tokens <= context:
            return None
        return max(1, int(context) - CONTEXT_ROOM - self.new_tokens)

    def _prompt(
        self, condition: Condition, sample: Sample, other: Sample, page: AskedPage, other_page: AskedPage | None
    ) -> Prompted:
        """What the model is given for a question under a condition."""
        adapter, kind, budget = self.adapter, condition.kind, condition.budget
        question = f"{sample.question}\n{self.suffix}" if self.suffix else sample.question
        if kind == TEXT:
            return chosen_prompt(adapter, question, [], [])
        if kind in (PAGE, BLANK):
            shown = other_page if kind == PAGE else page.blank
            if shown is None:
                raise ValueError(f"sample {sample.id}: the other page, {other.image}, cannot be read")
            page = shown
        if kind in OWN_INPUTS and has_own_input(adapter):
            return own_prompt(adapter, question, page.own(self._full(sample) if kind == FULL else budget))
        if kind == FULL:
            image = page.upright.original
            return chosen_prompt(adapter, question, [image], [own_grid(adapter, image)], place=self.place)
        if kind in (PAGE, BLANK):
            placed = page.placed("", "resize", "none", budget)
        elif kind == ORACLE:
            placed = page.located(self._enough(sample), condition.allocator, budget)
        else:
            asked, (tokens, _) = other.question if kind == QUESTION else sample.question, self._hooks(condition)
            placed = page.placed(asked, condition.allocator, condition.relevance, tokens, turn=self.turn)
        return chosen_prompt(adapter, question, [placed.picture.texture], [placed.allocation], place=self.place)

    def _hooks(self, condition: Condition) -> tuple[int, tuple[ModelHook, ...]]:
        """Tokens that are chosen, and what reduces them to the budget."""
        hooks = hooks_of("eval", {"reduce": condition.reduce or None})
        return budgeted("eval", hooks, condition.budget)

    def _enough(self, sample: Sample) -> Sequence[Any]:
        """The fewest boxes that hold the whole answer."""
        return sample.boxes if self.together else [min(sample.boxes, key=lambda b: (b[2] - b[0]) * (b[3] - b[1]))]

    def _answers(
        self, condition: Condition, numbers: Sequence[int], pages: dict[Path, AskedPage]
    ) -> dict[int, AnswerRow]:
        """The answers to one batch, by the numbers of the questions."""
        samples, prompts = self.samples, dict[int, Prompted]()
        costs: dict[int, tuple[float, float | None]] = {}
        for n in numbers:
            sample, other = samples[n], samples[self.others[n]]
            shown = pages[sample.image], pages.get(other.image)
            try:
                prompts[n] = self._prompt(condition, sample, other, *shown)
                if self.timed and n < TIMED:
                    costs[n] = self._cost(condition, sample, other, *shown)
            except ValueError as error:  # too long for the context, for instance
                self.failed.append(f"sample {sample.id}, {condition}: {error}")
        if not prompts:
            return {}
        truth = [likeliest(samples[n].answers) for n in prompts]
        said, likelihoods = self._asked(condition, list(prompts.values()), truth)
        if self.texts is not None:
            named = zip(prompts, said)
            append(self.texts, ({"id": samples[n].id, "condition": str(condition), "said": one} for n, one in named))
        return {
            n: AnswerRow(
                self.metric(text, samples[n].answers),
                likelihood,
                min(prompts[n].tokens, condition.budget) if condition.reduce else prompts[n].tokens,
                text.strip() not in self._nothing,
                *costs.get(n, ()),
            )
            for n, text, likelihood in zip(prompts, said, likelihoods)
        }

    def _asked(
        self, condition: Condition, prompts: Sequence[Prompted], truth: Sequence[str]
    ) -> tuple[list[str], list[float]]:
        """Answers, and the mean log-likelihood of the true ones; in halves if the memory does not hold all."""
        how: dict[str, Any] = {"place": self.place, "hooks": self._hooks(condition)[1]}
        try:
            said = generated(self.adapter, prompts, max_new_tokens=self.new_tokens, decode=self.decode, **how)
            likely = [mean(one) for one in log_likelihoods(self.adapter, prompts, truth, **how)]
            return said, likely
        except torch.OutOfMemoryError:
            if len(prompts) == 1:
                raise
        torch.cuda.empty_cache()
        half = len(prompts) // 2
        self.fits[condition] = half
        first, second = (
            self._asked(condition, prompts[part], truth[part]) for part in (slice(half), slice(half, None))
        )
        return first[0] + second[0], first[1] + second[1]

    def _cost(
        self, condition: Condition, sample: Sample, other: Sample, page: AskedPage, other_page: AskedPage | None
    ) -> tuple[float, float | None]:
        """Milliseconds from the decoded image to the first token, and megabytes that this took, for one question."""

        def first_token() -> AskedPage:
            fresh = page.again()
            shown = None if other_page is None else other_page.again()
            prompt = self._prompt(condition, sample, other, fresh, shown)
            hooks = self._hooks(condition)[1]
            generated(self.adapter, [prompt], max_new_tokens=1, place=self.place, hooks=hooks)
            return fresh

        if condition not in self.warm:  # loading and compiling is not a question's cost
            first_token()
            self.warm.add(condition)
        fresh, ms, mb = costed(first_token, self.adapter.device)
        return ms + fresh.words_ms, mb


def suits(condition: Condition, number: int, samples: Sequence[Sample], others: Sequence[int]) -> bool:
    """Whether a question can be asked under a condition: the oracle needs boxes, some controls another page.

    others: as from `other_pages`
    """
    if condition.kind in (PAGE, QUESTION):
        return others[number] != number
    return condition.kind != ORACLE or bool(samples[number].boxes)


def likeliest(answers: Sequence[str]) -> str:
    """The answer that most people gave; the first of several."""
    return Counter(answers).most_common(1)[0][0]


def other_pages(samples: Sequence[Sample]) -> list[int]:
    """For each question the number of another one about another page, from half the list away on; always the same.

    Where every page is asked the same, only the page differs; where there is one page, it is the question itself.
    """
    count = len(samples)

    def other(number: int, *, same_question: bool) -> int | None:
        sample = samples[number]
        away = ((number + count // 2 + step) % count for step in range(count))
        pages = (one for one in away if samples[one].image != sample.image)
        return next((one for one in pages if same_question or samples[one].question != sample.question), None)

    both = ((other(number, same_question=same) for same in (False, True)) for number in range(count))
    return [next((one for one in pair if one is not None), number) for number, pair in enumerate(both)]
