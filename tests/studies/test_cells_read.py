"""The table of cells that a search reads."""

import json

import torch

from tests.allocate.test_runs import lines_of_print
from tests.evaluate.folders import write_folder
from texturevlm.types import Texture
from texturevlm_lab.studies.cells_read import kernels, main


def test_the_table_is_made(tmp_path, capsys):
    data = write_folder(tmp_path / "data", pages=3, split="train")
    assert main([str(data), "--out", str(tmp_path / "out"), "--limit", "2", "--device", "cpu"]) == 0
    found = json.loads((tmp_path / "out" / "cells-read.json").read_text())
    assert found["pages"] == 2 and [row["scorer"] for row in found["rows"]] == ["scout", "none"] * 2
    assert all(0 < row["read"] < 1 and row["looks"] >= 1 for row in found["rows"])
    assert "| scout | 2 |" in capsys.readouterr().out


def test_kernels_are_counted(emulated):
    relevance = lines_of_print(40, 64, share=0.1)
    found = kernels(Texture((torch.zeros(1, 3, *relevance.size),)), relevance)
    assert found["same"] and all(taken <= read <= 1 for taken, read in found["kernel_cuts"])
