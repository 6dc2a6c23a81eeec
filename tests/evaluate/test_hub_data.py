"""Tables with images inside them become folders of ours; nothing is downloaded here."""

import io

import pytest
from PIL import Image

from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.hub_data import is_table, table_folder

datasets = pytest.importorskip("datasets", reason="needs the package datasets")


def image(grey, form="PNG"):
    content = io.BytesIO()
    Image.new("RGB", (32, 24), (grey, grey, grey)).save(content, form)
    return {"bytes": content.getvalue(), "path": None}


ROWS = [
    {"questionId": "7", "question": "Who?", "answers": ["me", "I"], "image": image(10)},
    {"questionId": "8", "question": "When?", "answers": ["now"], "image": image(10)},
    {"questionId": "9", "question": "Why?", "answers": [], "image": image(20, "JPEG")},
    {"questionId": "9", "question": "Where?", "answers": ["here"], "image": {"bytes": b"nonsense", "path": None}},
]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list(rows).to_parquet(str(path))
    return path


def test_parquet_becomes_a_folder(tmp_path):
    path = write(tmp_path / "a" / "val.parquet", ROWS)
    assert is_table(str(path)) and is_table(str(path.parent)) and not is_table(str(tmp_path / "gone.csv"))
    folder = table_folder(str(path), tmp_path / "out")
    data = load_data(folder, skip_broken=True, answered=True)
    first, second = data.samples
    assert (first.id, first.question, first.answers, first.size) == ("7", "Who?", ("me", "I"), (24, 32))
    assert first.image == second.image  # one page
    assert len(data.skipped) == 2 and "answers must have at least one" in data.skipped[0]
    assert "cannot be read" in data.skipped[1]
    assert table_folder(str(path.parent), tmp_path / "out") == folder


def test_other_names_of_columns_and_kinds_of_answers(tmp_path):
    rows = [{"query": "q?", "label": ["4"], "image": image(1)}, {"query": "r?", "label": ["5"], "image": image(2)}]
    found = load_data(table_folder(str(write(tmp_path / "chart.parquet", rows)), tmp_path)).samples
    assert [(one.id, one.answers) for one in found] == [("0", ("4",)), ("1", ("5",))]
    people = [{"answer": "cat", "id": n} for n in range(2)] + [{"answer": "dog", "id": 3}]
    rows = [{"question_id": 42, "question": "q?", "answers": people, "image": image(3)}]
    (one,) = load_data(table_folder(str(write(tmp_path / "vqa.parquet", rows)), tmp_path)).samples
    assert (one.id, one.answers) == ("42", ("cat", "cat", "dog"))
    rows = [{"question_id": 1, "question": "q?", "answer": "red", "image": image(3)["bytes"]}]
    assert load_data(table_folder(str(write(tmp_path / "b.parquet", rows)), tmp_path)).samples[0].answers == ("red",)


def test_a_limit_is_spread_and_a_changed_file_is_read_again(tmp_path):
    rows = [{"id": str(n), "question": "q?", "answers": ["a"], "image": image(n)} for n in range(8)]
    path = write(tmp_path / "a.parquet", rows)
    folder = table_folder(str(path), tmp_path, limit=4)
    assert [one.id for one in load_data(folder).samples] == ["0", "2", "4", "6"]
    assert len(list((folder / "images").iterdir())) == 4
    write(path, rows[:3])
    assert len(load_data(table_folder(str(path), tmp_path, limit=4)).samples) == 3


@pytest.mark.parametrize("name", ["{}-00000-of-00001.parquet", "{}/0000.parquet"])
def test_the_parts_of_a_folder_are_not_mixed(tmp_path, name):
    for number, part in enumerate(("train", "test", "validation")):
        rows = [{"question": part, "answers": ["a"], "image": image(number)}]
        write(tmp_path / "data" / name.format(part), rows)
    asked = {}
    for split in ("eval", "train", None):
        folder = table_folder(str(tmp_path / "data"), tmp_path, split=split)
        asked[split] = [one.question for one in load_data(folder, split=split).samples]
    assert asked == {"eval": ["validation"], "train": ["train"], None: ["validation", "train"]}


def test_a_folder_with_a_typo_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    def away(*_):
        raise ConnectionError("cannot be reached")

    monkeypatch.setattr(datasets, "get_dataset_split_names", away)
    with pytest.raises(
        ValueError, match=r"DATA must be a folder.*, got data/sorie, which is nothing here: cannot be r"
    ):
        table_folder("data/sorie", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_hub_is_asked_for_the_part_that_papers_report(tmp_path, monkeypatch):
    asked = []
    table = datasets.Dataset.from_list(ROWS[:2])

    def load(name, configuration, *, split):
        asked.append((name, configuration, split))
        return table

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda *_: ["test", "validation"])
    assert is_table("lmms-lab/DocVQA:DocVQA")
    assert len(load_data(table_folder("lmms-lab/DocVQA:DocVQA", tmp_path)).samples) == 2
    assert asked == [("lmms-lab/DocVQA", "DocVQA", "validation")]
    with pytest.raises(ValueError, match="lmms-lab/TextVQA must have a part train, got test, validation"):
        table_folder("lmms-lab/TextVQA", tmp_path, split="train")
