"""The channels: what each holds, how it is made and reduced, what it costs and needs, and its reach.

They hold what is known about an image without a question. The order is fixed: an index means the same in every texture
that holds all of them. To add one, add one row at the end. A function of more than a line gets a file of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor

from texturevlm.channels.structure import (
    COARSER_LEVEL,
    EDGES_REACH,
    HIGH_PASS_REACH,
    LOW_PASS_REACH,
    SALIENCY_LEVELS,
    SALIENCY_REACH,
    high_pass,
    low_pass,
    saliency,
)
from texturevlm.channels.text import TEXT_REACH, TEXT_SCALES
from texturevlm.ops import boundaries

EDGE_DISTANCE_LIMIT = 64  # pixels: distances are clamped to it, which also limits the reach of a pixel
EVERYWHERE = None
EMBEDDING_LAYERS = tuple(f"embedding_{index}" for index in range(16))


@dataclass(frozen=True)
class Channel:
    """One layer.

    layer:   its index among all of them
    holds:   what it is, in one sentence
    make:    computes it, (B, H, W), from the inputs of a build (`build.Source`)
    reduce:  how its mip levels are made: mean, max, min or nearest
    cost:    free (given, or known from positions alone), fast (small stencils), medium (several passes), model
    needs:   the argument of `build` without which it is zero; "" for nothing
    reach:   of a changed pixel, in texels of the level that the layer is built from; None: everywhere
    range:   its least and greatest value; (0, inf) for labels
    deepest: the coarsest level of colour that it reads, counted from the layer's own level
    use:     how the scorer `channels` uses it: trained (a learned weight), stated (a weight that no data could teach),
             regions (says which cells belong together) or question (compared with the question's embedding)
    """

    layer: int
    name: str
    holds: str
    make: Callable[[Any], Tensor]
    reduce: str = "mean"
    cost: str = "fast"
    needs: str = ""
    reach: int | None = 0
    range: tuple[float, float] = (0.0, 1.0)
    deepest: int = 0
    use: str = "trained"


def _embedding(index: int) -> Channel:
    holds = f"Number {index + 1} of 16 that dense image-text features are reduced to."
    options: Any = {"cost": "model", "needs": "encoder", "reach": EVERYWHERE, "range": (-1.0, 1.0), "use": "question"}
    return Channel(18 + index, EMBEDDING_LAYERS[index], holds, lambda source: source.embedding[:, index], **options)


_REGIONS: Any = {"cost": "medium", "reach": EVERYWHERE}
_ROWS = (
    Channel(0, "red", "The image's red.", lambda source: source.image[:, 0], cost="free"),
    Channel(1, "green", "The image's green.", lambda source: source.image[:, 1], cost="free"),
    Channel(2, "blue", "The image's blue.", lambda source: source.image[:, 2], cost="free"),
    Channel(3, "edges", "Dark structure on a lighter ground, whatever its contrast.",
            lambda source: source.polarity.clamp(min=0), reach=EDGES_REACH),
    Channel(4, "edges_inverted", "Light structure on a darker ground, whatever its contrast.",
            lambda source: (-source.polarity).clamp(min=0), reach=EDGES_REACH),
    Channel(5, "high_pass", "Fine detail.",
            lambda source: high_pass(source.image, source.levels), reach=HIGH_PASS_REACH),
    Channel(6, "low_pass", "Coarse structure.",
            lambda source: low_pass(source.image, source.levels), reach=LOW_PASS_REACH, deepest=COARSER_LEVEL),
    Channel(7, "motion", "How much a pixel changed since the previous frame.",
            lambda source: source.motion(), "max", needs="previous", use="stated"),
    Channel(8, "saliency", "What stands out from its surroundings.",
            lambda source: saliency(source.image, source.levels), reach=SALIENCY_REACH, deepest=SALIENCY_LEVELS[-1]),
    Channel(9, "x", "Position from left to right.", lambda source: source.position(-1), cost="free"),
    Channel(10, "y", "Position from top to bottom.", lambda source: source.position(-2), cost="free"),
    Channel(11, "eccentricity", "Distance from the image's centre; 1 in the corners.",
            lambda source: source.eccentricity(), cost="free"),
    Channel(12, "cluster_id", "Which of about 50 regions a pixel belongs to.",
            lambda source: source.regions.to(source.image.dtype), "nearest", range=(0.0, float("inf")),
            use="regions", **_REGIONS),
    Channel(13, "cluster_distance", "Distance from the centroid of the pixel's region, in longer image sides.",
            lambda source: source.region_facts[1], **_REGIONS),
    Channel(14, "cluster_size", "The region's share of the image.",
            lambda source: source.region_facts[0], "nearest", **_REGIONS),
    Channel(15, "previous_relevance", "The last frame's relevance.",
            lambda source: source.map("relevance"), cost="free", needs="relevance", use="stated"),
    Channel(16, "previous_saliency", "The last frame's saliency.",
            lambda source: source.before("saliency"), cost="free", needs="previous", use="stated"),
    Channel(17, "fixation_history", "Where the model has looked.",
            lambda source: source.map("fixations"), "max", "free", needs="fixations", use="stated"),
    *map(_embedding, range(16)),
    Channel(34, "edge_distance", f"Distance to the nearest edge, in units of {EDGE_DISTANCE_LIMIT} pixels.",
            lambda source: source.edge_distance(), "min", reach=EDGES_REACH + EDGE_DISTANCE_LIMIT),
    Channel(35, "previous_attention", "The attention of the layer or pass before.",
            lambda source: source.before("attention"), cost="free", needs="previous", use="stated"),
    Channel(36, "attention", "A model's attention now.",
            lambda source: source.map("attention"), cost="free", needs="attention", use="stated"),
    Channel(37, "gaze", "Where a person has looked.",
            lambda source: source.map("gaze"), "max", "free", needs="gaze", use="stated"),
    Channel(38, "boundaries", "Borders between regions.",
            lambda source: boundaries(source.regions, backend=source.backend), "max", **_REGIONS),
    Channel(39, "text", "Where text is.",
            lambda source: source.text_layer(), "max", reach=TEXT_REACH, deepest=TEXT_SCALES - 1),
)  # fmt: skip
CHANNELS: dict[str, Channel] = {channel.name: channel for channel in _ROWS}
PRESETS: dict[str, tuple[str, ...]] = {
    "mvp": (
        *("red", "green", "blue", "x", "y", "eccentricity", "edges", "edges_inverted"),
        *("high_pass", "low_pass", "motion", "saliency", "edge_distance"),
    ),
    "fast": tuple(name for name, channel in CHANNELS.items() if channel.cost in ("free", "fast")),
    "all": tuple(CHANNELS),
}


def resolve(channels: str | Sequence[str]) -> tuple[str, ...]:
    """The names of a preset, or the names given, checked."""
    if isinstance(channels, str):
        if channels not in PRESETS:
            known = ", ".join(PRESETS)
            raise ValueError(f"build: channels must be one of {known}, or a list of names, got {channels!r}")
        return PRESETS[channels]
    names = tuple(channels) if isinstance(channels, Sequence) else (channels,)
    unknown = [name for name in names if not isinstance(name, str) or name not in CHANNELS]
    if not unknown and names and len(set(names)) == len(names):
        return names
    got = f"{names}"
    if unknown:
        alike = get_close_matches(str(unknown[0]), [*CHANNELS, *PRESETS], 1)
        got = f"unknown {unknown[0]!r}" + (f" (did you mean {alike[0]}?)" if alike else "")
    every = [*(name for name in CHANNELS if name not in EMBEDDING_LAYERS), "embedding_0 … embedding_15"]
    wanted = f"different names of {', '.join(every)}, or a preset ({', '.join(PRESETS)})"
    raise ValueError(f"build: channels must be {wanted}; got {got}")
