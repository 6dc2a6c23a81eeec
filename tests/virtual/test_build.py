"""texturevlm pyramid: what is written, that it is complete or not there, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from texturevlm.cli import main
from texturevlm.virtual import build_pyramid
from texturevlm.virtual.mips import MipPages
from texturevlm.virtual.sources import PageKey, TiffSource

pyvips = pytest.importorskip("pyvips")
pytest.importorskip("imagecodecs")


def pixels_of(path):
    source = TiffSource(path)
    mips = MipPages(source)
    (rows, columns), (height, width) = mips.grid(0), mips.size
    keys = [PageKey(0, row, column) for row in range(rows) for column in range(columns)]
    pages = {key: texels.numpy() for key, texels in mips.read(keys)}
    lines = [np.concatenate([pages[PageKey(0, row, column)] for column in range(columns)], 1) for row in range(rows)]
    return np.concatenate(lines)[:height, :width]


def test_levels_and_pages_of_a_lossless_pyramid(exact):
    path, pixels = exact
    source = TiffSource(path)
    assert [level.size for level in source.levels] == [(700, 900), (350, 450), (175, 225), (87, 112)]
    assert {level.page for level in source.levels} == {(128, 128)}
    assert np.array_equal(pixels_of(path), pixels)


def test_jpeg_pages_have_the_right_colours(tmp_path):
    y, x = np.mgrid[:300, :400]
    pixels = np.stack([x * 255 // 399, y * 255 // 299, 255 - x * 255 // 399], -1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "ramp.png")
    for quality in (75, 95):  # chroma at half size, and red, green, blue as they are
        found = pixels_of(build_pyramid(tmp_path / "ramp.png", quality=quality))
        assert np.abs(found.astype(int) - pixels).mean() < 2.5


def test_every_kind_of_image_becomes_upright_colours_over_white(tmp_path):
    grey = np.arange(200 * 300, dtype=np.uint32).reshape(200, 300) % 256
    kinds = {
        "grey.png": (Image.fromarray(grey.astype(np.uint8)), np.repeat(grey[..., None], 3, 2)),
        "deep.png": (Image.fromarray((grey * 257).astype(np.uint16)), np.repeat(grey[..., None], 3, 2)),
        "clear.png": (Image.new("RGBA", (300, 200), (9, 9, 9, 0)), np.full((200, 300, 3), 255)),
    }
    for name, (image, wanted) in kinds.items():
        image.save(tmp_path / name)
        found = pixels_of(build_pyramid(tmp_path / name, lossless=True)).astype(int)
        assert np.abs(found - wanted).max() <= 1, name
    turned = Image.fromarray(np.full((200, 300, 3), 200, np.uint8))
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert TiffSource(build_pyramid(tmp_path / "turned.jpg")).levels[0].size == (300, 200)


def test_a_damaged_file_leaves_nothing_behind_and_an_older_pyramid_alone(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (800, 800, 3), np.uint8)).save(tmp_path / "good.jpg")
    content = (tmp_path / "good.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(content[: len(content) // 2])
    out = tmp_path / "out.tif"
    out.write_bytes(b"older")
    with pytest.raises(ValueError, match=r"cut\.jpg cannot be made a pyramid at .*out\.tif"):
        build_pyramid(tmp_path / "cut.jpg", out)
    assert out.read_bytes() == b"older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.jpg", "good.jpg", "out.tif"]


def test_the_file_can_be_read_by_whom_others_can(exact):
    mask = os.umask(0)
    os.umask(mask)
    assert exact[0].stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["{}/small.png", "--out", "{}/small.png"], "out must end in .tif"),
        (["{}/small.png", "--out", "{}/nowhere/x.tif"], "--out must be in a folder that exists"),
        (["{}/small.png", "--page", "250"], "page must be a multiple of 16, got 250"),
        (["{}/small.png", "--page", "16"], "page must be between 64 and 1024, got 16"),
        (["{}/small.png", "--quality", "101"], "quality must be between 1 and 100, got 101"),
        (["{}/small.pyramid.tif", "--out", "{}/small.pyramid.tif"], "out must be another file than the source"),
        (["{}/text.txt"], "text.txt cannot be read"),
    ],
)
def test_mistakes_on_the_command_line(exact, tmp_path, capsys, options, said):
    (tmp_path / "text.txt").write_text("not an image")
    before = sorted(tmp_path.iterdir())
    assert main(["pyramid", *(option.format(tmp_path) for option in options)]) == 2
    assert said in capsys.readouterr().err and sorted(tmp_path.iterdir()) == before


def test_without_the_extra_it_is_named(exact, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "pyvips", None)
    assert main(["pyramid", str(exact[0].parent / "small.png")]) == 2
    assert "pip install 'texturevlm[large]'" in capsys.readouterr().err


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch, capsys):
    Image.new("RGB", (50, 50)).save(tmp_path / "a.png")

    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("texturevlm.virtual.build.tempfile.mkstemp", refuse)
    assert main(["pyramid", str(tmp_path / "a.png")]) == 2
    assert "Permission denied" in capsys.readouterr().err
    assert [path.name for path in Path(tmp_path).iterdir()] == ["a.png"]
