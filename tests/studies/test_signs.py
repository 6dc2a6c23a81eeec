"""Signs in photographs: the line with the number is where the record says, at the angle that it says."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tests.evaluate.folders import write_rows
from tests.evaluate.test_run import Ink
from texturevlm_lab.studies import signs, stamps

GREY = (128, 128, 128)


@pytest.mark.parametrize("angle", [0, 30, -40])
def test_the_line_is_where_the_sign_was_drawn(angle, monkeypatch):
    monkeypatch.setattr(signs, "BOARDS", (((0, 0, 0), (255, 255, 255)),))
    plain = Image.new("RGB", (400, 300), GREY)
    one = signs.with_sign(plain, angle, "a photograph")
    assert one.angle == pytest.approx(angle, abs=6)  # it is seen from the side
    assert one.number == signs.with_sign(plain, 0, "a photograph").number
    pixels = np.asarray(one.page.convert("L")).astype(float)
    top, right = round(one.box[1]), round(one.box[2])
    assert abs(pixels[:top].mean() - 128) < 1 and abs(pixels[:, right:].mean() - 128) < 1
    # Bright letters on the black board: along the line's middle, and nowhere between the two lines of text.
    ends = one.line[0::2].mean(0), one.line[1::2].mean(0)
    steps = torch.linspace(0, 1, 60)[:, None]
    down = torch.tensor([-(ends[1] - ends[0])[1], (ends[1] - ends[0])[0]])
    down = down / down.norm() * (one.line[2] - one.line[0]).norm()
    bright = []
    for away in (0.0, -0.95):
        x, y = (ends[0] + (ends[1] - ends[0]) * steps + away * down).round().long().T
        bright.append(float((torch.from_numpy(pixels)[y, x] > 100).float().mean()))
    assert bright[0] > 0.2 and bright[1] < 0.05


def test_the_study_from_end_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(stamps, "open_engines", lambda names: {name: Ink() for name in names})
    monkeypatch.setattr(signs, "ANGLES", (40,))
    (tmp_path / "coco" / "images").mkdir(parents=True)
    Image.effect_noise((320, 240), 40).save(tmp_path / "coco" / "images" / "1.png")
    row = {"id": "1-1", "image": "images/1.png", "size": [240, 320], "cls": 1, "name": "cup", "boxes": [[1, 1, 9, 9]]}
    write_rows(tmp_path / "coco", [row | {"split": "train"}])
    assert signs.main([str(tmp_path), "--out", str(tmp_path / "out"), "--ocr", "a"]) == 0
    record = json.loads((tmp_path / "out" / "signs.json").read_text())
    ways = (stamps.FOLLOW, stamps.LIES, stamps.BACK)
    assert list(record["scores"]["a"]) == [f"0/{stamps.FOLLOW}", *(f"40/{how}" for how in ways)]
    assert "40°" in (tmp_path / "out" / "signs.md").read_text()
    assert signs.main([str(tmp_path), "--out", str(tmp_path / "out"), "--ocr", "a", "--skip", "-1"]) == 2
