"""texturevlm: level of detail for vision-language models.

The public names are loaded when they are first used, so that `import texturevlm` does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from texturevlm import corpus, ops
    from texturevlm.allocate import ALLOCATORS, foveate
    from texturevlm.ask import VLM, attach, detach, load_vlm
    from texturevlm.placement import TokenConfig, choose_tokens, compile, place, prepare
    from texturevlm.rebuilding import rebuild
    from texturevlm.relevance import SCORERS
    from texturevlm.sampling import generate_mipmaps, sample, sample_foveated
    from texturevlm.types import Allocation, Patches, Texture
    from texturevlm.video.live import VideoStream

__version__ = "0.1.0"

# The public names by the module that they come from.
# docs/api.md has an example for each.
_NAMES = {
    "allocate": ("ALLOCATORS", "foveate"),
    "ask": ("VLM", "attach", "detach", "load_vlm"),
    "corpus": ("corpus",),
    "ops": ("ops",),
    "placement": ("choose_tokens", "compile", "place", "prepare", "TokenConfig"),
    "rebuilding": ("rebuild",),
    "relevance": ("SCORERS",),
    "sampling": ("generate_mipmaps", "sample", "sample_foveated"),
    "types": ("Allocation", "Patches", "Texture"),
    "video.live": ("VideoStream",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # so that a type checker reports unknown names

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'texturevlm' has no attribute {name!r}")
        path = _MODULES[name]
        module = importlib.import_module(f"texturevlm.{path}")
        globals()[name] = found = module if path == name else getattr(module, name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


__all__ = [
    "ALLOCATORS", "SCORERS", "VLM", "Allocation", "Patches", "Texture", "TokenConfig", "VideoStream", "attach",
    "choose_tokens", "compile", "corpus", "detach", "foveate", "generate_mipmaps", "load_vlm", "ops", "place",
    "prepare", "rebuild", "sample", "sample_foveated",
]  # fmt: skip
