"""Questions about videos by multiple choice, our clips beside baselines at the same tokens."""

import json

import numpy as np
import pytest
import torch

from tests.ask import models
from tests.ask.test_videos import film
from texturevlm import vlm
from texturevlm.cli import main
from texturevlm.video import open_video
from texturevlm_lab.evaluate.video_answers import (
    CONDITIONS,
    accuracy_table,
    answer_videos,
    choice_prompt,
    chosen_option,
    span_of,
)
from texturevlm_lab.evaluate.video_baselines import spread_moments, static_dropped, uniform
from texturevlm_lab.evaluate.video_data import VideoQuestion, load_video_questions

OPTIONS = ("a red car", "a dog", "a man in a hat")


@pytest.mark.parametrize(
    "answer, wanted",
    [
        ("B", 1),
        ("(C)", 2),
        ("A. a red car", 0),
        ("The answer is B.", 1),
        ("I see a dog there", 1),
        ("a man in a hat", 2),
        ("Dogs", None),
        ("", None),
        ("D", None),
    ],
)
def test_the_option_that_an_answer_names(answer, wanted):
    assert chosen_option(answer, OPTIONS) == wanted


def test_the_prompt_lists_the_options():
    prompt = choice_prompt(VideoQuestion("1", None, "What is it?", OPTIONS, 1))
    assert prompt.startswith("What is it?\nA. a red car\nB. a dog\nC. ")


def test_baselines_spread_over_the_video_within_the_budget():
    source = open_video(film(16), fps=2)
    moments = spread_moments(source, 3, 2)
    assert [one.time for one in moments] == [0.0, 4.0, 7.0] and len(moments[0].frames) == 2
    for choose in (uniform, static_dropped):
        found = choose(moments, 30, 32, torch.device("cpu"))
        assert sum(int(one.allocation.valid.sum()) for one in found) <= 30
        assert found[0].time == 0 and found[-1].time == 7.0


def test_static_tokens_are_dropped():
    """The square moves at the left; the rest of the later moments is not shown."""
    moments = spread_moments(open_video(film(6), fps=2), 2, 2)
    whole, few = (choose(moments[:2], 15, 32, torch.device("cpu")) for choose in (uniform, static_dropped))
    assert int(few[0].allocation.valid.sum()) > int(whole[0].allocation.valid.sum())


@pytest.fixture(scope="module")
def asked():
    return models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=40)


def test_every_condition_answers_once(asked, tmp_path):
    np.save(tmp_path / "film.npy", film())
    question = VideoQuestion("one", tmp_path / "film.npy", "what is there ?", OPTIONS, 1, task="kind")
    out = tmp_path / "rows.jsonl"
    rows = answer_videos(asked, [question], budgets=[16, 32], conditions=CONDITIONS, out=out)
    assert len(rows) == 2 * (len(CONDITIONS) - 1) + 1
    assert all(0 < row["tokens"] <= (2 if row["condition"] == "prunevid" else 1) * row["budget"] for row in rows)
    again = answer_videos(None, [question], budgets=[16, 32], conditions=CONDITIONS, out=out)  # nothing is asked twice
    assert again == rows
    table = accuracy_table(rows)
    assert "| clip | 16 | 1 |" in table and "kind" in table


def test_videomme(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "abc.mp4").write_bytes(b"x")
    row = {
        "videoID": "abc",
        "question_id": "001-1",
        "question": "Why?",
        "options": ["A. One.", "B. Two."],
        "answer": "B",
    }
    bad = {**row, "answer": "E"}
    (tmp_path / "videomme.json").write_text(json.dumps([{**row, "task_type": "Counting"}, bad]))
    (found,), skipped = load_video_questions(tmp_path, skip_broken=True)
    assert found.candidates == ("One.", "Two.") and found.answer == 1 and found.task == "Counting"
    assert found.video == tmp_path / "data" / "abc.mp4"
    assert "answer must be the letter of an option, got 'E'" in skipped[0]


def test_the_command_names_what_it_needs(tmp_path, capsys):
    assert main(["eval", "videomme", str(tmp_path)]) != 0
    assert "--model and --out must be given for videos" in capsys.readouterr().err


def test_only_the_span_of_a_question_is_read():
    source = span_of(open_video(film(16), fps=2), (2.0, 4.0))
    assert [frame.time for frame in source] == [2.0, 2.5, 3.0, 3.5]
