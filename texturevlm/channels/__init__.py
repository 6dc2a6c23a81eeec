"""What is there: forty named layers that a question cannot change, stored where they are looked up."""

from texturevlm.channels.build import build
from texturevlm.channels.embedding import DenseEncoder, Projection
from texturevlm.channels.registry import CHANNELS, PRESETS, Channel, resolve
from texturevlm.channels.segments import Segmenter

__all__ = ["CHANNELS", "PRESETS", "Channel", "DenseEncoder", "Projection", "Segmenter", "build", "resolve"]
