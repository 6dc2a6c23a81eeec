"""A picture: an image as tokens are placed in it, upright, and enlarged where a model wants finer print.

What was found in an image whatever is asked (its angle, its maps, what scorers read) is kept beside it, so that the
next question costs only the question.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from texturevlm.cuda import can_capture
from texturevlm.frame import Frame, TextRegion, upright_frame
from texturevlm.ops import backend as backends
from texturevlm.placement.config import TokenConfig
from texturevlm.placement.sources import open_image
from texturevlm.relevance import Prepared, find_regions, find_scorer, find_turn_and_read
from texturevlm.scout import Spots
from texturevlm.types import COLOURS, Texture

TIMES = 2  # that an image is enlarged
SMALL = 1_250_000  # pixels: pages with fewer have print of ten pixels and less
FOUND_BY = ("scout", "prior")  # scorers that the scout's reading serves


@dataclass(eq=False)
class Findings:
    """What was found in one image, for all pictures of it.

    turn: the angle of its text, and what the scout read when it was found
    pictures: by angle and enlargement, the last two
    """

    samples: int = 0
    turn: tuple[float, Spots | None] | None = None
    pictures: dict[tuple[float | str, int, int], Picture] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Picture:
    """An image as tokens are placed in it.

    original: the image as it was given
    texture:  what tokens are placed in and sampled from
    frame:    of the texture in the original
    regions:  of the texture, whose text has another angle
    memo:     maps and readings of the texture, from which relevance is made
    findings: shared by all pictures of the image
    """

    original: Texture
    texture: Texture
    frame: Frame
    regions: tuple[TextRegion, ...]
    memo: Prepared
    findings: Findings

    @classmethod
    def of_frame(cls, given: Tensor, upright: Tensor, frame: Frame, patch: int) -> Picture:
        """A frame of a video. given, upright: (1, 3, H, W) bytes, as the camera saw it and turned upright"""
        original, texture = (Texture((image.float() / 255,)) for image in (given, upright))
        return cls(original, texture, frame, (), Prepared(texture, patch=patch), Findings())

    @property
    def patch(self) -> int:
        """Side of a token in samples."""
        return self.memo.patch

    @property
    def most_tokens(self) -> int:
        """The tokens that show the texture at its own resolution; more add nothing."""
        height, width = self.texture.size
        return -(-height // self.patch) * -(-width // self.patch)

    @property
    def held(self) -> list[Any]:
        """All tensors that the picture and its memo hold, nested."""
        readings = [reading for _, reading in self.memo.readings.values()]
        maps = self.memo.__dict__.get("maps", ())
        return [self.original.levels, self.texture.levels, readings, tuple(maps), self.findings.turn]

    def to(self, device: torch.device) -> Picture:
        """The picture on another device; what scorers read there is read again, but for OCR's words."""
        if self.texture.device == device:
            return self
        original = _kept(self.original.to(device), self.findings.samples)
        if self.frame.is_whole:
            memo = self.memo.moved(original)
            return replace(self, original=original, texture=original, memo=memo, findings=Findings())
        texture = _kept(self.frame.show(original).mipmapped(), self.findings.samples)
        regions = tuple(TextRegion(region.angle, region.cells.to(device)) for region in self.regions)
        memo = Prepared(texture, patch=self.patch)
        return Picture(original, texture, self.frame, regions, memo, Findings(self.findings.samples))


def prepare(
    image: Any,
    how: TokenConfig | None = None,
    *,
    device: torch.device | str | None = None,
    samples: int = 0,
    angle: float | None = None,
) -> Picture:
    """Prepare an image for any number of questions.

    image:   what `Texture.open` takes, one image; or a Picture, which is prepared again where `how` asks for another
             frame; what was found in it is kept
    how:     its turn, finer and patch say how the picture lies; None: the defaults
    device:  where the picture is to be; None: where the image is
    samples: that all questions will take; where the measured crossover says that it pays, the texture is kept in the
             texture units
    angle:   of the text, where it was found already and `how` asks for it to be found
    """
    how = TokenConfig.of("prepare", how)
    if isinstance(image, Picture):
        picture = image if device is None else image.to(torch.device(device))
        original, findings = picture.original, picture.findings
    else:
        texture = image if isinstance(image, Texture) else open_image(image)
        if texture.batch != 1:
            raise ValueError(f"prepare: image must be one image, got a batch of {texture.batch}")
        texture = texture if device is None else texture.to(torch.device(device))
        original, findings = _kept(texture.mipmapped(), samples), Findings(samples)
    if angle is not None:
        findings.turn = angle, None
    plain = original.pages is None and original.names == COLOURS
    grows = plain and how.finer.most > 1 and prod(original.size) <= SMALL
    key = how.turn, TIMES if grows else 1, how.patch
    found = findings.pictures.get(key)
    if found is None:
        found = _picture(original, findings, *key)
        for oldest in list(findings.pictures)[:-1]:  # another thread may be here, too
            findings.pictures.pop(oldest, None)
        findings.pictures[key] = found
    return found


def _picture(original: Texture, findings: Findings, turn: float | str, times: int, patch: int) -> Picture:
    if not isinstance(turn, str):
        return _shown(original, findings, turn, times, patch)
    if findings.turn is None:
        findings.turn = find_turn_and_read(original)
    angle, spots = findings.turn
    found = _shown(original, findings, angle, times, patch)
    # The scout's reading serves its scorers; not where a graph reads anew for less.
    if spots is not None and not can_capture(spots.text.device) and times == 1:
        for name in FOUND_BY:
            found.memo.keep(find_scorer("prepare", name), spots)
    return replace(found, regions=tuple(find_regions(found.texture)))


def _shown(original: Texture, findings: Findings, angle: float, times: int, patch: int) -> Picture:
    frame = upright_frame(original, angle, times)
    texture = original if frame.is_whole else _kept(frame.show(original).mipmapped(), findings.samples)
    return Picture(original, texture, frame, (), Prepared(texture, patch=patch), findings)


def _kept(texture: Texture, samples: int) -> Texture:
    """A texture in the texture units, if so many samples pay for that."""
    finest = texture.levels[0]
    if texture.pages is not None or texture.resident is not None or backends.no_kernel_because(finest):
        return texture
    return texture.on_device() if backends.texture_pays(finest, samples) else texture
