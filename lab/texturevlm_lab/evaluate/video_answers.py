"""Accuracy of a model on questions about videos, by multiple choice: our clips beside baselines at the same tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from texturevlm.ask import VideoOptions, VideoSession
from texturevlm.ask.session import FPS
from texturevlm.check import check_choice
from texturevlm.progress import Progress
from texturevlm.video import Frame, FrameSource, open_video
from texturevlm_lab.evaluate.markdown import markdown_table
from texturevlm_lab.evaluate.video_baselines import VIDEO_BASELINES, BaselineSession
from texturevlm_lab.evaluate.video_data import VideoQuestion
from texturevlm_lab.journal import append, cut_unfinished, read_journal

LETTERS = "ABCDEFGH"
CONDITIONS = ("clip", *VIDEO_BASELINES, "prunevid", "blind")
BLANK_SIDE = 64  # pixels: side of the picture that a model is shown in the place of the video, to see what it guesses
MOST_NEW_TOKENS = 16


def choice_prompt(question: VideoQuestion) -> str:
    """The question with its candidates as lettered options."""
    options = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, question.candidates))
    return f"{question.question}\n{options}\nAnswer with the letter of the right option."


def chosen_option(answer: str, candidates: Sequence[str]) -> int | None:
    """Which candidate an answer names: by its letter, else by its text; None if by neither."""
    letters = LETTERS[: len(candidates)]
    found = re.match(rf"\W*([{letters}])(?![A-Za-z])", answer) or re.search(rf"\b([{letters}])\b", answer)
    if found:
        return letters.index(found[1])
    said = answer.strip().lower()
    alike = [index for index, text in enumerate(candidates) if text.strip() and text.strip().lower() in said]
    return alike[0] if len(alike) == 1 else None


def span_of(source: FrameSource, span: tuple[float, float]) -> FrameSource:
    """The part of a video between two times, in seconds."""

    def read(notes: list[str]) -> Iterator[Frame]:
        return (frame for frame in source.read(notes) if span[0] <= frame.time < span[1])

    return replace(source, read=read, count=None, notes=[])


def answer_videos(
    model: Any,
    questions: Sequence[VideoQuestion],
    *,
    budgets: Sequence[int],
    conditions: Sequence[str] = CONDITIONS[:2],
    out: Path,
) -> list[dict[str, Any]]:
    """Ask every question under every condition; rows are appended to `out` and not asked for again.

    returns rows: id, task, condition, budget, right, choice (None: the answer named no option), tokens
    """
    for one in conditions:
        check_choice("eval", "conditions", one, CONDITIONS)
    cut_unfinished(out)
    rows: list[dict[str, Any]] = read_journal(out, "rows of this command", dict)
    done = {(row["id"], row["condition"], row["budget"]) for row in rows}
    wanted = [
        (question, condition, budget)
        for question in questions
        for condition in conditions
        for budget in (budgets if condition != "blind" else budgets[:1])
        if (question.id, condition, budget) not in done
    ]
    progress = Progress(len(wanted), "answers") if wanted else None
    for question, condition, budget in wanted:
        row = _answered(model, question, condition, budget)
        append(out, [row])
        rows.append(row)
        if progress is not None:
            progress.step()
    return rows


def _answered(model: Any, question: VideoQuestion, condition: str, budget: int) -> dict[str, Any]:
    options: dict[str, Any] = {"budget": budget, "max_new_tokens": MOST_NEW_TOKENS, "return_details": True}
    given: Any
    source = open_video(question.video, fps=FPS)
    source = source if question.span is None else span_of(source, question.span)
    if condition == "blind":
        from PIL import Image

        given = Image.new("RGB", (BLANK_SIDE, BLANK_SIDE), (128, 128, 128))
    elif condition in VIDEO_BASELINES:
        given = BaselineSession(condition, model, source, VideoOptions())
    else:
        given = VideoSession(model, source, VideoOptions())
        if condition == "prunevid":
            options |= {"budget": 2 * budget, "reduce": "prunevid", "keep": budget}
    found = model.ask(given, choice_prompt(question), **options)
    choice = chosen_option(found.text, question.candidates)
    row = {"id": question.id, "task": question.task, "condition": condition, "budget": budget}
    return row | {"right": choice == question.answer, "choice": choice, "tokens": found.kept}


def accuracy_table(rows: Sequence[dict[str, Any]]) -> str:
    """A table of accuracy with its 95% interval, one row per condition and budget, and one column per task."""
    tasks = sorted({row["task"] for row in rows if row["task"]})
    lines = []
    keys = sorted({(CONDITIONS.index(row["condition"]), row["budget"]) for row in rows})
    for index, budget in keys:
        own = [row for row in rows if row["condition"] == CONDITIONS[index] and row["budget"] == budget]
        parts = [[row for row in own if row["task"] == task] for task in tasks]
        cells = [CONDITIONS[index], str(budget), str(len(own)), _share(own)]
        cells += [f"{sum(row['tokens'] for row in own) / len(own):.0f}", *(_share(part) for part in parts)]
        lines.append(cells)
    return markdown_table(("shown", "budget", "n", "accuracy", "tokens", *tasks), lines)


def _share(rows: Sequence[dict[str, Any]]) -> str:
    """Accuracy with the half-width of its normal interval, in percent."""
    if not rows:
        return "–"
    share = sum(row["right"] for row in rows) / len(rows)
    half = 1.96 * math.sqrt(share * (1 - share) / len(rows))
    return f"{100 * share:.1f} ± {100 * half:.1f}"
