"""The measurement of superpixels runs on any image and knows a border when it sees one."""

import json

import pytest
from PIL import Image

from studies import clusters

pytest.importorskip("skimage")


def test_two_halves_are_found_by_every_method(tmp_path, capsys):
    image = Image.new("RGB", (96, 64), "black")
    image.paste("white", (48, 0, 96, 64))
    image.save(tmp_path / "halves.png")
    assert clusters.main([str(tmp_path / "halves.png"), "--out", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "clusters.json").read_text())
    assert {row["side"] for row in rows} == {512, 1024}
    assert all(row["recall"] == 1 for row in rows if row["method"] == "superpixels")
    assert "| superpixels |" in capsys.readouterr().out


def test_a_missing_image_is_one_line(tmp_path, capsys):
    assert clusters.main([str(tmp_path / "none.png"), "--out", str(tmp_path / "out")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
