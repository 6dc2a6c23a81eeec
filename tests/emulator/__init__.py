"""Our kernels on a CPU: the real .cu files compiled by g++ against a small stand-in for CUDA, started by our launchers.

It shows what a GPU test would, but for speed and for what only hardware does (textures, half precision): wrong indices,
barriers in the wrong place, texels that nobody wrote. The real GPU tests stay the judge.
"""

import ctypes
import random
import subprocess
from pathlib import Path

from texturevlm.ops.cuda.compiler import SOURCES

HERE = Path(__file__).parent
# Which struct each kernel takes. texture.cu is not here: texture units cannot be stood in for.
PARAMETERS = {
    "mip.cu": {"mip_even": "Mip", "mip_any": "Mip", "mip_more": "Mip", "mip_backward": "MipBackward"},
    "lookup.cu": {"lookup": "Lookup", "lookup_backward": "Lookup"},
    "patches.cu": {"sample_patches": "PatchJob", "refresh_patches": "Refresh", "sample_patches_backward": "PatchJob"},
    "distance.cu": {"distance_rows": "Field", "distance_columns": "Field", "distance_within": "Within"},
    "segment.cu": {
        "superpixels_refine": "Segments",
        "superpixels_assign": "Segments",
        "region_sums": "Regions",
        "boundaries": "Regions",
    },
    "channels.cu": {"channels_near": "Near", "channels_regions": "RegionLayers"},
    "coarse.cu": {"channels_coarse": "Coarse", "channels_text": "TextLayer"},
    "text.cu": {"text_strokes": "Text", "text_letters": "Text", "text_lines": "Text"},
    "text_tiles.cu": {"text_tiles": "TextTiles"},
    "select.cu": {"select_sums": "Select", "select_tokens": "Select", "select_best": "Select"},
    "information.cu": {"information_losses": "Losses", "information_maps": "Maps"},
    "cover.cu": dict.fromkeys(("cover_begin", "cover_spans", "cover_gains", "cover_reach", "cover_tokens"), "Cover"),
    "density.cu": dict.fromkeys(("density_scale", "density_rows", "density_table", "density_tiles"), "Density"),
    "change.cu": {"change_measure": "Measure", "change_take": "Take", "change_post": "Post"},
    "change_decide.cu": {"change_decide": "Decide", "change_learn": "Learn"},
    "scout_seen.cu": {"scout_seen": "Seen"},
    "scout_question.cu": {"scout_words": "Asked", "scout_films": "Asked"},
    "scout_spots.cu": {"scout_inputs": "Inputs", "scout_along": "Inputs"},
    "scout.cu": {"scout_film": "Film", "scout_lift": "Lift", "scout_scores": "Tail", "scout_chance": "Tail"},
}
ENTRY = """
static {struct} {kernel}_parameters;
extern "C" void emulate_{kernel}(unsigned width, unsigned height, int threads, const void* from, unsigned seed) {{
    std::memcpy(&{kernel}_parameters, from, sizeof({struct}));
    emulator::run(width, height, threads, [] {{ {kernel}({kernel}_parameters); }}, seed);
}}
"""


class Emulator:
    """Compiles a source when it is first needed; `launch` takes the place of texturevlm.ops.cuda.launch.launch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.libraries: dict[str, ctypes.CDLL] = {}

    def launch(self, source, name, device, blocks, parameters, *, early=False, threads=256, **define) -> None:
        width, height = blocks if isinstance(blocks, tuple) else (blocks, 1)
        entry = getattr(self._library(source), f"emulate_{name}")
        entry(width, height, threads, parameters, random.getrandbits(31))

    def _library(self, source: str) -> ctypes.CDLL:
        if source not in self.libraries:
            entries = "".join(
                ENTRY.format(kernel=kernel, struct=struct) for kernel, struct in PARAMETERS[source].items()
            )
            program = self.folder / f"{source}.cpp"
            program.write_text(f'#include "{HERE / "cuda_on_cpu.h"}"\n#include "{SOURCES / source}"\n{entries}')
            built = program.with_suffix(".so")
            options = [
                "-O2",
                "-std=c++17",
                "-w",
                "-shared",
                "-fPIC",
                "-ffp-contract=off",
                "-DSCALAR=32",
                f"-I{SOURCES}",
            ]
            subprocess.run(["g++", *options, "-o", built, program], check=True, capture_output=True, text=True)
            self.libraries[source] = ctypes.CDLL(str(built))
        return self.libraries[source]
