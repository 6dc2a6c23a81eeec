"""What tests of studies share that put questions to a model, or bind pages into files."""

from pathlib import Path

import pytest

from tests.evaluate.folders import write_folder, write_rows
from tests.pages.papers import WORDS, paper
from tests.train.test_reader import small_network
from texturevlm_lab.studies import asking
from texturevlm_lab.train.reader.network import save_folder


@pytest.fixture
def asked_with(tmp_path: Path) -> list[str]:
    """Arguments of a study that asks: a page per set, one question each, a small reader with random weights."""
    save_folder(small_network(), tmp_path / "reader")
    for name in asking.SETS:
        write_folder(tmp_path / name, pages=1)
    model = ["--model", str(tmp_path / "reader"), "--budget", "16", "--relevance", "none"]
    return [str(tmp_path), "--out", str(tmp_path / "out"), *model, "--split", "eval", "--limit", "1"]


@pytest.fixture
def bound_folder(tmp_path: Path) -> Path:
    """Train pages of several documents, two each, with a word to ask for."""
    rows = []
    for index, word in enumerate(WORDS):
        for page in (1, 2):
            name = f"images/doc{index}_{page}.png"
            (tmp_path / "images").mkdir(exist_ok=True)
            paper(word).save(tmp_path / name)
            row = {"id": 2 * index + page, "image": name, "question": f"Where is the {word}?", "answers": [word]}
            rows.append(row | {"size": [240, 320], "boxes": [[20, 40, 120, 60]], "split": "train"})
    write_rows(tmp_path, rows)
    return tmp_path
