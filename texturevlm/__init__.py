"""texturevlm: level of detail for vision-language models."""

from texturevlm import ops
from texturevlm.allocate import foveate
from texturevlm.rebuild import rebuild, resized
from texturevlm.sample import generate_mipmaps, sample, sample_foveated
from texturevlm.types import Allocation, Patches, Texture

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Patches",
    "Texture",
    "foveate",
    "generate_mipmaps",
    "ops",
    "rebuild",
    "resized",
    "sample",
    "sample_foveated",
]
