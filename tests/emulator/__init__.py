"""Our kernels on a CPU: the real .cu files compiled by g++ against a small stand-in for CUDA, started by our launchers.

It shows what a GPU test would, but for speed and for what only hardware does (textures, half precision): wrong indices,
barriers in the wrong place, texels that nobody wrote. The real GPU tests stay the judge.
"""

import ctypes
import random
import subprocess
from pathlib import Path

from texturevlm.cuda.compiler import HEADERS, SOURCES, kernels

HERE = Path(__file__).parent
ENTRY = """
static {struct} {kernel}_parameters;
extern "C" void emulate_{kernel}(unsigned width, unsigned height, int threads, const void* from, unsigned seed) {{
    std::memcpy(&{kernel}_parameters, from, sizeof({struct}));
    emulator::run(width, height, threads, [] {{ {kernel}({kernel}_parameters); }}, seed);
}}
"""


class Emulator:
    """Compiles a source when it is first needed; `launch` takes the place of texturevlm.cuda.launch.launch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries: dict[str, ctypes.CDLL] = {}

    def launch(self, source, name, device, blocks, parameters, *, early=False, threads=256, **define) -> None:
        width, height = blocks if isinstance(blocks, tuple) else (blocks, 1)
        entry = getattr(self._library(source, define), f"emulate_{name}")
        entry(width, height, threads, parameters, random.getrandbits(31))

    def _library(self, source: str, define: dict[str, int]) -> ctypes.CDLL:
        flags = sorted(f"-D{name}={value}" for name, value in define.items() if name != "SCALAR")
        key = " ".join([source, *flags])
        if key not in self.libraries:
            entries = "".join(ENTRY.format(kernel=kernel, struct=struct) for kernel, struct in kernels(source).items())
            program = self.folder / f"{source}{len(self.libraries)}.cpp"
            program.write_text(f'#include "{HERE / "cuda_on_cpu.h"}"\n#include "{SOURCES[source]}"\n{entries}')
            built = program.with_suffix(".so")
            options = [
                "-O2",
                "-std=c++17",
                "-w",
                "-shared",
                "-fPIC",
                "-ffp-contract=off",
                "-DSCALAR=32",
                *flags,
                *sorted({f"-I{path.parent}" for path in HEADERS.values()}),
            ]
            subprocess.run(["g++", *options, "-o", built, program], check=True, capture_output=True, text=True)
            self.libraries[key] = ctypes.CDLL(str(built))
        return self.libraries[key]
