"""What the tasks that train beside a model share."""

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a small random model."""
    from tests.ask.test_load import saved

    return str(saved("qwen3_vl", tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def asked_pages(tmp_path_factory):
    """A data set of four pages with a train split."""
    from tests.evaluate.folders import write_folder

    folder = write_folder(tmp_path_factory.mktemp("data"), pages=4)
    listing = folder / "questions.jsonl"
    listing.write_text(listing.read_text().replace('"eval"', '"train"'))
    return folder
