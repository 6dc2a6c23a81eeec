"""texturevlm: level of detail for vision-language models."""

from texturevlm import ops
from texturevlm.allocate import foveate
from texturevlm.ask import attach, load_vlm
from texturevlm.capture import compile
from texturevlm.pipeline import choose_tokens
from texturevlm.rebuild import rebuild, resized
from texturevlm.relevance import Balance, Relevance
from texturevlm.sample import generate_mipmaps, sample, sample_foveated
from texturevlm.types import Allocation, Patches, Texture

__version__ = "0.1.0"

__all__ = [
    "Allocation",
    "Balance",
    "Patches",
    "Relevance",
    "Texture",
    "attach",
    "choose_tokens",
    "compile",
    "foveate",
    "generate_mipmaps",
    "load_vlm",
    "ops",
    "rebuild",
    "resized",
    "sample",
    "sample_foveated",
]
