"""texturevlm: level of detail for vision-language models.

The public names are loaded when they are first used, so that `import texturevlm` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from texturevlm import corpus, ops
    from texturevlm.allocate import ALLOCATORS, foveate
    from texturevlm.ask import VLM, attach, detach, load_vlm
    from texturevlm.ask.processor import TextureProcessor
    from texturevlm.channels import CHANNELS
    from texturevlm.channels import build as build_channels
    from texturevlm.pages import choose_pages
    from texturevlm.placement import TokenConfig, choose_tokens, compile, place, prepare
    from texturevlm.rebuilding import rebuild, resized
    from texturevlm.relevance import SCORERS, Balance, Relevance, find_relevance, image_maps, read_page
    from texturevlm.sampling import generate_mipmaps, sample, sample_foveated
    from texturevlm.scout import load_scout
    from texturevlm.types import Allocation, Patches, Texture
    from texturevlm.video.live import VideoStream

__version__ = "0.1.0"

# The public names by the module that they come from; "name:other" is called other there.
# docs/api.md has an example for each.
_NAMES = {
    "allocate": ("ALLOCATORS", "foveate"),
    "ask": ("VLM", "attach", "detach", "load_vlm"),
    "ask.processor": ("TextureProcessor",),
    "channels": ("CHANNELS", "build_channels:build"),
    "corpus": ("corpus",),
    "ops": ("ops",),
    "pages": ("choose_pages",),
    "placement": ("choose_tokens", "compile", "place", "prepare", "TokenConfig"),
    "rebuilding": ("rebuild", "resized"),
    "relevance": ("SCORERS", "Balance", "Relevance", "find_relevance", "image_maps"),
    "relevance.ocr": ("read_page",),
    "sampling": ("generate_mipmaps", "sample", "sample_foveated"),
    "scout": ("load_scout",),
    "types": ("Allocation", "Patches", "Texture"),
    "video.live": ("VideoStream",),
}
_MODULES = {name.partition(":")[0]: (module, name.rpartition(":")[2]) for module in _NAMES for name in _NAMES[module]}

if not TYPE_CHECKING:  # so that a type checker reports unknown names

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'texturevlm' has no attribute {name!r}")
        path, attribute = _MODULES[name]
        module = importlib.import_module(f"texturevlm.{path}")
        globals()[name] = found = module if path == name else getattr(module, attribute)
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
    "TokenConfig",
    "VideoStream",
    "attach",
    "build_channels",
    "choose_pages",
    "choose_tokens",
    "compile",
    "corpus",
    "detach",
    "find_relevance",
    "foveate",
    "generate_mipmaps",
    "image_maps",
    "load_scout",
    "load_vlm",
    "ops",
    "place",
    "prepare",
    "read_page",
    "rebuild",
    "resized",
    "sample",
    "sample_foveated",
]
