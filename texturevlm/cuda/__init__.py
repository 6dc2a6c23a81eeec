"""The CUDA runtime: compile a source with NVRTC, launch a kernel, capture a graph; no kernel of its own lives here."""
