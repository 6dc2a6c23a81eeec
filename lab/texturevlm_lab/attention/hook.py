"""`attention=` and `tower_attention=`: the halves of a model attend with levels of detail, from `load_vlm` on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from texturevlm.vlm import Adapter, ModelHook
from texturevlm.vlm.captured_generate import KnownOf
from texturevlm_lab.attention.implementation import LAYER
from texturevlm_lab.attention.language import attend_hierarchically
from texturevlm_lab.attention.options import AttentionOptions, check_attention, check_tower_attention
from texturevlm_lab.attention.tower import attend_in_tower


@dataclass(frozen=True)
class AttentionHook(ModelHook):
    """How a half of a model attends.

    said: as the caller said it: dense; hierarchical: visual tokens coarse for every query, fine where it matters, for
          thousands of tokens (docs/attention.md); window, linear or latent, its relatives; or a dict of options
    """

    detail: AttentionOptions
    said: Any = None

    lasting: ClassVar[bool] = True
    grows: ClassVar[bool] = True

    @classmethod
    def of(cls, function: str, options: Mapping[str, Any], usual: ModelHook | None = None) -> Self | None:
        (said,) = options.values()
        detail = AttentionOptions.of(function, said, cls.options[0])
        return None if detail is None else cls(detail, said)

    @property
    def given(self) -> dict[str, Any]:
        return {self.name: self.detail if self.said is None else self.said}

    def not_captured_because(self) -> str | None:
        return "a model whose attention has levels of detail is captured only while it decodes"


class LanguageAttention(AttentionHook):
    """Of the language model."""

    options: ClassVar[tuple[str, ...]] = ("attention",)

    def check(self, function: str, config: Any, hooks: Sequence[ModelHook]) -> None:
        check_attention(function, config)

    def attach(self, adapter: Adapter) -> None:
        attend_hierarchically(adapter, self.detail)

    @contextmanager
    def run(self, adapter: Adapter, *, endings: Sequence[int] | None = None) -> Iterator[KnownOf]:
        run, _ = getattr(adapter.language_of(adapter.model).layers[0].self_attn, LAYER)
        yield run.known


class VisionAttention(AttentionHook):
    """Of the vision tower, patch by patch (Qwen, GLM)."""

    options: ClassVar[tuple[str, ...]] = ("tower_attention",)

    def check(self, function: str, config: Any, hooks: Sequence[ModelHook]) -> None:
        check_tower_attention(function, config)

    def attach(self, adapter: Adapter) -> None:
        attend_in_tower(adapter, self.detail)
