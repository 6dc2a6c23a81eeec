"""What a model is asked: a prompt, its images, and the tokens that were chosen in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from texturevlm.ask.choose import Chosen
from texturevlm.ask.messages import Message
from texturevlm.types import Texture
from texturevlm.vlm import ModelHook
from texturevlm.vlm.views import View


@dataclass(frozen=True, eq=False)
class Asked:
    """A prompt, its images and the tokens chosen in each.

    budget: that they were chosen for
    hooks:  what changes the model
    pages:  of a document, tokens by page number
    clip:   of a video, instead of textures: the views of its moments, one group per placeholder
    given:  the tokens in the images as they were given; None: they are the textures
    looks:  of the model, the one at these tokens included
    """

    prompt: list[Message]
    textures: list[Texture]
    chosen: list[Chosen]
    budget: int
    hooks: tuple[ModelHook, ...] = ()
    clip: list[list[View]] | None = None
    pages: dict[int, int] = field(default_factory=dict)
    given: list[Chosen] | None = None
    looks: int = 1


def has_column(asked: Sequence[Asked], name: str) -> bool:
    """Whether the chosen tokens have this optional column."""
    return getattr(asked[0].chosen[0], name) is not None
