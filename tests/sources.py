"""The kernels in the CUDA sources, and the definitions that each source is compiled with."""

import re

from texturevlm.cuda.compiler import INCLUDE, SCALARS, read_source

PACKS = (1, 2, 4)
KERNEL = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(const __grid_constant__ (\w+)')
ELEMENT = re.compile(r"\bscalar[24]?\b")


def kernels(source: str) -> dict[str, str]:
    """The kernels of a source, each with the name of its parameter struct."""
    return dict(KERNEL.findall(read_source(source)))


def variants(source: str) -> list[dict[str, int]]:
    """The -D definitions that a source is compiled with: one set per element type, if it depends on that."""
    scalars = [{"SCALAR": bits} for bits in SCALARS.values()]
    if source == "texture.cu":
        return [{**scalar, "PACK": pack} for scalar in scalars for pack in PACKS]
    return scalars if _any_element_type(source) else scalars[:1]


def _any_element_type(name: str) -> bool:
    code = read_source(name)
    included = [header for header in INCLUDE.findall(code) if header != "scalar.cuh"]
    return ELEMENT.search(INCLUDE.sub("", code)) is not None or any(map(_any_element_type, included))
