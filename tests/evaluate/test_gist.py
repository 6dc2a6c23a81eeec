"""The judge of the gist: peaks and names by hand, a gist that knows colours, and the command."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.train.photos import COLOURS, write_data
from texturevlm.evaluate import gist as study
from texturevlm.evaluate.data import Sample
from texturevlm.evaluate.relevance import TOPS
from texturevlm.scout.weights import save_modules
from texturevlm.train.captions import pack
from texturevlm.train.gist import LENGTH, Gist
from texturevlm.train.vocabulary import Vocabulary


def sample(name, image="a.png", boxes=((0, 0, 50, 50),)):
    return Sample(name, Path(image), (100, 100), name, boxes=boxes, name=name)


def test_peaks():
    values = np.zeros((10, 10))
    values[2, 7] = 1
    assert study.peak_inside(values, sample("dog")) == 0
    assert study.peak_inside(values, sample("dog", boxes=((0, 0, 5, 5), (70, 20, 80, 30)))) == 1
    assert study.peak_inside(np.zeros((10, 10)), sample("dog")) == 0.25  # all alike: by area


def test_a_name_that_is_not_there():
    rows = [sample("dog"), sample("cat"), sample("dog", "b.png"), sample("bus", "b.png")]
    assert study.name_not_there(rows, 0) == "bus" and study.name_not_there(rows, 3) == "cat"
    assert study.name_not_there(rows[:2], 0) == "dog"


def test_weighing_an_empty_map_leaves_saliency():
    standing = np.random.default_rng(0).random((6, 6)).astype(np.float32)
    made = study._weighed(np.zeros((6, 6), np.float32), standing)
    assert made == pytest.approx(standing / standing.sum(), rel=1e-5)


class KnowsColours(Gist):
    """Says where its three words are, without having learned it."""

    def forward(self, colour):
        names = torch.tensor(list(COLOURS.values())) / 255
        pooled = torch.nn.functional.avg_pool2d(colour, 8)
        near = torch.stack([-(pooled - one.view(1, 3, 1, 1)).square().sum(1) for one in names], 1)
        spots = torch.zeros(len(colour), 64, *pooled.shape[2:])
        spots[:, :3] = 1 + near
        return spots


def test_one_that_knows_is_seen_to(tmp_path):
    data = write_data(tmp_path, captioned=1, boxed=24)
    gist = KnowsColours(Vocabulary(list(COLOURS)), (8, 8, 8))
    gist.words.data = 8 / LENGTH * torch.eye(64)[:3]
    with torch.inference_mode():
        samples = study.load(data / "coco").samples
        found = study.measure_places(samples, gist, 144, samples)
    assert found["rows"] == 6 and found["photographs"] == 6 and found["unknown"] == []
    assert found["mean"][study.GIST][-1] == 1 and found["mean"][study.OTHER][-1] < 1
    assert found["mean"][study.GIST][3] > 0.95 and found["mean"][study.ORACLE][3] > 0.95
    assert found["mean"][study.EVEN][:4] == pytest.approx(list(TOPS))
    assert found["difference"][study.OTHER][1][0] > 0.1
    assert found["parts"]["other names that are known"]["rows"] == 6


def test_the_command(tmp_path, capsys):
    data = write_data(tmp_path / "data", captioned=120, boxed=8)
    pack(data, tmp_path / "packed")
    save_modules(tmp_path / "weights.npz", gist=Gist(Vocabulary(["blue", "green", "red", "wall"]), (8, 8, 8)))
    weights = tmp_path / "plain.npz"
    with np.load(tmp_path / "weights.npz") as file:
        np.savez(weights, **{name.removeprefix("gist."): file[name] for name in file.files})
    arguments = [str(data / "coco"), "--weights", str(weights), "--out", str(tmp_path / "out"), "--limit", "2"]
    assert study.main([*arguments, "--photographs", str(tmp_path / "packed")]) == 0
    record = json.loads((tmp_path / "out" / "scout-photographs.json").read_text())
    assert record["rows"] == 2 and record["telling"]["words"] >= 1
    text = (tmp_path / "out" / "scout-photographs.md").read_text()
    assert "| gist − saliency |" in text and "--limit 2" in text and "## Telling words" in text
    assert study.main([*arguments, "--side", "100"]) == 2
    assert "--side must be a multiple of 8, got 100" in capsys.readouterr().err
    assert study.main([*arguments[:2], str(tmp_path / "none.npz"), *arguments[3:]]) == 2
