"""One style for every complaint about a tensor: which function, which argument, what was wanted, what came.

Patterns are words: a letter is a size that must agree wherever it appears, a number must match exactly.
    check_shapes("lookup", points=(points, "B N 2"), lod=(lod, "B N"))
    ValueError: lookup: lod must be (B, N), got (3, 5) (B=2 from points)
"""

from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=None)
def _words(pattern: str) -> tuple[int | str, ...]:
    return tuple(int(word) if word.isdigit() else word for word in pattern.split())


def check_shapes(function: str, **arguments: tuple[Tensor, str]) -> dict[str, int]:
    """Check each tensor against its pattern and all of them against one another; return the sizes by letter.

    Also wants every tensor on the device of the first one, because a kernel would read wild memory otherwise.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    device: torch.device | None = None
    first = ""
    for name, (tensor, pattern) in arguments.items():
        words = _words(pattern)
        if not isinstance(tensor, Tensor):
            wanted = "({})".format(", ".join(map(str, words)))
            raise TypeError(f"{function}: {name} must be a tensor {wanted}, got {type(tensor).__name__}")
        shape = tensor.shape
        wrong = len(shape) != len(words)
        if not wrong:
            for size, word in zip(shape, words):
                if isinstance(word, int):
                    wrong |= size != word
                elif word in sizes:
                    wrong |= size != sizes[word]
                else:
                    sizes[word] = size
                    origin[word] = name
        if wrong:
            wanted = "({})".format(", ".join(map(str, words)))
            known = ", ".join(
                f"{word}={sizes[word]} from {origin[word]}"
                for word in words
                if isinstance(word, str) and origin.get(word, name) != name
            )
            raise ValueError(
                f"{function}: {name} must be {wanted}, got {tuple(shape)}" + (f" ({known})" if known else "")
            )
        if device is None:
            device, first = tensor.device, name
        elif tensor.device != device:
            raise ValueError(f"{function}: {name} must be on {device} like {first}, got {tensor.device}")
    return sizes


def check_floating(function: str, **tensors: Tensor) -> None:
    """Every tensor must hold floating-point numbers."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise TypeError(f"{function}: {name} must be floating point, got {tensor.dtype}")


def check_finite(function: str, **tensors: Tensor) -> None:
    """No NaN and no infinity. It reads values, so it waits for a GPU: only where data enters the library."""
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


def check_choice(function: str, name: str, value: str, known: Iterable[str]) -> str:
    """One of the known names; the complaint lists them."""
    known = list(known)
    if value not in known:
        raise ValueError(f"{function}: {name} must be one of {', '.join(known)}, got {value!r}")
    return value
