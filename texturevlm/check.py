"""Checks with one style of error: the function, the argument, what was wanted, what came.

Patterns are words: a letter is a size that must agree wherever it appears, a number must match exactly.
    check_shapes("lookup", points=(points, "B N 2"), lod=(lod, "B N"))
    ValueError: lookup: lod must be (B, N), got (3, 5) (B=2 from points)
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from texturevlm.registry import near_miss


def check_shapes(function: str, **arguments: tuple[Tensor, str]) -> dict[str, int]:
    """Check each tensor against its pattern and all tensors against each other; return the sizes by letter.

    All tensors must be on one device: a kernel would read invalid memory otherwise.
    """
    shapes = []
    device: torch.device | None = None
    for name, (tensor, pattern) in arguments.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{function}: {name} must be a tensor {_spelled(pattern)}, got {type(tensor).__name__}")
        shapes.append((name, pattern, tensor.shape))
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            first = next(iter(arguments))
            raise ValueError(f"{function}: {name} must be on {device} like {first}, got {tensor.device}")
    return dict(_sizes(function, tuple(shapes)))


@lru_cache(maxsize=1024)
def _sizes(function: str, shapes: tuple[tuple[str, str, torch.Size], ...]) -> dict[str, int]:
    """The sizes by letter. Cached, since the hot path checks the same shapes again and again."""
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for name, pattern, shape in shapes:
        words = pattern.split()
        known = {word: sizes[word] for word in words if word in sizes}
        wrong = len(shape) != len(words)
        for size, word in zip(shape, words):
            wanted = int(word) if word.isdigit() else sizes.setdefault(word, size)
            origin.setdefault(word, name)
            wrong |= size != wanted
        if wrong:
            because = ", ".join(f"{word}={size} from {origin[word]}" for word, size in known.items())
            raise ValueError(
                f"{function}: {name} must be {_spelled(pattern)}, got {tuple(shape)}"
                + (f" ({because})" if because else "")
            )
    return sizes


def _spelled(pattern: str) -> str:
    return "({})".format(", ".join(pattern.split()))


def check_floating(function: str, **tensors: Tensor) -> None:
    """Every tensor must hold floating-point numbers."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise TypeError(f"{function}: {name} must be floating point, got {tensor.dtype}")


def check_finite(function: str, **tensors: Tensor) -> None:
    """No NaN and no infinity. It reads values and waits for a GPU, so it is used only where data enters the library."""
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            bad = int((~torch.isfinite(tensor)).sum())
            raise ValueError(f"{function}: {name} must be finite, got {bad} NaN or infinite values of {tensor.numel()}")


def check_count(function: str, name: str, value: int, low: int, high: int | None = None) -> int:
    """A whole number in [low, high]."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{function}: {name} must be a whole number, got {value!r}")
    value = value.__index__()
    if value < low or (high is not None and value > high):
        wanted = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{function}: {name} must be {wanted}, got {value}")
    return value


def check_size(function: str, size: Sequence[int]) -> tuple[int, int]:
    """(height, width), both whole numbers from 1."""
    try:
        height, width = size
    except (TypeError, ValueError):
        got = "Tensor" if isinstance(size, Tensor) else repr(size)
        raise ValueError(f"{function}: size must be (height, width), got {got}") from None
    return check_count(function, "height", height, 1), check_count(function, "width", width, 1)


def check_choice(function: str, name: str, value: str, known: Iterable[str]) -> str:
    """One of the known names; the error lists them."""
    known = list(known)
    if value not in known:
        meant = near_miss(value, known) if isinstance(value, str) else ""
        raise ValueError(f"{function}: {name} must be one of {', '.join(known)}, got {value!r:.80}{meant}")
    return value


def check_share(function: str, name: str, value: float) -> float:
    """A number above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ValueError(f"{function}: {name} must be above 0 and at most 1, got {value!r}")
    return value
