"""The table of a run with a model, and the decision rule, from the file of its answers alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, median
from typing import NamedTuple

from texturevlm_lab.evaluate.answer_rows import AnswerRow, AnswerRows
from texturevlm_lab.evaluate.conditions import BLANK, CHOSEN, FULL, ORACLE, OWN, PAGE, QUESTION, TEXT, Condition
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.provenance import Origin
from texturevlm_lab.evaluate.statistics import Interval, paired_difference

ANSWERING = "texturevlm_lab.evaluate.answering"  # what answers come from
NEAR_FULL = 0.02  # points of full resolution that a method may lose
ORDER = (FULL, TEXT, BLANK, PAGE, OWN, CHOSEN, ORACLE, QUESTION)
HEADS = (
    *("input", "budget", "questions", "score", "− resize", "− full resolution"),
    *("log-likelihood", "visual tokens", "ms to first token", "peak MB"),
)


class AnswerLine(NamedTuple):
    """One condition: the score and its differences with 95% intervals over pages, and means of the rest."""

    questions: int
    score: Interval
    to_resize: Interval | None
    to_full: Interval | None
    likelihood: float
    tokens: float
    field_f1: float
    ms: float | None
    mb: float | None


AnswerLines = Mapping[Condition, AnswerLine]


def answer_lines(answers: AnswerRows) -> dict[Condition, AnswerLine]:
    """The line of each condition that has answers, in the order of the table."""
    pages = [page for _, page in answers.questions]
    every = {condition: rows for condition, rows in answers.rows.items() if rows}
    ordered = sorted(every, key=lambda one: (one.budget if one.kind in ORDER[4:] else 0, ORDER.index(one.kind)))
    found = {}
    for condition in ordered:
        rows = every[condition]
        costs = [row for row in rows.values() if row.ms is not None]
        memory = [row.mb for row in costs if row.mb is not None]
        right = sum(row.score for row in rows.values())
        found[condition] = AnswerLine(
            len(rows),
            _mean_score(rows, pages),
            _difference(rows, _resized(condition, every), pages),
            None if condition.kind == FULL else _difference(rows, every.get(Condition(FULL), {}), pages),
            mean(row.likelihood for row in rows.values()),
            mean(row.tokens for row in rows.values()),
            2 * right / (len(rows) + sum(row.said for row in rows.values())),
            median(row.ms for row in costs if row.ms is not None) if costs else None,
            max(memory) if memory else None,
        )
    return found


def _resized(condition: Condition, every: Mapping[Condition, dict[int, AnswerRow]]) -> dict[int, AnswerRow]:
    """The answers of resize at the same budget: the model's own, or ours where it has none."""
    own, ours = Condition(OWN, budget=condition.budget), Condition(CHOSEN, "resize", "none", condition.budget)
    if not condition.budget or condition.kind in (OWN, BLANK, PAGE):
        return {}
    return every.get(own) or (every.get(ours, {}) if condition != ours else {})


def _mean_score(rows: Mapping[int, AnswerRow], pages: Sequence[str]) -> Interval:
    scores = [row.score for row in rows.values()]
    return paired_difference(scores, [0.0] * len(scores), groups=[pages[number] for number in rows])


def _difference(
    rows: Mapping[int, AnswerRow], others: Mapping[int, AnswerRow], pages: Sequence[str]
) -> Interval | None:
    """Of the scores of the questions that both have; None if there are none."""
    shared = [number for number in rows if number in others]
    if not shared:
        return None
    ours, theirs = ([some[number].score for number in shared] for some in (rows, others))
    return paired_difference(ours, theirs, groups=[pages[number] for number in shared])


def decision(lines: AnswerLines) -> list[str]:
    """For each method: at which share of the tokens it is as good as full resolution, and where it beats resize."""
    methods: dict[str, list[tuple[int, AnswerLine]]] = {}
    resizes = {one.method for one in lines if one.kind == OWN or (one.allocator == "resize" and not one.reduce)}
    for condition, line in lines.items():
        if condition.kind in (OWN, CHOSEN):
            methods.setdefault(condition.method, []).append((condition.budget, line))
    full = lines.get(Condition(FULL))
    return [
        f"{method}: {_near(own, full)}; {_wins(own, resizes=method in resizes)}." for method, own in methods.items()
    ]


