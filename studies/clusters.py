"""How well superpixels follow the edges of an image, beside scikit-image's SLIC.

    python -m studies.clusters IMAGE… --out DIR

Edges are Canny's (sigma 2). Recall: the share of them with a border between regions within two pixels. Precision: the
share of borders with an edge that near. More borders raise recall, so their share of the pixels is reported too.
Needs scikit-image (extra `dev`).
"""

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.study import command_parser, run_study, write_study
from texturevlm.image import to_tensor
from texturevlm.ops.segment import boundaries, superpixels

COUNT = 50
NEAR = 2  # pixels
REPEATS = 5


def measure(path: Path, side: int) -> list[dict[str, Any]]:
    """Rows for one image, scaled to `side` pixels along its longer side."""
    from skimage import feature, segmentation, transform

    image = to_tensor(path)[0].permute(1, 2, 0).numpy()
    scale = side / max(image.shape[:2])
    image = transform.rescale(image, scale, channel_axis=2, anti_aliasing=scale < 1).astype(np.float32)
    edges = feature.canny(image.mean(2), sigma=2)
    tensor = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None]
    methods: dict[str, Callable[[], np.ndarray]] = {
        "superpixels": lambda: superpixels(tensor, count=COUNT)[0].numpy(),
        "scikit-image, connectivity off": lambda: segmentation.slic(
            image, n_segments=COUNT, enforce_connectivity=False, start_label=0
        ),
        "scikit-image": lambda: segmentation.slic(image, n_segments=COUNT, start_label=0),
    }
    rows = []
    for name, method in methods.items():
        milliseconds, ids = _timed(method)
        borders = boundaries(torch.from_numpy(np.ascontiguousarray(ids)).int()[None])[0].numpy() > 0
        rows.append(
            {
                "image": path.name,
                "side": side,
                "method": name,
                "regions": len(np.unique(ids)),
                "recall": float(_grown(borders)[edges].mean()),
                "precision": float(_grown(edges)[borders].mean()),
                "borders": float(borders.mean()),
                "milliseconds": milliseconds,
            }
        )
    return rows


def _timed(method: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    """The median time of a call, and what it gave."""
    ids = method()
    samples = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        method()
        samples.append((time.perf_counter() - started) * 1e3)
    return statistics.median(samples), ids


def _grown(mask: np.ndarray) -> np.ndarray:
    """Everything within NEAR pixels of a mask, along both axes."""
    window = 2 * NEAR + 1
    pooled = torch.nn.functional.max_pool2d(torch.from_numpy(mask).float()[None, None], window, 1, NEAR)
    return pooled[0, 0].numpy() > 0


def report(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        "# Superpixels beside scikit-image's SLIC",
        "",
        f"`python -m studies.clusters`, {platform.machine()} CPU, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}; {COUNT} regions wanted, edges within {NEAR} pixels, median of {REPEATS} calls.",
        "",
        "| image | side | method | regions | recall | precision | borders | ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['image']} | {row['side']} | {row['method']} | {row['regions']} | {row['recall']:.3f} | "
            f"{row['precision']:.3f} | {row['borders']:.1%} | {row['milliseconds']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def study(options: argparse.Namespace, command: str) -> None:
    rows = [row for path in options.images for side in (512, 1024) for row in measure(path, side)]
    print(write_study(options.out, "clusters", rows, report))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("studies.clusters", __doc__)
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    return run_study(parser, arguments, study)


if __name__ == "__main__":
    sys.exit(main())
