"""`look --explain`: which channels decided, as numbers and as a picture."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.evaluate.folders import write_page
from texturevlm import cli
from texturevlm.draw_terms import MOST_BARS, decided, terms_picture
from texturevlm.types import Allocation


def test_what_decided_is_what_is_higher_at_the_fine_tokens_than_elsewhere():
    boxes = torch.tensor([[[0.0, 0, 8, 8], [8.0, 0, 16, 8], [0.0, 0, 64, 64]]])
    allocation = Allocation.of_boxes(boxes, (64, 64), 8)
    corner = torch.zeros(1, 8, 8)
    corner[0, 0, :2] = 3.2
    found = decided({"even": torch.ones(1, 8, 8), "against": -corner / 2, "corner": corner}, allocation)
    assert list(found) == ["corner", "against", "even"]  # the strongest first
    assert found["corner"] == pytest.approx(3.2 - 0.1) and found["even"] == pytest.approx(0)


def test_bars_point_to_the_side_of_their_sign():
    def coloured(value):
        pixels = np.array(terms_picture({"one": value, "two": -0.001 * value})).astype(int)
        return np.abs(pixels.max(2) - pixels.min(2)).sum(0) > 60

    right, left = (np.flatnonzero(coloured(value)) for value in (1.0, -1.0))
    assert right.mean() > left.mean() + 100
    many = {f"channel {number}": 1.0 for number in range(MOST_BARS + 5)}
    assert terms_picture(many).height == terms_picture(dict(list(many.items())[:MOST_BARS])).height


def test_look_explains_itself(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_page(tmp_path / "page.png", {"Total": (30, 30), "Date": (150, 100)})
    plain = ["look", "page.png", "--query", "Total", "--relevance", "channels", "--budget", "12", "--patch", "16"]
    assert cli.main([*plain, "--out", "plain.png"]) == 0
    capsys.readouterr()
    assert cli.main([*plain, "--explain", "--out", "explained.png"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == MOST_BARS + 1 and any(line.endswith(" text") and line.startswith("+") for line in lines)
    heights = [Image.open(f"{name}.png").height for name in ("plain", "explained")]
    assert heights[1] > heights[0] + 200
    assert cli.main(["look", "page.png", "--explain", "--relevance", "scout"]) == 2
    assert "--explain needs --relevance channels, got scout" in capsys.readouterr().err
