"""Our attention as an implementation of transformers: under one name for all modules that a run has hooked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from torch import Tensor

IMPLEMENTATION = "texturevlm_hierarchical"  # its name in transformers
LAYER = "texturevlm_attention"  # attribute of an attention module: the run that it belongs to, and its number there


class Run(Protocol):
    """What attends in the place of modules of one model."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, options: dict[str, Any]) -> Tensor | None:
        """The output (B, H, Q, D) of a layer; None: this pass is dense.

        options: what transformers passes to implementations beside the tensors
        """


class Named:
    """Our implementation as that of attention modules which share a config, until `remove`."""

    def __init__(self, run: Run, modules: Iterable[Any], config: Any) -> None:
        _register()
        self.modules, self.config, self.before = list(modules), config, config._attn_implementation
        self.config._attn_implementation = IMPLEMENTATION
        for number, module in enumerate(self.modules):
            object.__setattr__(module, LAYER, (run, number))

    def remove(self) -> None:
        self.config._attn_implementation = self.before
        for module in self.modules:
            object.__delattr__(module, LAYER)


def _register() -> None:
    """Tell transformers of the implementation and of its mask, under one name."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(IMPLEMENTATION, _forward)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


def _forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers calls."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    run, number = getattr(module, LAYER, (None, 0))
    out = None if run is None else run.attend(number, query, key, value, options)
    if out is None:
        found: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return found
    return out.transpose(1, 2).contiguous(), None
