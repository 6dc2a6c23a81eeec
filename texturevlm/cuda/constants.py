"""Small tables on a GPU that are uploaded once and never freed: a captured graph keeps reading where they lie."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_tables: dict[tuple[Any, ...], Tensor] = {}


def device_constant(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of fixed values on a device, the same one for every call.

    values: numbers, or tuples of numbers
    It is never freed, unlike an entry of an lru_cache, so that a captured graph may read it at any time.
    """
    key = (tuple(values), dtype, device)
    if key not in _tables:
        # setdefault: two threads that come here at once must go on with the same tensor.
        _tables.setdefault(key, torch.tensor(key[0], dtype=dtype).to(device))
    return _tables[key]
