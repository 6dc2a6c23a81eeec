"""Forty named layers of an image that do not depend on the question.

registry.py lists them and says what each holds; build.py makes them, by our kernels (fused.py) or by the functions of
structure.py, text.py, segments.py and embedding.py. pretrained.py loads the models that some of them need.
"""

from texturevlm.channels.build import MOST_TEXELS, build
from texturevlm.channels.embedding import DenseEncoder, Projection, embed
from texturevlm.channels.fused import IN_PARTS, TEXT_LEVELS, LayersInPlace, coarse_layers, text_layer
from texturevlm.channels.pretrained import HUB_OPTIONS, Checkpoint, load_rapidocr, optional, torch_device
from texturevlm.channels.registry import CHANNELS, EMBEDDING_LAYERS, PRESETS, Channel, resolve
from texturevlm.channels.segments import Segmenter
from texturevlm.channels.structure import (
    COARSER_LEVEL,
    box_mean,
    centre_prior,
    colour_levels,
    enlarge,
    grey_levels,
    highest,
    luma,
    saliency,
)
from texturevlm.channels.text import TEXELS, TEXT_HALF, TEXT_SCALES, text_lines, text_map

__all__ = [
    "CHANNELS",
    "COARSER_LEVEL",
    "EMBEDDING_LAYERS",
    "HUB_OPTIONS",
    "IN_PARTS",
    "MOST_TEXELS",
    "PRESETS",
    "TEXELS",
    "TEXT_HALF",
    "TEXT_LEVELS",
    "TEXT_SCALES",
    "Channel",
    "Checkpoint",
    "DenseEncoder",
    "LayersInPlace",
    "Projection",
    "Segmenter",
    "box_mean",
    "build",
    "centre_prior",
    "coarse_layers",
    "colour_levels",
    "embed",
    "enlarge",
    "grey_levels",
    "highest",
    "load_rapidocr",
    "luma",
    "optional",
    "resolve",
    "saliency",
    "text_layer",
    "text_lines",
    "text_map",
    "torch_device",
]
