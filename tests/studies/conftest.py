"""What tests of studies share that put questions to a model."""

from pathlib import Path

import pytest

from studies import asking
from tests.evaluate.folders import write_folder
from tests.train.test_reader import small_network
from texturevlm.train.reader.network import save_folder


@pytest.fixture
def asked_with(tmp_path: Path) -> list[str]:
    """Arguments of a study that asks: a page per set, one question each, a small reader with random weights."""
    save_folder(small_network(), tmp_path / "reader")
    for name in asking.SETS:
        write_folder(tmp_path / name, pages=1)
    model = ["--model", str(tmp_path / "reader"), "--budget", "16", "--relevance", "none"]
    return [str(tmp_path), "--out", str(tmp_path / "out"), *model, "--split", "eval", "--limit", "1"]
