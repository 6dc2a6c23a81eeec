"""Pictures of a run: curves of a score over the budget, and a method's worst failures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from texturevlm.draw import footprints, to_pil
from texturevlm.evaluate.data import Sample
from texturevlm.evaluate.legibility import MOST_BOXES, crop_boxes
from texturevlm.evaluate.results import IDEAL_RESIZE, Configuration, Results
from texturevlm.rebuilding import rebuild, resized
from texturevlm.types import Allocation, Texture

# Colour-blind safe (Okabe and Ito), without the yellow, which is too faint on white. The first method is the baseline.
_COLOURS = ("black", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_LONGEST = 100  # letters of a caption


def _figure(name: str, width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"{name}: needs the extra eval: pip install 'texturevlm[eval]'") from None
    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def draw_curves(
    methods: Mapping[str, Mapping[int, float]], path: Path, *, title: str, score: str, ceiling: float | None = None
) -> None:
    """Write a picture of method → budget → score: budgets on a logarithmic axis, the ceiling as a dashed line."""
    budgets = sorted({budget for points in methods.values() for budget in points})
    if not budgets:
        raise ValueError("draw_curves: methods must have points, got none")
    figure = _figure("draw_curves", 15, 8.6)
    axes = figure.subplots()
    for number, (name, points) in enumerate(methods.items()):
        lap, index = divmod(number, len(_COLOURS))
        x, y = zip(*sorted(points.items()))
        axes.plot(x, y, label=name, color=_COLOURS[index], marker="o", linestyle=("-", "--", ":")[lap % 3])
    if ceiling is not None:
        axes.axhline(ceiling, color="grey", linestyle=(0, (4, 4)), label="full image")
    axes.set_xscale("log")
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.set_xticks([], minor=True)
    axes.set(title=title, xlabel="tokens", ylabel=score)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path)


class Failure(NamedTuple):
    """A sample, the scores of the method and of resize, and the text read from either."""

    sample: Sample
    score: float
    baseline: float | None
    read: str
    baseline_read: str


def worst(
    results: Results, samples: Sequence[Sample], configuration: Configuration, name: str, count: int = 6
) -> list[Failure]:
    """Where the method falls furthest behind resize, then where its score is lowest. One per page."""
    found = []
    for sample in samples:
        row = results.rows.get((sample.id, configuration))
        if row is None or name not in row.scores:
            continue
        rival = results.rows.get((sample.id, Configuration(IDEAL_RESIZE, budget=configuration.budget)))
        baseline = rival.scores.get(name) if rival is not None else None
        texts = [" | ".join(text.strip() for text in one.read) if one is not None else "" for one in (row, rival)]
        found.append(Failure(sample, row.scores[name], baseline, texts[0], texts[1]))
    found.sort(key=lambda one: (one.score - one.baseline if one.baseline is not None else 0.0, one.score))
    pages = {one.sample.image: one for one in reversed(found)}  # the worst of each page
    return [one for one in found if pages[one.sample.image] is one][:count]


def draw_failures(
    failures: Sequence[Failure], allocate: Callable[[Sample], Allocation], path: Path, *, title: str, patch: int
) -> None:
    """Write a picture with one band per failure: the page with footprints and the answer's boxes, beside it the crops
    and the texts.

    allocate: computes the tokens of a sample again, since a run keeps no allocations
    """
    figure = _figure("draw_failures", 14, 0.6 + 5 * len(failures))
    figure.suptitle(title, parse_math=False)
    for failure, band in zip(failures, figure.subfigures(len(failures), 1, squeeze=False)[:, 0]):
        _draw_failure(band, failure, allocate(failure.sample), patch)
    figure.savefig(path)


def _draw_failure(band: Any, failure: Failure, allocation: Allocation, patch: int) -> None:
    sample, texture = failure.sample, Texture.open(failure.sample.image, device=allocation.centre.device)
    rows = ("delivered", "resize", "image")
    axes = band.subplot_mosaic([["page", row] for row in rows], width_ratios=(1, 2))
    axes["page"].imshow(footprints(to_pil(texture.levels[0]), allocation))
    for x0, y0, x1, y1 in sample.boxes[:MOST_BOXES]:
        axes["page"].plot((x0, x1, x1, x0, x0), (y0, y0, y1, y1, y0), color="#c82828")
    wanted = f"wanted: {' / '.join(sample.answers[:3])}" if sample.answers else sample.name
    scores = f"score: {failure.score:.2f}" + ("" if failure.baseline is None else f", resize {failure.baseline:.2f}")
    head = "\n".join(_cut(text) for text in (sample.question or "no question", wanted, scores))
    band.suptitle(head, fontsize="medium", parse_math=False)
    for box in crop_boxes(sample.boxes[:1], sample.size):
        crops = (
            (rebuild(texture, allocation, box=box), f"delivered; read: {failure.read}"),
            (
                resized(texture, budget=allocation.budget, patch=patch, box=box),
                f"resize; read: {failure.baseline_read}",
            ),
            (texture.levels[0][..., box[1] : box[3], box[0] : box[2]], "the image"),
        )
        for row, (picture, caption) in zip(rows, crops):
            axes[row].imshow(to_pil(picture))
            axes[row].set_title(_cut(caption), fontsize="small", parse_math=False)
    for axis in axes.values():
        axis.set_axis_off()


def _cut(text: str) -> str:
    """On one line, no longer than fits."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"
