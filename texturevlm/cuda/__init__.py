"""The CUDA runtime: compile a source with NVRTC, launch a kernel, capture a graph; no kernel of its own lives here.

compiler.py compiles a source, struct.py packs the parameters of a kernel as its source declares them, kernel.py
launches it, and graph.py records what was launched and plays it again.
"""

from texturevlm.cuda.compiler import LOWEST, add_sources, nvrtc_version
from texturevlm.cuda.graph import (
    WARM_UP_CALLS,
    BranchingReplay,
    Compiled,
    KeptReplays,
    Replay,
    can_capture,
    nothing_collected,
)
from texturevlm.cuda.kernel import MAX_LEVELS, THREADS, WARP, bind, checked, device_constant, launch, scalar_bits
from texturevlm.cuda.struct import HOLE, Layout, address, constants, template

__all__ = [
    "HOLE",
    "LOWEST",
    "MAX_LEVELS",
    "THREADS",
    "WARM_UP_CALLS",
    "WARP",
    "BranchingReplay",
    "Compiled",
    "KeptReplays",
    "Layout",
    "Replay",
    "add_sources",
    "address",
    "bind",
    "can_capture",
    "checked",
    "constants",
    "device_constant",
    "launch",
    "nothing_collected",
    "nvrtc_version",
    "scalar_bits",
    "template",
]
