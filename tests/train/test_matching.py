"""Learning which words fit where: targets and boxes by hand, losses that fall, and the task through the loop."""

import csv

import pytest
import torch

from tests.conftest import worst
from tests.train.photos import write_data
from texturevlm.train.captions import Photograph, load_photographs, pack
from texturevlm.train.config import FitConfig
from texturevlm.train.fit import fit
from texturevlm.train.matching import Matching, average_precision, box_shares, named
from texturevlm.train.tasks import TASKS
from texturevlm.train.vocabulary import Vocabulary

TINY = {"batch": 8, "boxed": 3, "widths": (8, 16, 24), "drop": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("matching")
    pack(write_data(root / "data", captioned=60, boxed=48), root / "packed")
    return root / "packed"


@pytest.fixture
def task(folder):
    return Matching(Matching.Settings(folder, **TINY))


def test_targets_are_shares_of_captions_and_names():
    words = Vocabulary(["ball", "dog", "man", "person", "sports ball"])
    listed = [
        Photograph("a", ("A man with a dog", "Two men", "A ball", "A person and a man"), ()),
        Photograph("b", (), (("dog", ()), ("zebra", ()))),
    ]
    assert named(listed, words).tolist() == [[0.25, 0.25, 0.75, 0.75, 0.25], [0, 1, 0, 0, 0]]


def test_shares_of_boxes():
    boxes = torch.tensor([[[0.0, 0.0, 0.5, 0.25], [0.25, 0.0, 0.5, 0.25], [0.9, 0.9, 1.0, 1.0]]])
    shares = box_shares(boxes, torch.tensor([[True, True, False]]), 2)
    assert shares.tolist() == [[0.75, 0, 0, 0]]
    assert box_shares(boxes, torch.tensor([[True, True, True]]), 4)[0, :3].tolist() == [1, 1, 0]


def test_average_precision():
    scores = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.1, 0.4]])
    truth = torch.tensor([[True, True], [False, True], [True, False], [False, False]])
    assert average_precision(scores, truth).tolist() == pytest.approx([(1 + 2 / 3) / 2, (1 / 3 + 2 / 4) / 2])


def test_what_is_learned_from_and_what_not(task, folder):
    listed = load_photographs(folder).listed
    assert task.judged and not any(listed[number].held_out for number in task.captioned.tolist())
    assert all(not listed[number].held_out for number in task.pairs.photograph.tolist())
    assert task.kept.photograph.numel() and all(listed[n].held_out for n in task.kept.photograph.tolist())
    assert set(task.module.vocabulary.entries) >= {"red", "green", "blue", "wall"}


def test_a_batch_is_known_from_its_step(task, folder):
    again = Matching(Matching.Settings(folder, **TINY))
    first, same, later = task.batch(3), again.batch(3), task.batch(4)
    assert all(torch.equal(one, two) for one, two in zip((*first.draw, first.pairs), (*same.draw, same.pairs)))
    assert not torch.equal(first.draw.window, later.draw.window)
    assert task.boxed[first.draw.photographs[:3, 3]].all() and task.boxed[first.draw.photographs].sum() == 3
    assert all(torch.equal(a, b) for a, b in zip(task.module.state_dict().values(), again.module.state_dict().values()))


def test_guessing_by_commonness_costs_one(task):
    """Scores of zero are the prior; the mean over photographs of what that costs is what the loss is a share of."""
    spots = torch.zeros(8, len(task.module.vocabulary), 18 * 18)
    inside = torch.zeros(8, 4, 18 * 18)
    inside[:, 3] = 1
    photographs = task.captioned[:32].view(8, 4)
    assert 0.7 < task._words(spots, inside, photographs) < 1.3


def test_a_place_costs_least_where_the_boxes_are(task):
    batch = task.batch(1)
    inside = torch.zeros(8, 4, 18 * 18)
    inside[:, 3] = 1
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(8, 4, 4)
    draw = batch.draw._replace(split=torch.zeros(8, 2), window=whole)
    scores = torch.zeros(8, len(task.module.vocabulary), 18 * 18)
    shares = box_shares(task.pairs.boxes[batch.pairs], task.pairs.here[batch.pairs], 18)
    right, wrong = scores.clone(), scores.clone()
    for row, name in enumerate(task.pairs.name[batch.pairs].tolist()):
        right[row, name], wrong[row, name] = shares[row].clamp(min=1e-9).log(), -5 * shares[row]
    costs = [float(task._place(one, inside, draw, batch.pairs)) for one in (right, scores, wrong)]
    parts = shares / shares.sum(1, keepdim=True)
    even = (torch.xlogy(parts, parts * 324)).sum(1).mean().item()  # by how much boxes are smaller than the picture
    assert abs(costs[0]) < 1e-4 and costs[1] == pytest.approx(even, abs=1e-3) and costs[2] > costs[1] + 1


def test_colours_are_learned(task):
    optimiser = torch.optim.AdamW(task.module.parameters(), 5e-3)
    curve = []
    for step in range(40):
        parts = task.losses(task.batch(step), step)
        optimiser.zero_grad()
        (4 * parts["words"] + 0.5 * parts["place"]).backward()
        optimiser.step()
        curve.append((parts["words"].item(), parts["place"].item()))
    first, last = (torch.tensor(part).mean(0) for part in (curve[:5], curve[-5:]))
    assert last[0] < 0.8 * first[0] and last[1] < 0.8 * first[1]
    assert all(one.grad is not None and one.grad.isfinite().all() for one in task.module.parameters())


def test_through_the_loop(task, tmp_path):
    assert TASKS["gist"].endswith(":Matching")
    before = [value.clone() for value in task.module.state_dict().values()]
    found = fit(task, FitConfig(steps=2, log_every=1, ahead=1, losses={"words": 4.0, "place": 0.5}), tmp_path)
    assert set(found) == {"precision", "by_chance", "boxes", "boxes_by_chance"} and 0 <= found["boxes"] <= 1
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert len(rows) == 2 and {"words", "place"} <= set(rows[0])
    assert any(worst(one.float(), two.float()) > 0 for one, two in zip(before, task.module.state_dict().values()))


def test_without_boxes(folder):
    made = Matching(Matching.Settings(folder, **{**TINY, "boxed": 0}))
    assert made.losses(made.batch(0), 0)["place"] == 0


def test_complaints(folder):
    with pytest.raises(ValueError, match="Matching: boxed must be between 0 and 8, got 9"):
        Matching(Matching.Settings(folder, **{**TINY, "boxed": 9}))
