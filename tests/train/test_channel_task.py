"""The weights of the channel scorer are learned: from boxes to shares of cells, and from those to weights."""

import json
import math

import pytest
import torch
from PIL import Image, ImageDraw

from texturevlm import cli
from texturevlm.relevance import ChannelScorer
from texturevlm.relevance.channel_logits import CHANNEL_FEATURES, IMAGE_KINDS, load_form
from texturevlm_lab.train.channel_task import ChannelTask, Example, in_top_tenth, is_held_out, place_shares
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit


@pytest.fixture
def data(tmp_path):
    """Forms whose answer is a red box among black ones."""
    folder, rows = tmp_path / "data" / "funsd", []
    (folder / "images").mkdir(parents=True)
    for number in range(8):
        image = Image.new("RGB", (120, 96), "white")
        draw = ImageDraw.Draw(image)
        boxes = [(10 + 40 * (n % 3), 10 + 40 * (n // 3), 34 + 40 * (n % 3), 22 + 40 * (n // 3)) for n in range(6)]
        for index, box in enumerate(boxes):
            draw.rectangle(box, fill="red" if index == number % 6 else "black")
        image.save(folder / "images" / f"{number}.png")
        asked = {"id": number, "image": f"images/{number}.png", "size": [96, 120], "question": "which?"}
        rows.append({**asked, "answers": ["red"], "boxes": [boxes[number % 6]], "split": "train"})
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "data"


def test_a_run_learns_which_channel_tells_and_the_scorer_reads_its_weights(data, tmp_path, capsys):
    task = ChannelTask(ChannelTask.Settings(data, limits={"funsd": 8}, cells=200, batch=4))
    before = float(task.losses(task.batch(0), 0)["page"].detach())
    fit(task, FitConfig(steps=60, rate=3e-2), tmp_path / "run")
    assert float(task.losses(task.batch(0), 0)["page"].detach()) < before - 0.7
    weights = tmp_path / "run" / "step-00000060" / "weights.safetensors"
    out = tmp_path / "own.safetensors"
    assert cli.main(["ship-channels", "--weights", str(weights), "--out", str(out)]) == 0
    assert torch.equal(load_form(out).weight, task.module.weight)
    assert ChannelScorer(weights=out).form.weight[IMAGE_KINDS.index("page"), CHANNEL_FEATURES.index("here.red")] > 0


def test_the_loss_is_that_of_all_cells():
    """Ten of twenty equal cells are kept, and two true ones: each of the others stands for two."""
    task = ChannelTask.__new__(ChannelTask)
    task.device, task.module = "cpu", torch.nn.Identity()
    task.logits = lambda one, kind: torch.zeros(12)
    count = torch.tensor([1.0] * 2 + [2.0] * 10).log()
    one = Example(torch.zeros(12, 1), count, torch.tensor([[0.5, 0.5] + [0.0] * 10]))
    assert float(task._loss(one, "page")) == pytest.approx(math.log(22))


def test_shares_and_the_top_tenth_by_hand():
    shares = place_shares([(0, 0, 15, 10)], (20, 40), (2, 4)).view(2, 4)
    assert torch.allclose(shares, torch.tensor([[2 / 3, 1 / 3, 0, 0], [0, 0, 0, 0]]))
    count = torch.tensor([1.0, 1.0, 9.0, 9.0]).log()
    one = Example(torch.zeros(4, 1), count, torch.tensor([[1.0, 0, 0, 0], [0, 0, 1.0, 0]]))
    assert in_top_tenth(torch.tensor([5.0, 4.0, 3.0, 2.0]), one).tolist() == [1, 0]
    assert in_top_tenth(torch.tensor([3.0, 4.0, 5.0, 2.0]), one).tolist() == [0, 0]


def test_pages_of_one_document_are_held_out_together(tmp_path):
    assert len({is_held_out(tmp_path / f"abcd_{page}.webp") for page in range(30)}) == 1
    assert len({is_held_out(tmp_path / f"abcd_{page}.jpg") for page in range(30)}) == 2


def test_mistakes_are_told(data):
    with pytest.raises(ValueError, match=r"limits must be one of docvqa_half, .*, got 'invoices'"):
        ChannelTask(ChannelTask.Settings(data, limits={"invoices": 3}))
    with pytest.raises(FileNotFoundError, match="coco"):
        ChannelTask(ChannelTask.Settings(data, limits={"coco": 3}))
