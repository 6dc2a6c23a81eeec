"""The image–text network of photographs, from captions and boxes to the table: data, canvases, training, judge."""

import json

import pytest
import torch
from PIL import Image

from tests.evaluate.folders import write_rows
from texturevlm_lab.studies import photograph_words, region_canvases, region_data, region_network, region_words

CAPTIONS = {"a dog on grass": (40, 160, 40), "a boat on blue water": (40, 60, 200)}


@pytest.fixture
def data(tmp_path):
    """Twelve captioned photographs of one colour each, and six with a red dog in a corner: half `train`."""
    (tmp_path / "flickr8k_small" / "images").mkdir(parents=True)
    lines = []
    for number in range(12):
        caption, colour = list(CAPTIONS.items())[number % 2]
        name = f"images/{number}.png"
        Image.new("RGB", (24, 24), colour).save(tmp_path / "flickr8k_small" / name)
        lines.append(json.dumps({"image": name, "captions": [caption, caption]}))
    (tmp_path / "flickr8k_small" / "captions.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "coco" / "images").mkdir(parents=True)
    rows = []
    for number in range(6):
        picture = Image.effect_noise((64, 48), 30).convert("RGB")
        name, kind = f"images/c{number}.png", ("dog", "boat")[number % 2]
        left = 40 if number % 2 else 4
        picture.paste((220, 30, 30), (left, 8, left + 16, 24))
        picture.save(tmp_path / "coco" / name)
        row = {"id": f"{number}-1", "image": name, "size": [48, 64], "cls": 1 + number % 2, "name": kind}
        rows.append(row | {"boxes": [[left, 8, left + 16, 24]], "split": ("train", "eval")[number // 4]})
    write_rows(tmp_path / "coco", rows)
    return tmp_path


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(region_network, "WIDTHS", (4, 4, 8, 8))
    monkeypatch.setattr(region_network, "BLOCKS", (0, 0, 1, 0))
    monkeypatch.setattr(region_data, "LEAST", 2)


def test_from_photographs_to_the_table(data, small, tmp_path, capsys):
    packed, out = tmp_path / "packed", tmp_path / "out"
    assert region_data.main([str(data), "--out", str(packed)]) == 0
    wait = ["--seconds", "0.01", "--fold-seconds", "0.01", "--canvases", "4", "--device", "cpu"]
    assert region_words.main([str(packed / region_data.FILE), "--out", str(out), *wait]) == 0
    maps = region_words.load_maps(out / region_words.CAPTIONS)
    assert maps.shape == (6, 2, region_canvases.SIDE, region_canvases.SIDE)
    record = json.loads((out / region_words.RECORD).read_text())
    assert record["names"] == ["boat", "dog"] and record["steps"]["captions"] >= 1
    assert photograph_words.main([str(data / "coco"), "--maps", str(out), "--out", str(out)]) == 0
    found = json.loads((out / "photograph-words.json").read_text())
    assert len(found["train"]["images"]) == 4 and len(found["eval"]["images"]) == 2
    assert found["choice"]["maps"] in (region_words.CAPTIONS, region_words.BOXES)
    assert all(0 <= value <= 1 for own in found["eval"]["scores"].values() for value in own)
    assert found["eval"]["scores"][photograph_words.ORACLE] == pytest.approx([1, 1])
    assert "2 names in 2" in (out / "photograph-words.md").read_text()


def test_a_short_training_is_not_the_network_that_it_began_with(small, monkeypatch):
    """The mean of the weights was seven tenths of the first network after 180 steps, which a fold has."""
    torch.manual_seed(0)
    network = region_network.RegionNetwork(torch.full((3,), 0.1))
    first = network.words.detach().clone()
    wanted = -first

    def losses(one):
        return {"words": (one.words - wanted).square().sum()}

    monkeypatch.setattr(region_words, "elapsed", lambda seconds: (step / 180 for step in range(180)))
    last, _ = region_words.taught(network, losses, 1.0, 2e-2, "test")
    assert (last.words - wanted).norm() < 0.2 * (first - wanted).norm()
    assert not last.training


def test_a_run_that_was_cut_is_judged_by_its_first_network(data, small, tmp_path, monkeypatch):
    packed, out = tmp_path / "packed", tmp_path / "out"
    assert region_data.main([str(data), "--out", str(packed)]) == 0
    monkeypatch.setattr(region_words, "box_losses", lambda *_: 1 / 0)  # the cut
    wait = ["--seconds", "0.01", "--fold-seconds", "0.01", "--canvases", "4", "--device", "cpu"]
    with pytest.raises(ZeroDivisionError):
        region_words.main([str(packed / region_data.FILE), "--out", str(out), *wait])
    assert photograph_words.main([str(data / "coco"), "--maps", str(out), "--out", str(out)]) == 0
    found = json.loads((out / "photograph-words.json").read_text())
    assert found["choice"]["maps"] == region_words.CAPTIONS


def test_a_network_that_knows_the_place_is_chosen_and_wins(data, tmp_path):
    lines = (data / "coco" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    names, rows = ["boat", "dog"], [json.loads(line) for line in lines]
    maps = torch.zeros(6, 2, region_canvases.SIDE, region_canvases.SIDE)
    for number, row in enumerate(rows):
        left = row["boxes"][0][0]
        maps[number, names.index(row["name"]), 5:16, left // 2 : left // 2 + 8] = 8.0
    region_words.write_maps(tmp_path / region_words.BOXES, maps)
    region_words.write_maps(tmp_path / region_words.CAPTIONS, torch.zeros_like(maps))
    assert torch.allclose(region_words.load_maps(tmp_path / region_words.BOXES), maps, atol=0.02)
    learned = {"names": names, "images": [row["image"] for row in rows], "steps": {}, "command": "", "code": ""}
    learned |= {"device": "cpu", "words": {"words": 1, "photographs": 1, "precision": 1.0, "by_chance": 0.5}}
    (tmp_path / region_words.RECORD).write_text(json.dumps(learned))
    assert photograph_words.main([str(data / "coco"), "--maps", str(tmp_path), "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "photograph-words.json").read_text())
    assert found["choice"]["maps"] == region_words.BOXES
    scores = found["eval"]["scores"]
    assert min(scores[photograph_words.MIX]) == pytest.approx(1)
    assert max(scores[photograph_words.MIX + photograph_words.OTHER]) < 1.0


def test_boxes_move_with_their_photograph():
    windows = region_canvases.Windows(torch.tensor([[0.5, 0.0]]), torch.tensor([[0.5, 1.0]]), torch.tensor([[True]]))
    boxes, seen = region_canvases.moved_boxes(
        torch.tensor([[[0.5, 0.2, 0.75, 0.6], [0.0, 0.0, 0.4, 0.4]]]), torch.tensor([[True, True]]), windows
    )
    assert boxes[0, 0].tolist() == pytest.approx([0.5, 0.2, 1.0, 0.6])  # cut to its right half, then mirrored
    assert seen.tolist() == [[True, False]]


def test_captions_name_what_boxes_are_called():
    numbers = {"person": 0, "dog": 1, "grass": 2}
    table = region_data.shares([[region_data.words_of("Two women with puppies"), ["grass"]]], numbers)
    assert table.tolist() == [[0.5, 0.0, 0.5]]  # "puppies" is no regular plural
    assert region_data.words_of("The dogs run past a child's skis") == ["dog", "run", "child", "skis"]


@pytest.mark.parametrize("study", [region_words, photograph_words])
def test_missing_files_are_named(study, tmp_path, capsys):
    given = ["--maps", str(tmp_path)] if study is photograph_words else []
    assert study.main([str(tmp_path / "none"), "--out", str(tmp_path), *given]) == 2
    assert "region_" in capsys.readouterr().err


def test_times_are_positive(tmp_path, capsys):
    assert region_words.main([str(tmp_path / "none"), "--out", str(tmp_path), "--seconds", "0"]) == 2
    assert "--seconds must be positive" in capsys.readouterr().err
