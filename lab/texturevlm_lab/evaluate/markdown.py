"""Reports as Markdown: tables, intervals and pages."""

from collections.abc import Iterable, Sequence


def format_interval(interval: Sequence[float], form: str = "+.3f") -> str:
    """A mean and its interval: +0.012 (−0.003 to +0.027); `form` is the format of each number."""
    mean, low, high = (format(number, form) for number in interval)
    return f"{mean} ({low} to {high})"


def markdown_table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table as Markdown; an empty cell stays empty."""
    first, *others = ("|" + "".join(f" {cell} |" if cell != "" else " |" for cell in row) for row in (heads, *rows))
    return "\n".join([first, "|" + "---|" * len(heads), *others])


def markdown_page(*blocks: str) -> str:
    """A page: headings, paragraphs and tables with a blank line between them."""
    return "\n\n".join(blocks) + "\n"
