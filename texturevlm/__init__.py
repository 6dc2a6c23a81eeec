"""texturevlm: level of detail for vision-language models.

The public names are loaded when they are first used, so that `import texturevlm` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from texturevlm import ops
    from texturevlm.allocate import ALLOCATORS, foveate
    from texturevlm.ask import VLM, attach, detach, load_vlm
    from texturevlm.ask.processor import TextureProcessor
    from texturevlm.capture import compile
    from texturevlm.channels import CHANNELS
    from texturevlm.channels.build import build as build_channels
    from texturevlm.pipeline import choose_tokens
    from texturevlm.rebuilding import rebuild, resized
    from texturevlm.relevance import SCORERS, Balance, Relevance, find_relevance, prepare
    from texturevlm.relevance.ocr import read_page
    from texturevlm.sampling import generate_mipmaps, sample, sample_foveated
    from texturevlm.scout import load_scout
    from texturevlm.types import Allocation, Patches, Texture
    from texturevlm.video import VideoStream

__version__ = "0.1.0"

# The module that each public name comes from, and its name there if that is another.
# docs/api.md has an example for each.
_MODULES = {
    "ALLOCATORS": "allocate",
    "Allocation": "types",
    "Balance": "relevance",
    "CHANNELS": "channels",
    "Patches": "types",
    "Relevance": "relevance",
    "SCORERS": "relevance",
    "Texture": "types",
    "TextureProcessor": "ask.processor",
    "VLM": "ask",
    "VideoStream": "video",
    "attach": "ask",
    "build_channels": "channels.build:build",
    "choose_tokens": "pipeline",
    "compile": "capture",
    "detach": "ask",
    "find_relevance": "relevance",
    "foveate": "allocate",
    "generate_mipmaps": "sampling",
    "load_scout": "scout",
    "load_vlm": "ask",
    "ops": "ops",
    "prepare": "relevance",
    "read_page": "relevance.ocr",
    "rebuild": "rebuilding",
    "resized": "rebuilding",
    "sample": "sampling",
    "sample_foveated": "sampling",
}

if not TYPE_CHECKING:  # so that a type checker reports unknown names

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'texturevlm' has no attribute {name!r}")
        path, _, attribute = _MODULES[name].partition(":")
        module = importlib.import_module(f"texturevlm.{path}")
        globals()[name] = found = module if path == name else getattr(module, attribute or name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


__all__ = [
    "ALLOCATORS",
    "CHANNELS",
    "SCORERS",
    "VLM",
    "Allocation",
    "Balance",
    "Patches",
    "Relevance",
    "Texture",
    "TextureProcessor",
    "VideoStream",
    "attach",
    "build_channels",
    "choose_tokens",
    "compile",
    "detach",
    "find_relevance",
    "foveate",
    "generate_mipmaps",
    "load_scout",
    "load_vlm",
    "ops",
    "prepare",
    "read_page",
    "rebuild",
    "resized",
    "sample",
    "sample_foveated",
]
