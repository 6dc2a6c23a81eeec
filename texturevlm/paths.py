"""Names of files: what is a URL, what is an image, which images a folder holds."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif"}
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # C:/ is a path, and Path("https://…") drops a slash


def is_url(name: str | os.PathLike[str]) -> bool:
    return URL.match(os.fspath(name)) is not None


def image_paths(given: Sequence[Path], limit: int | None = None) -> list[Path]:
    """The files given, and the images in the folders given; at most `limit`, evenly spread."""
    paths: list[Path] = []
    for path in given:
        found = [path]
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file())
            if not found:
                raise ValueError(f"IMAGES must hold images ({' '.join(sorted(IMAGE_SUFFIXES))}), got none in {path}")
        paths += found
    if limit is None or limit >= len(paths):
        return paths
    return [paths[index * len(paths) // limit] for index in range(limit)]
