"""The CUDA runtime: compile a source with NVRTC, launch a kernel, capture a graph; no kernel of its own lives here."""

from texturevlm.cuda.compiler import add_sources

__all__ = ["add_sources"]
