"""The words of a page: read once, kept with the time that it took, and only for those who want them."""

import time

import pytest

from tests.evaluate.folders import write_folder
from tests.evaluate.test_run import Choose, run
from texturevlm.relevance import WordsScorer, ocr
from texturevlm.types import Texture
from texturevlm_lab.evaluate import page_cache
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.page_cache import PageCache


@pytest.fixture
def readings(monkeypatch):
    """The sizes of the images that were read; every page holds one word."""
    seen = []

    def read_page(image, **options):
        seen.append(tuple(image.shape[-2:]))
        return ocr.Page((ocr.Word("word", (1.0, 2.0, 3.0, 4.0), 0, 0.9),), tuple(image.shape[-2:]))

    monkeypatch.setattr(ocr, "read_page", read_page)
    monkeypatch.setattr(page_cache, "find_spec", lambda name: True)
    return seen


def test_a_page_is_read_once_and_kept(tmp_path, readings):
    (sample, *_) = load_data(write_folder(tmp_path / "data", pages=1)).samples
    texture = Texture.open(sample.image)
    kept = PageCache(tmp_path / "kept")
    page, ms = kept.words(sample.image, texture)
    assert page.words[0].text == "word" and ms > 0 and kept.words(sample.image, texture) == (page, ms)
    assert readings == [(64, 64), (160, 240)]  # the first loads the models
    assert PageCache(tmp_path / "kept").words(sample.image, texture) == (page, ms) and len(readings) == 2


def test_who_reads_the_page(monkeypatch):
    kept = PageCache(None)
    monkeypatch.setattr(kept, "words", lambda path, texture: "words")
    monkeypatch.setattr(kept, "spots", lambda path, texture: "spots")

    def read(relevance, question="q?"):
        return kept.read(relevance, question, None, None)

    def installed(ocr):
        monkeypatch.setattr(page_cache, "find_spec", lambda name: ocr)

    installed(object())
    assert read("words") == read("words", " ") == "words"
    assert read("scout") == read("scout", " ") == read("prior", "") == "spots"
    assert read("auto") == read("auto", " ") == read("auto", "?") == "spots"
    assert read("none") is None
    installed(None)
    assert read("words") is None and read("auto") == "spots" == read("auto", " ")


def test_what_the_scout_saw_is_kept_for_a_page(tmp_path):
    (sample, *_) = load_data(write_folder(tmp_path / "data", pages=1)).samples
    texture = Texture.open(sample.image).mipmapped()
    kept = PageCache(None)
    found, ms = kept.spots(sample.image, texture)
    assert ms > 0 and kept.spots(sample.image, texture)[0] is found and found.text.shape == (1, 20, 30)


def test_a_run_charges_the_page_to_its_first_question(tmp_path, readings):
    class Reading(Choose):
        pages = ()

        def __call__(self, texture, question="", **options):
            self.pages += ((options["relevance"].scorer, bool(question)),)
            return super().__call__(texture, question, **options)

    choose = Reading()
    evaluation = run(write_folder(tmp_path / "data"), tmp_path / "out", relevances=["words", "none"], choose=choose)
    assert set(choose.pages) == {("words", True), ("none", False)}  # words that ask nothing find no more than none
    assert len(readings) == 3  # two pages and the loading of the models
    for row in evaluation.results.rows.values():
        assert (row.ms_page > 0) == (row.configuration.relevance == "words")


def test_a_question_is_scored_once_for_all_allocators_and_budgets(tmp_path, readings, monkeypatch):
    scored, score = [], WordsScorer.score

    def slow(self, prepared, question, maps):
        scored.append(question)
        time.sleep(0.02)
        return score(self, prepared, question, maps)

    monkeypatch.setattr(WordsScorer, "score", slow)
    data = write_folder(tmp_path / "data")
    evaluation = run(data, tmp_path / "out", relevances=["words"], allocators=["near", "far"], budgets=[16, 20])
    asked = [question for question in scored if question]
    assert len(asked) <= 2 * len(set(asked)) + 1  # each is a page's own and another page's, and the first loads models
    rows = [row for row in evaluation.results.rows.values() if row.configuration.relevance == "words"]
    assert all(row.ms >= 20 for row in rows)  # its time counts for every row
