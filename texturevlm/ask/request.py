"""What a model is to answer: a prompt, and where the tokens of its pictures lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from texturevlm.ask.messages import Message
from texturevlm.placement import Placement
from texturevlm.types import Texture
from texturevlm.vlm import ModelHook
from texturevlm.vlm.views import View


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt and the tokens of its pictures.

    budget: that the tokens were placed for
    hooks:  what changes the model
    clip:   of a video: the views of its moments, one group per placeholder
    pages:  of a document, tokens by page number
    looks:  of the model, the one at these tokens included
    """

    prompt: list[Message]
    placements: list[Placement]
    budget: int
    hooks: tuple[ModelHook, ...] = ()
    clip: list[list[View]] | None = None
    pages: dict[int, int] = field(default_factory=dict)
    looks: int = 1

    @property
    def textures(self) -> list[Texture]:
        """What the tokens are sampled from; none for a video, whose views hold their pixels."""
        return [] if self.clip is not None else [placement.picture.texture for placement in self.placements]


def has_column(requests: Sequence[Request], name: str) -> bool:
    """Whether the placements have this optional column."""
    return getattr(requests[0].placements[0], name) is not None
