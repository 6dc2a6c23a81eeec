"""The study of merged tokens, on a page and a small reader with random weights; and its arithmetic."""

import json

import torch

from tests.allocate.test_hierarchies import photo, relevance_at
from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm.allocate.plain import resize
from texturevlm.types import Allocation
from texturevlm_lab.studies import merged
from texturevlm_lab.train.reader.network import save_folder


def test_lines_compare_with_pixel_parents_and_with_one_scale():
    def row(page, **scores):
        other = {"tokens": 9, "merged": 3, "cracks": 0.5, "holes": 0.0}
        return {"page": page, **{way: {"anls": scores.get(way[:6], 0.5), **other} for way in merged.WAYS}}

    found = {line[0]: line for line in merged.lines([row("a", resize=0.0), row("b", resize=0.0)])}
    assert found["resize"][1:4] == ("0.000", "-0.500 (-0.500 to -0.500)", "–")
    assert found["dag, merged"][1:] == (
        "0.500",
        "+0.000 (+0.000 to +0.000)",
        "+0.500 (+0.500 to +0.500)",
        "9.0",
        "3.0",
        "0.500",
        "0.000",
    )


def test_seams_count_jumps_of_scale_and_ink_without_tokens():
    relevance = relevance_at((20, 30))
    assert merged.seams(resize(photo(), relevance, budget=30, patch=16), relevance) == (0.0, 0.0)
    half = Allocation.of_boxes(torch.tensor([[[0.0, 0.0, 480.0, 320.0]]]), (640, 480), 16)
    cracks, holes = merged.seams(half, relevance)
    assert cracks == 0 and abs(holes - 0.5) < 0.05


def test_the_table_is_made(tmp_path, capsys):
    save_folder(small_network(), tmp_path / "reader")
    write_folder(tmp_path / "sroie", pages=1)
    given = [str(tmp_path), "--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader"), "--budget", "16"]
    assert merged.main([*given, "--split", "eval", "--limit", "1", "--relevance", "none"]) == 0
    record = json.loads((tmp_path / "out" / "merged.json").read_text())
    assert all(one["tokens"] <= 16 for row in record["rows"] for name, one in row.items() if name in merged.WAYS)
    assert "| dag, merged |" in capsys.readouterr().out
