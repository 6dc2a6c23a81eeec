"""Questions about the images of a corpus: found by key, in any number, and none is lost in silence."""

import json

import pytest

from tests.corpus import fill, made
from texturevlm import corpus
from texturevlm.cli import main
from texturevlm.corpus.questions import Questions, check_questions, write_questions
from texturevlm.corpus.store import Store

pytest.importorskip("pyarrow", reason="needs the extra corpus")


def write(path, *lines):
    path.write_text("\n".join(json.dumps({"key": key, "question": asked, **more}) for key, asked, more in lines))
    return path


def test_questions_are_found_by_their_key(tmp_path):
    lines = [(f"{number % 50}.png", f"q{number}", {"n": number}) for number in range(200)]
    given = check_questions(write(tmp_path / "q.jsonl", *lines, ("é\n.png", "what?", {})))
    assert given.count == 201
    for url in (str(tmp_path / "out"), "memory://asked"):
        write_questions(Store(url), given)
        found = Questions(Store(url))
        assert found.about("7.png") == [(f"q{number}", {"n": number}) for number in (7, 57, 107, 157)]
        assert found.about("é\n.png") == [("what?", {})] and found.about("50.png") == []
    assert Questions(None).about("7.png") == []


def test_questions_of_a_run_that_was_killed_while_it_planned(tmp_path):
    source = fill(tmp_path / "in", 2)
    write_questions(Store(tmp_path / "out"), check_questions(write(tmp_path / "q", ("part0/000.jpg", "stale?", {}))))
    assert made(source, tmp_path / "out").rows == 2
    assert [sample["question"] for sample in corpus.open(tmp_path / "out")] == ["", ""]


def test_equal_hashes_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("texturevlm.corpus.questions.key_hash", lambda key: len(key))
    write_questions(Store(tmp_path / "out"), check_questions(write(tmp_path / "q", ("a", "1", {}), ("b", "2", {}))))
    assert Questions(Store(tmp_path / "out")).about("b") == [("2", {})]


def test_questions_without_an_image_are_counted_and_said(tmp_path, capsys):
    source = fill(tmp_path / "in", 5)
    (source / "bad.png").write_text("no image")
    asked = [("part0/000.jpg", "a?", {}), ("part0/000.jpg", "b?", {}), ("bad.png", "c?", {}), ("gone.png", "d?", {})]
    questions = write(tmp_path / "q.jsonl", *asked)
    found = made(source, tmp_path / "out", questions=questions)
    assert (found.rows, found.asked, found.unasked) == (6, 2, 2)
    assert made(source, tmp_path / "out", questions=questions).unasked == 2  # known from the manifests
    fast = ["--workers", "0", "--budget", "8", "--patch", "8", "--relevance", "none", "--device", "cpu"]
    assert main(["corpus", str(source), "--out", str(tmp_path / "b"), *fast, "--questions", str(questions)]) == 0
    assert "2 of 4 questions have no image that could be read: is their key right?" in capsys.readouterr().err
