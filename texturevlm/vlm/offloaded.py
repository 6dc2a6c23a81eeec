"""Models whose weights accelerate keeps elsewhere until they are used."""

from __future__ import annotations

from typing import Any

import torch


def input_device(model: Any) -> torch.device:
    """Where a model takes its inputs. Offloaded weights are on the meta device; their hook knows where they will be."""
    device = torch.device(model.device)
    if device.type != "meta":
        return device
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", [hook]):
            if (found := getattr(one, "execution_device", None)) is not None:
                return torch.device(found)
    return device
