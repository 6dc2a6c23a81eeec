"""A file of 17 million pixels, large enough to be opened by pages, written once."""

import shutil

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from texturevlm.virtual import build_pyramid

SIZE = (4100, 4200)  # height, width
WORDS = (3000, 2600)  # x, y of the only words


@pytest.fixture(scope="session")
def flat(tmp_path_factory):
    """Paper, grey blocks of lines, and a few words."""
    pytest.importorskip("pyvips")
    path = tmp_path_factory.mktemp("large") / "flat.png"
    image = Image.new("RGB", SIZE[::-1], (246, 244, 240))
    draw = ImageDraw.Draw(image)
    for y in range(300, 1500, 40):
        draw.rectangle([400, y, 2000, y + 8], fill=(120, 120, 130))
    draw.text(WORDS, "Total amount due: 4711 EUR", fill=(0, 0, 0), font=ImageFont.load_default(48))
    image.save(path, compress_level=1)
    return path


@pytest.fixture(scope="session")
def pyramid(flat):
    pytest.importorskip("imagecodecs")
    return build_pyramid(flat)


@pytest.fixture(scope="session")
def _exact(tmp_path_factory):
    pytest.importorskip("pyvips")
    folder = tmp_path_factory.mktemp("exact")
    pixels = np.random.default_rng(3).integers(0, 256, (700, 900, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "small.png")
    build_pyramid(folder / "small.png", page=128, lossless=True)
    return folder, pixels


@pytest.fixture
def exact(_exact, tmp_path):
    """A small lossless pyramid in a folder of its own, and its pixels (H, W, 3)."""
    folder, pixels = _exact
    for path in folder.iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path / "small.pyramid.tif", pixels
