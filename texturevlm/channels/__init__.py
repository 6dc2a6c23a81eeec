"""Forty named layers of an image that do not depend on the question."""

from texturevlm.channels.build import build
from texturevlm.channels.embedding import DenseEncoder, Projection
from texturevlm.channels.registry import CHANNELS, PRESETS, Channel, resolve
from texturevlm.channels.segments import Segmenter

__all__ = ["CHANNELS", "PRESETS", "Channel", "DenseEncoder", "Projection", "Segmenter", "build", "resolve"]