def _near(own: Sequence[tuple[int, AnswerLine]], full: AnswerLine | None) -> str:
    if full is None:
        return "full resolution was not measured"
    for budget, line in sorted(own, key=lambda pair: pair[0]):
        if line.to_full is not None and line.to_full.mean >= -NEAR_FULL:
            share, sure = line.tokens / full.tokens, line.to_full.low >= -NEAR_FULL
            said = f"within {100 * NEAR_FULL:.0f} points of full resolution at {share:.1%} of its tokens ({budget})"
            return said + ("" if sure else ", though the interval reaches further down")
    return f"at no budget within {100 * NEAR_FULL:.0f} points of full resolution"


def _wins(own: Sequence[tuple[int, AnswerLine]], *, resizes: bool) -> str:
    judged = [(budget, line.to_resize) for budget, line in own if line.to_resize is not None]
    if not judged:
        return "it is what others are compared with" if resizes else "resize was not measured"
    parts = {
        "wins over resize by more than the interval at": [budget for budget, one in judged if one.low > 0],
        "loses to resize by more than the interval at": [budget for budget, one in judged if one.high < 0],
        "does not differ from resize by more than the interval at": [
            budget for budget, one in judged if one.low <= 0 <= one.high
        ],
    }
    return ", ".join(f"{words} {', '.join(map(str, some))}" for words, some in parts.items() if some)


def answers_page(answers: AnswerRows, *, notes: Sequence[str] = ()) -> str:
    """The table, the decision rule and what the numbers depend on, as Markdown."""
    lines, settings = answer_lines(answers), answers.settings
    fields = settings.get("metric") == "exact_match"
    heads = [*HEADS, "field F1"] if fields else HEADS
    table = [_cells(condition, line, fields=fields) for condition, line in lines.items()]
    asked, pages = len(answers.questions), len({page for _, page in answers.questions})
    title = f"# {settings.get('data set')}: answers of {settings.get('model')}"
    said = f"{asked} questions about {pages} pages, scored by {settings.get('metric')}. "
    said += f"{settings.get('skipped', 0)} broken entries of the data were skipped. "
    said += "Intervals are 95%, by resampling pages; differences are paired by question. "
    said += "`− resize` is the difference to the model's own resize to the same budget, or to our resize where the "
    said += "model's processor has no such limit. The log-likelihood is that of the true answer, per token. "
    if settings.get("timed"):
        said += f"Time and memory are those of the first {settings['timed']} questions, asked one at a time from the "
        said += "decoded image to the first token (median, and the largest peak above what was held before); all "
        said += "answers are generated in batches."
    else:
        said += "Time and memory were not measured."
    rules = "\n".join(f"- {line}" for line in decision(lines))
    depends = "\n".join(f"- {name}: {value}" for name, value in settings.items())
    code = Origin(ANSWERING, str(settings.get("code")), str(settings.get("commit")))
    blocks = [title, said, *notes, f"{code}.", markdown_table(heads, table)]
    return markdown_page(*blocks, "## Decision rule", rules or "- nothing to decide", "## Settings", depends)


def _cells(condition: Condition, line: AnswerLine, *, fields: bool) -> list[object]:
    def difference(interval: Interval | None) -> str:
        return "" if interval is None else format_interval(interval)

    found: list[object] = [condition.method, condition.budget or "", line.questions]
    found += [format_interval(line.score, ".3f"), difference(line.to_resize), difference(line.to_full)]
    found += [f"{line.likelihood:.3f}", f"{line.tokens:.0f}"]
    found += ["" if number is None else f"{number:.0f}" for number in (line.ms, line.mb)]
    return [*found, f"{line.field_f1:.3f}"] if fields else found
