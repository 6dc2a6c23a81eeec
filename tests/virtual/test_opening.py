"""Texture.open: which files are read by pages, and what is said about those that cannot be."""

import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.virtual.conftest import SIZE
from texturevlm.virtual import build_pyramid, mips, open_paged, opening
from texturevlm.virtual.sources import TiffSource


def test_a_large_pyramid_is_opened_by_pages(pyramid):
    texture = tv.Texture.open(pyramid)
    assert texture.size == SIZE and texture.names == ("red", "green", "blue")
    assert texture.levels[0].shape == (1, 3, 1025, 1050) and len(texture.levels) == 11
    done = texture.pages.counters
    assert done.pages_read == 25 and 0 < done.bytes_read < os.path.getsize(pyramid) / 3
    assert texture.mipmapped() is texture and tv.Texture.open(str(pyramid)).size == SIZE


def test_a_small_pyramid_and_a_flat_tiff_are_read_whole(exact, tmp_path):
    path, pixels = exact
    texture = tv.Texture.open(path)
    assert texture.pages is None and texture.levels[0].shape[2:] == (700, 900)
    Image.fromarray(pixels).save(tmp_path / "flat.tif")
    assert tv.Texture.open(tmp_path / "flat.tif").pages is None


def test_without_the_extra_a_small_one_is_read_whole(exact, monkeypatch):
    monkeypatch.setattr(opening, "PAGED_PIXELS", 1000)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    assert tv.Texture.open(exact[0]).pages is None
    with pytest.raises(ImportError, match=r"pip install 'texturevlm\[large\]'"):
        open_paged(exact[0])


def test_a_flat_file_beyond_the_limit_says_how_to_make_a_pyramid(tmp_path, monkeypatch):
    Image.new("L", (400, 300)).save(tmp_path / "flat.png")
    monkeypatch.setattr("texturevlm.image.MAX_PIXELS", 400 * 300 - 1)
    with pytest.raises(ValueError, match=r"more than 119999; make it readable by pages: texturevlm pyramid .*flat"):
        tv.Texture.open(tmp_path / "flat.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match=r"has pixels beyond 119999; make it .*: texturevlm pyramid .*flat\.png"):
        tv.Texture.open(tmp_path / "flat.png")


def test_a_cut_file(exact, tmp_path):
    content = exact[0].read_bytes()
    for share in (0.3, 0.75, 0.9, 0.97, 0.999):
        (tmp_path / "cut.tif").write_bytes(content[: int(len(content) * share)])
        with pytest.raises(ValueError, match=r"cut\.tif is (cut: it reaches|not a TIFF file that can be read)"):
            open_paged(tmp_path / "cut.tif")


def test_a_damaged_page(exact, monkeypatch):
    monkeypatch.setattr(mips, "WHOLE_PIXELS", 200 * 300)
    path, _ = exact
    level = TiffSource(path)._levels[0]
    content = bytearray(path.read_bytes())
    content[level.dataoffsets[9] + 20 : level.dataoffsets[9] + 60] = bytes(40)
    path.write_bytes(content)
    texture = open_paged(path)
    whole = texture.pages.crop(0, (0, 0, 700, 900))
    texture.pages.fetch(dict.fromkeys(range(texture.pages.pages), 1.0))
    (error,) = texture.pages.counters.errors
    assert error.startswith(f"{path}: page at level 0, row 1, column 1 cannot be read: ")
    exactly = torch.from_numpy(exact[1]).permute(2, 0, 1)[None] / 255
    found = texture.pages.crop(0, (0, 0, 700, 900))
    same = torch.isclose(found, exactly, atol=1e-6).all(1)[0]
    assert not same[128:256, 128:256].all()
    same[128:256, 128:256] = True
    assert same.all() and not torch.equal(whole, found)


def test_strips_are_refused(tmp_path):
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "strips.tif")
    with pytest.raises(ValueError, match=r"must have tiles of grey or colour, got YXS .* in strips; make a pyramid"):
        open_paged(tmp_path / "strips.tif")


def test_a_file_that_may_not_be_read(exact, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", str(exact[0]))

    monkeypatch.setattr("texturevlm.virtual.ranges._Counted", refuse)
    with pytest.raises(PermissionError, match=r"small\.pyramid\.tif"):
        open_paged(exact[0])


def test_other_files(tmp_path):
    (tmp_path / "slide.svs").write_bytes(b"not a slide")
    with pytest.raises(ValueError, match=r"slide\.svs is not a slide that can be read"):
        tv.Texture.open(tmp_path / "slide.svs")
    (tmp_path / "map.vrt").write_text("not a map")
    with pytest.raises(ValueError, match=r"map\.vrt is not a map that can be read"):
        tv.Texture.open(tmp_path / "map.vrt")
    (tmp_path / "bad.tif").write_bytes(b"II*\0 and nothing else")
    with pytest.raises(ValueError, match=r"bad\.tif"):
        tv.Texture.open(tmp_path / "bad.tif")
    with pytest.raises(FileNotFoundError, match=r"no such file: .*none\.svs"):
        tv.Texture.open(tmp_path / "none.svs")
    with pytest.raises(ValueError, match="reader must be one of tiff, slide, map, got 'zarr'"):
        open_paged(tmp_path / "bad.tif", reader="zarr")


@pytest.mark.parametrize("reader", ["slide", "map"])
def test_three_readers_agree(tmp_path, reader, monkeypatch):
    pytest.importorskip({"slide": "openslide", "map": "rasterio"}[reader])
    monkeypatch.setattr(mips, "WHOLE_PIXELS", 300 * 300)
    y, x = np.mgrid[:1400, :1100]
    pixels = np.stack([x % 256, y % 256, (x + y) // 10 % 256], -1).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    path = build_pyramid(tmp_path / "a.png", lossless=reader == "map")
    one, other = open_paged(path), open_paged(path, reader=reader)
    assert one.size == other.size == (1400, 1100) and other.pages.counters.bytes_read > 0
    assert (one.levels[0] - other.levels[0]).abs().max() < 0.02
    allocation = tv.foveate(one.size, fixation=(500, 900), budget=40, patch=16)
    found = [tv.sample(texture, allocation).pixels for texture in (one, other)]
    assert (found[0] - found[1]).abs().mean() < 0.005
