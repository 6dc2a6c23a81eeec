"""Readers: the same text alone or among others, nothing read twice, and programs that die."""

import shutil
import stat

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from texturevlm_lab.evaluate import ocr
from texturevlm_lab.evaluate.ocr import _CHUNK, CachedOcr, RapidOcr, Tesseract, open_engines

installed = pytest.mark.skipif(shutil.which("tesseract") is None, reason="needs tesseract")


def line(text: str, height: int = 24) -> np.ndarray:
    image = Image.new("L", (20 + 14 * len(text), 2 * height), 255)
    ImageDraw.Draw(image).text((10, height // 2), text, fill=0, font=ImageFont.load_default(height))
    return np.asarray(image)


class Counting:
    name = "counting"

    def __init__(self):
        self.seen = []

    def read(self, crops):
        self.seen += [crop.copy() for crop in crops]
        return [f"{crop.shape} {int(crop.sum())}" for crop in crops]


@installed
def test_tesseract_reads_each_crop_as_if_it_were_alone():
    noise = np.random.default_rng(0).integers(0, 256, (40, 160), dtype=np.uint8)
    blank, colour = np.full((30, 90), 200, np.uint8), np.repeat(line("blue 42")[..., None], 3, 2)
    crops = [line("Invoice 1975"), blank, noise, line("$52.00"), np.zeros((1, 1), np.uint8), colour]
    reader = Tesseract()
    together = reader.read(crops)
    assert together == [reader.read([crop])[0] for crop in crops]
    assert "1975" in together[0] and "52.00" in together[3] and "42" in together[5]
    assert reader.name.startswith("tesseract 5") and reader.read([]) == []


@installed
def test_more_crops_than_one_process_reads():
    crops = [line(f"{number:03}") for number in range(_CHUNK + 3)]
    texts = Tesseract().read(crops)
    assert len(texts) == len(crops) and "003" in texts[3] and f"{_CHUNK + 1:03}" in texts[_CHUNK + 1]


def program(tmp_path, body: str) -> str:
    path = tmp_path / "tesseract"
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "tesseract 5.9"; exit 0; fi\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_crop_that_kills_the_program_is_read_as_nothing(tmp_path):
    """Files with the byte X make this one die; the others give their width."""
    body = (
        'sep=""; out=""; for f in $(cat "$1"); do grep -q X "$f" && kill -8 $$; '
        'out="$out$sep$(head -c 6 "$f" | tail -c 3)"; sep="@"; done; printf "%s" "$out" | tr @ "\\f"'
    )
    crops = [np.full((3, 100 + number), ord("X") if number in (2, 3) else 1, np.uint8) for number in range(6)]
    assert Tesseract(program(tmp_path, body)).read(crops) == ["100", "101", "", "", "104", "105"]


@pytest.mark.parametrize("body", ["echo broken >&2; exit 3", "printf 'one\\ftwo'"])
def test_a_program_that_fails_is_told(tmp_path, body):
    with pytest.raises(OSError, match="wanted texts of 1 crops"):
        Tesseract(program(tmp_path, body)).read([np.zeros((3, 3), np.uint8)])


def test_a_program_that_hangs_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(ocr, "TIMEOUT", 0.2)
    with pytest.raises(OSError, match=r"took more than 0\.2 s"):
        Tesseract(program(tmp_path, "exec sleep 5")).read([np.zeros((3, 3), np.uint8)])


def test_unknown_and_missing_readers(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="name must be one of auto, tesseract, rapidocr"):
        open_engines(["tesseract", "eyes"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="an installed tesseract 5"):
        open_engines(["tesseract"])
    old = tmp_path / "tesseract"
    old.write_text("#!/bin/sh\necho tesseract 4.1.1")
    old.chmod(0o755)
    with pytest.raises(ValueError, match="must be tesseract 5, got 'tesseract 4"):
        open_engines(["tesseract"])


def test_rapidocr_reads_lines():
    pytest.importorskip("rapidocr")
    reader = RapidOcr()
    texts = reader.read([line("Invoice 1975"), np.repeat(line("52.00")[..., None], 3, 2), np.zeros((2, 2), np.uint8)])
    assert "1975" in texts[0] and "52.00" in texts[1] and len(texts) == 3
    assert "recogniser on the crop alone" in reader.name


def test_auto_is_every_engine_that_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(ocr, "ENGINES", {"tesseract": Counting, "rapidocr": Counting})
    there = {"tesseract", "rapidocr"}
    monkeypatch.setattr(ocr.shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(ocr, "find_spec", lambda name: name if name in there else None)
    assert list(open_engines()) == ["tesseract", "rapidocr"]
    assert list(open_engines(["rapidocr", "auto"])) == ["rapidocr", "tesseract"]
    there.remove("tesseract")
    assert list(open_engines()) == ["rapidocr"]
    there.clear()
    with pytest.raises(ImportError, match="needs tesseract 5 on the PATH, or the extra ocr"):
        open_engines()
    with pytest.raises(ValueError, match="names must hold one of auto, tesseract, rapidocr, got none"):
        open_engines([])


def test_nothing_is_read_twice(tmp_path):
    crops = [np.full((2, 3), value, np.uint8) for value in (1, 2, 1)] + [np.full((3, 2), 1, np.uint8)]
    inner = Counting()
    reader = CachedOcr(inner, tmp_path / "deep" / "readings.jsonl")
    wanted = Counting().read(crops)
    assert reader.read(crops) == wanted and len(inner.seen) == 3
    again = Counting()
    assert CachedOcr(again, tmp_path / "deep" / "readings.jsonl").read(crops) == wanted and again.seen == []
    assert reader.name == "counting"


def test_another_reader_does_not_believe_what_the_first_one_read(tmp_path):
    crop = np.ones((2, 3), np.uint8)
    path = tmp_path / "readings.jsonl"
    CachedOcr(Counting(), path).read([crop])
    other = Counting()
    other.name = "other"
    CachedOcr(other, path).read([crop])
    assert len(other.seen) == 1


def test_half_a_line_of_readings_is_read_again(tmp_path):
    path = tmp_path / "readings.jsonl"
    crops = [np.full((2, 3), value, np.uint8) for value in (1, 2)]
    CachedOcr(Counting(), path).read(crops)
    path.write_bytes(path.read_bytes()[:-9])
    inner = Counting()
    assert CachedOcr(inner, path).read(crops) == Counting().read(crops) and len(inner.seen) == 1
    fresh = Counting()
    assert CachedOcr(fresh, path).read(crops) == Counting().read(crops)
    assert fresh.seen == []
    path.write_text('{"crop": 1}\n')
    with pytest.raises(ValueError, match=r"readings.jsonl:1: must be a crop and its text"):
        CachedOcr(Counting(), path)
