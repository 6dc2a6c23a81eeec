"""The study of feedback: the made clip alone, short; and its arithmetic."""

import json

import numpy as np
import torch

from texturevlm_lab.studies import feedback


def row(scale, time=0.0):
    return {"time": time, "scale": scale, "legible": scale / 4}


def test_lines_are_levels_against_none():
    rows = {"none": [row(3.0), row(2.0, 5.0)], "feedback 0.5": [row(2.0), row(1.0, 5.0)]}
    plain, moved = feedback.lines(rows)
    assert plain == ("none", "8.00", "4.00", "–", "–", "0.62", "2")
    assert moved == ("feedback 0.5", "4.00", "2.00", "-1.00 (-1.00 to -1.00)", "-0.25 (-0.25 to -0.25)", "0.38", "2")


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(feedback, "MADE_FRAMES", 6)
    frames = np.stack([(image.permute(1, 2, 0) * 255).byte().numpy() for image, _, _ in feedback.made_clip()])
    np.save(tmp_path / "clip.npy", frames)
    (tmp_path / "boxes.txt").write_text("".join(f"{16 + 6 * index},100,48,48\n" for index in range(6)))
    given = [str(tmp_path / "clip.npy"), "--out", str(tmp_path), "--boxes", str(tmp_path / "boxes.txt")]
    assert feedback.main([*given, "--first", "0", "--fps", "25"]) == 0
    clips = json.loads((tmp_path / "feedback.json").read_text())["clips"]
    for rows in clips.values():
        means = {way: float(torch.tensor([one["scale"] for one in own]).mean()) for way, own in rows.items()}
        assert means["feedback 0.9"] < means["none"] - 0.3  # the card is seen finer
    assert "The object of clip.npy" in capsys.readouterr().out
    assert feedback.main([*given, "--first", "90"]) == 2
    assert "VIDEO must have frames with boxes from frame 90 on, got 0" in capsys.readouterr().err
