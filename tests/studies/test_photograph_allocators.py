"""The comparisons of layers and density, and of prior and none, on two small pictures."""

import json

import torch
from PIL import Image

from texturevlm_lab.studies import photograph_prior
from texturevlm_lab.studies.photograph_allocators import main


def test_the_table_is_made(tmp_path, capsys):
    (tmp_path / "images").mkdir()
    rows = []
    for number, split in enumerate(("train", "eval")):
        noise = torch.rand(96, 128, 3, generator=torch.Generator().manual_seed(number))
        Image.fromarray((noise * 255).byte().numpy()).save(tmp_path / "images" / f"{number}.png")
        rows.append({"image": f"images/{number}.png", "boxes": [[10, 10, 60, 60]], "split": split})
    (tmp_path / "questions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out" / "photograph-allocators.json").read_text())
    assert record["images"] == 1  # never the split eval
    assert all(0 < one["psnr"] <= 50 for rows in record["measured"].values() for one in rows)
    assert "| 64 | lift |" in capsys.readouterr().out
    assert photograph_prior.main([str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    record = json.loads((tmp_path / "out" / "photograph-prior.json").read_text())
    assert record["photographs"] == 1 and record["measured"]["64/prior"] == record["measured"]["64/none"]
    assert "1 images, split train, 1 of which are seen as photographs" in capsys.readouterr().out
