"""`channels`: relevance that reads the texture. Every channel is fetched at every cell and weighed by a linear form.

The question adds a term of its own: on a page, how much likelier the scout finds a place with the question than
without; on any image, the cosine with the embedding channels, where the caller gives their encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from texturevlm.channels import EMBEDDING_LAYERS
from texturevlm.check import check_choice
from texturevlm.cuda import can_capture
from texturevlm.frame import Frame
from texturevlm.relevance.channel_logits import (
    IMAGE_KINDS,
    ChannelForm,
    cell_features,
    channel_layers,
    channel_logits,
    feature_names,
    known_channels,
    load_form,
    log_density,
)
from texturevlm.relevance.maps import ImageMaps
from texturevlm.relevance.scorers import nothing_asked, on_cells
from texturevlm.scout import Question, load_scout
from texturevlm.text import terms
from texturevlm.types import Texture

QUESTION_TERM = "question"  # the name of the question's term
QUESTION_WEIGHT = 1.0  # of the logarithm of the scout's ratio
COSINE_WEIGHT = 10.0  # of a cosine, as in `embedding`
_INPUTS = ("previous", "relevance", "fixations", "attention", "gaze", "encoder", "projection")


class ChannelReading(NamedTuple):
    """Images as the scorer sees them.

    image:  the texture that was given; the scout reads it if a page is asked about
    layers: its channels
    kept:   what questions share, by name, once it was computed
    """

    image: Texture
    layers: Texture
    kept: dict[str, Any]

    def features(self, maps: ImageMaps) -> Tensor:
        """(B, h · w, F), computed once per grid."""
        return self._once(f"features {maps.grid}", lambda: cell_features(self.layers, maps))

    def logits(self, form: ChannelForm, maps: ImageMaps, kind: Tensor) -> Tensor:
        """(B, h · w): what the channels say of each cell whatever is asked, computed once per grid."""
        return self._once(f"logits {maps.grid}", lambda: channel_logits(form, self.layers, maps, kind))

    def _once(self, key: str, make: Callable[[], Tensor]) -> Tensor:
        if key not in self.kept:
            self.kept[key] = make()
        found: Tensor = self.kept[key]
        return found


class ChannelScorer:
    """A linear form over all channels, per kind of image.

    weights: a file of weights instead of the package's: weights.safetensors of `texturevlm train`
    kind:    page, photograph or chart; auto: page or photograph, as the image looks
    given:   maps and models for channels that an image alone does not give: gaze, attention, fixations, relevance,
             previous, encoder and projection, as `build_channels` takes them. A texture that holds channels already
             is read as it is
    """

    name, description, capturable, grades = "channels", "all channels", True, True

    def __init__(self, *, weights: Path | str | None = None, kind: str = "auto", **given: Any) -> None:
        self.kind = check_choice("ChannelScorer", "kind", kind, ("auto", *IMAGE_KINDS))
        for name in given:
            check_choice("ChannelScorer", "argument", name, _INPUTS)
        self.form = load_form(weights)
        self.given = {name: value for name, value in given.items() if value is not None}
        self.capturable = not self.given  # a graph would keep the maps and the models of its first call

    def upright(self, number: int, frame: Frame) -> ChannelScorer:
        """The scorer of one image's upright picture: its maps are turned, too."""
        other = copy(self)
        other.given = {name: _upright(given, number, frame) for name, given in self.given.items()}
        return other

    def prepare(self, texture: Texture) -> ChannelReading:
        """The channels of the images; those whose input was not given are left out."""
        return ChannelReading(texture, channel_layers(texture, **self.given), {})

    def prepare_with(self, texture: Texture, channels: Texture) -> ChannelReading:
        """The same with channels that are known already, as a stream keeps them."""
        return ChannelReading(texture, channel_layers(texture, channels, **self.given), {})

    def score(self, prepared: ChannelReading, question: str | Question, maps: ImageMaps) -> tuple[Tensor, ImageMaps]:
        """A softmax over all cells, whether something was asked or not."""
        total = prepared.logits(self.form, maps, self.kinds(maps))
        if (asked := self._asked(prepared, question, maps)) is not None:
            total = total + asked.flatten(1)
        return total.softmax(1).view(maps.ink.shape), maps

    def terms(self, prepared: ChannelReading, question: str | Question, maps: ImageMaps) -> dict[str, Tensor]:
        """What each channel, salience and the question add to the logits: name → (B, h, w)."""
        features, names = prepared.features(maps), feature_names(known_channels(prepared.layers))
        found = self.form.terms(features, names, self.kinds(maps))
        if (asked := self._asked(prepared, question, maps)) is not None:
            found[QUESTION_TERM] = asked.flatten(1)
        return {name: part.view(maps.ink.shape) for name, part in found.items()}

    def kinds(self, maps: ImageMaps) -> Tensor:
        """(B,): the index of each image's kind."""
        if self.kind != "auto" or maps.photograph is None:
            kind = IMAGE_KINDS.index("page" if self.kind == "auto" else self.kind)
            return torch.full((len(maps.ink),), kind, device=maps.ink.device)
        return torch.where(maps.photograph, IMAGE_KINDS.index("photograph"), IMAGE_KINDS.index("page"))

    def _asked(self, prepared: ChannelReading, question: str | Question, maps: ImageMaps) -> Tensor | None:
        """(B, h, w): the question's own term; None if nothing was asked."""
        if isinstance(question, str) and not terms(question):
            return None
        term = torch.zeros_like(maps.salience)
        pages = self.kinds(maps) != IMAGE_KINDS.index("photograph")
        if can_capture(pages.device) or pages.any():  # finding out would wait
            term = term + QUESTION_WEIGHT * self._scout_ratio(prepared, question, maps) * pages[:, None, None]
        if (
            "encoder" in self.given
            and isinstance(question, str)
            and set(EMBEDDING_LAYERS) <= set(prepared.layers.names)
        ):
            term = term + COSINE_WEIGHT * self._cosine(prepared, question, maps)
        return term

    def _scout_ratio(self, prepared: ChannelReading, question: str | Question, maps: ImageMaps) -> Tensor:
        """The logarithm of how much likelier the scout finds each cell with the question than without.

        A ratio, because the channels already say what is usually asked about.
        """
        scout = load_scout(device=maps.ink.device)
        if "spots" not in prepared.kept:
            prepared.kept["spots"] = scout.read(prepared.image.mipmapped())
        spots, count = prepared.kept["spots"], maps.ink[0].numel()
        asked, usual = (
            log_density(on_cells(scout.where(spots, text), maps.ink) * count)
            for text in (question, nothing_asked(maps.ink.device))
        )
        return asked - usual

    def _cosine(self, prepared: ChannelReading, question: str, maps: ImageMaps) -> Tensor:
        """The cosine of each cell's embedding with the question's."""
        names = feature_names(known_channels(prepared.layers))
        here = [names.index(f"here.{name}") for name in EMBEDDING_LAYERS]
        reduced = prepared.features(maps)[..., here].movedim(-1, 1).unflatten(2, maps.grid)
        text = self.given["encoder"].text(question).to(reduced.device)
        similarity: Tensor = self.given["projection"].similarity(reduced, text)
        return similarity


def _upright(given: Any, number: int, frame: Frame) -> Any:
    """What was given for images, for the upright picture of one of them; models are for all of them."""
    if isinstance(given, Tensor) and given.dim() == 3:  # others are refused where they are used
        return frame.maps(given[number : number + 1])
    if not isinstance(given, Texture):
        return given
    if frame.angle:
        raise ValueError(f"ChannelScorer: previous must be upright, got one to be turned by {frame.angle:g}°")
    return given.split()[number]
