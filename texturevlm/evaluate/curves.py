"""Curves of a score over the budget, one per method."""

from collections.abc import Mapping
from pathlib import Path

# Colour-blind safe (Okabe and Ito), without the yellow, which is too faint on white. The first method is the baseline.
_COLOURS = ("black", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")


def draw_curves(
    methods: Mapping[str, Mapping[int, float]], path: Path, *, title: str, score: str, ceiling: float | None = None
) -> None:
    """Write a picture of method → budget → score: budgets on a logarithmic axis, the ceiling as a dashed line."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import NullLocator
    except ImportError:
        raise ImportError("draw_curves: needs the extra eval: pip install 'texturevlm[eval]'") from None
    budgets = sorted({budget for points in methods.values() for budget in points})
    if not budgets:
        raise ValueError("draw_curves: methods must have points, got none")
    figure = Figure(figsize=(15, 8.6), layout="constrained")
    axes = figure.subplots()
    for number, (name, points) in enumerate(methods.items()):
        lap, index = divmod(number, len(_COLOURS))
        x, y = zip(*sorted(points.items()))
        axes.plot(x, y, label=name, color=_COLOURS[index], marker="o", linestyle=("-", "--", ":")[lap % 3])
    if ceiling is not None:
        axes.axhline(ceiling, color="grey", linestyle=(0, (4, 4)), label="full image")
    axes.set_xscale("log")
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(title=title, xlabel="tokens", ylabel=score)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(path, dpi=100)
