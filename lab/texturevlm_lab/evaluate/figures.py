"""Pictures of a run: curves of score over budget, and the samples where a method fails."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from texturevlm.draw import footprints, to_pil
from texturevlm.rebuilding import rebuild, resized
from texturevlm.types import Allocation, Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.legibility import MOST_BOXES, crop_boxes
from texturevlm_lab.evaluate.results import IDEAL_RESIZE, Configuration, ResultRow, Results

# Colour-blind safe (Okabe and Ito), without the yellow, which is too faint on white. The first method is the baseline.
_COLOURS = ("black", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
_LONGEST = 100  # letters of a caption
Failure = tuple[Sample, ResultRow, ResultRow | None]  # the rows of the method and of the ideal resize


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


def worst(
    results: Results, samples: Sequence[Sample], configuration: Configuration, name: str, count: int = 6
) -> list[Failure]:
    """Where the method falls furthest behind resize, then where its score is lowest. One per page."""
    found: list[tuple[float, float, Failure]] = []
    for sample in samples:
        row = results.rows.get((sample.id, configuration))
        if row is not None and name in row.scores:
            rival = results.rows.get((sample.id, Configuration(IDEAL_RESIZE, budget=configuration.budget)))
            score = row.scores[name]
            behind = score - rival.scores.get(name, score) if rival is not None else 0.0
            found.append((behind, score, (sample, row, rival)))
    pages: dict[Path, Failure] = {}
    for _, _, failure in sorted(found, key=lambda one: one[:2]):
        pages.setdefault(failure[0].image, failure)
    return list(pages.values())[:count]


def draw_failures(
    failures: Sequence[Failure],
    name: str,
    allocate: Callable[[Sample], Allocation],
    path: Path,
    *,
    title: str,
    patch: int,
) -> None:
    """Write a picture with one band per failure: the page with footprints and the answer's boxes, beside it the crops
    and the texts.

    name:     of the score
    allocate: computes the tokens of a sample again, since a run keeps no allocations
    """
    figure = _figure("draw_failures", 14, 0.6 + 5 * len(failures))
    figure.suptitle(title, parse_math=False)
    for (sample, *rows), band in zip(failures, figure.subfigures(len(failures), 1, squeeze=False)[:, 0]):
        scores = [f"{row.scores[name]:.2f}" for row in rows if row is not None and name in row.scores]
        wanted = f"wanted: {' / '.join(sample.answers[:3])}" if sample.answers else sample.name
        head = (sample.question or "no question", wanted, f"score: {', resize '.join(scores)}")
        band.suptitle("\n".join(map(_cut, head)), fontsize="medium", parse_math=False)
        engine = name.partition("/")[2]
        read = [" | ".join(map(str.strip, row.read.get(engine, ()))) if row is not None else "" for row in rows]
        _draw_failure(band, sample, read, allocate(sample), patch)
    figure.savefig(path)


def _draw_failure(band: Any, sample: Sample, read: Sequence[str], allocation: Allocation, patch: int) -> None:
    texture = Texture.open(sample.image, device=allocation.centre.device)
    axes = band.subplot_mosaic([["page", part] for part in range(3)], width_ratios=(1, 2))
    axes["page"].imshow(footprints(to_pil(texture.levels[0]), allocation))
    for x0, y0, x1, y1 in sample.boxes[:MOST_BOXES]:
        axes["page"].plot((x0, x1, x1, x0, x0), (y0, y0, y1, y1, y0), color="#c82828")
    for box in crop_boxes(sample.boxes[:1], sample.size):
        crops = {
            f"delivered; read: {read[0]}": rebuild(texture, allocation, box=box),
            f"resize; read: {read[1]}": resized(texture, budget=allocation.budget, patch=patch, box=box),
            "the image": texture.levels[0][..., box[1] : box[3], box[0] : box[2]],
        }
        for part, (caption, picture) in enumerate(crops.items()):
            axes[part].imshow(to_pil(picture))
            axes[part].set_title(_cut(caption), fontsize="small", parse_math=False)
    for axis in axes.values():
        axis.set_axis_off()


def _cut(text: str) -> str:
    """On one line, no longer than fits."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"
