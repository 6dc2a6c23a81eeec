"""The minimal test on pictures made here: learning puts tokens on what is red, which salience does not know."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from texturevlm_lab.studies import hypothesis
from texturevlm_lab.studies.hypothesis import LEVELS, SQUARE, Hypothesis, annealed, measured, square_lattice
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Green noise with a red square somewhere near the border: the object."""
    torch.manual_seed(7)
    root = tmp_path_factory.mktemp("photographs")
    (root / "images").mkdir()
    rows = []
    for number in range(12):
        image = torch.rand(64, 96, 3) * torch.tensor([0.2, 0.8, 0.2])
        x, y = (int(torch.randint(0, high, ())) for high in (64, 32))
        image[y : y + 32, x : x + 32] = torch.tensor([0.8, 0.1, 0.1])
        name = f"images/{number}.png"
        Image.fromarray((image * 255).byte().numpy()).save(root / name)
        row = {"id": number, "image": name, "size": [64, 96], "cls": 1, "name": "square"}
        rows.append({**row, "boxes": [[x, y, x + 32, y + 32]], "split": "train" if number < 8 else "eval"})
    (root / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def settings(folder, **more):
    return Hypothesis.Settings(data=folder, tokens=10, grids=(8,), anneal=60, batch=4, **more)


@pytest.fixture(scope="module")
def read(folder):
    task = Hypothesis(settings(folder))
    return task.train, task.evaluated


def test_what_is_read(read):
    train, evaluated = read
    assert train.channels.shape == (8, 64, LEVELS, 13) and len(evaluated) == 4
    torch.testing.assert_close(train.salience((4, 8)).sum(1), torch.full((8,), 2.0))
    (x0, y0, x1, y1) = evaluated.boxes[0][0]
    assert (x1 - x0, y1 - y0) == pytest.approx((SQUARE / 3, SQUARE / 2))
    torch.testing.assert_close(train.objects.mean((1, 2)), torch.full((8,), 1 / 6), atol=0.02, rtol=0)
    centre = square_lattice((8,)).centre
    inside = (centre > torch.tensor([x0, y0]) + 30).all(1) & (centre < torch.tensor([x1, y1]) - 30).all(1)
    red = evaluated.channels[0, :, 0, 0]
    assert red[inside].min() > 0.7 and red.min() < 0.3


@pytest.mark.parametrize("relaxation", ["sigmoid", "gumbel", "sparse"])
def test_learning_moves_tokens_onto_the_objects(folder, read, relaxation, tmp_path):
    task = Hypothesis(settings(folder, relaxation=relaxation), read)
    before = task.evaluate()
    after = fit(task, FitConfig(steps=60, rate=0.05), tmp_path)
    assert after["hard_iou"] > before["hard_iou"] + 0.2 and after["hard_iou"] > 0.5
    assert after["lift"] > 3 and after["covered"] == pytest.approx(before["covered"])
    if relaxation != "gumbel":
        assert abs(after["hard_iou"] - after["soft_iou"]) < 0.05


def test_before_learning_salience_decides(folder, read):
    task = Hypothesis(settings(folder), read)
    assert torch.equal(task.hard_boxes(), task.lattice.best(task.evaluated_salience, 10))


def test_sizes_and_the_scale_learn(folder, read, tmp_path):
    task = Hypothesis(replace(settings(folder), grids=(4, 8), learn_scale=True))
    fit(task, FitConfig(steps=3, rate=0.05), tmp_path)
    assert (task.module.size != 0).all() and task.module.particularise != 0
    assert task.hard_boxes().shape == (4, 10, 4)


def test_weights_that_are_very_sure_still_have_gradients(folder, read):
    task = Hypothesis(settings(folder), read)
    with torch.no_grad():
        task.module.weight.normal_(0, 50)
    task.losses(task.batch(0), 59)["overlap"].backward()
    gradients = {name: one.grad for name, one in task.module.named_parameters() if one.requires_grad}
    assert all(one.isfinite().all() for one in gradients.values()) and gradients["focus"] is not None


def test_measures():
    found = measured([[(0, 0, 256, 512)], []], [[(128, 0, 384, 512)], [(0, 0, 128, 512)]])
    assert found["iou"] == pytest.approx([1 / 3, 0]) and found["on_objects"] == [0.5, 0]
    assert found["covered"] == [0.5, 0] and found["objects"] == [0.5, 0.25]


def test_the_report(folder, read, tmp_path, monkeypatch):
    monkeypatch.setattr(hypothesis, "VARIANTS", {"a quarter": (16,), "as much as learned": (8, 16)})
    monkeypatch.setattr(hypothesis, "SEEDS", (0,))
    monkeypatch.setattr(hypothesis, "TEMPERATURES", (1.0,))
    arguments = [str(folder), "--out", str(tmp_path), "--steps", "2", "--limit", "2"]
    assert hypothesis.main(arguments) == 0
    text = (tmp_path / "hypothesis.md").read_text()
    assert "| learned | 0.250 |" in text and "| gumbel |" in text and "| 1 | " in text
    record = json.loads((tmp_path / "hypothesis.json").read_text())
    assert record["photographs"] == {"train": 2, "eval": 2} and len(record["methods"]) == 2
    for methods in record["methods"].values():
        assert len(methods) == 6 and min(methods["objects known"]["iou"]) > max(methods["uniform"]["iou"])
    assert hypothesis.main([str(folder / "nothing"), "--out", str(tmp_path)]) == 2


def test_temperatures_fall_by_equal_factors():
    found = [annealed(step, 11, 1.0, 0.01) for step in range(11)]
    assert found[0] == 1 and found[-2:] == pytest.approx([0.01, 0.01])
    assert found[2] / found[1] == pytest.approx(found[1])
