"""A run's file: what is misspelt is told, with what could have been meant; and the command that reads it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from texturevlm import cli
from texturevlm_lab.train.config import TASKS, FitConfig, from_table, read_config, to_json

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "train").glob("*.toml"))


@dataclass(frozen=True)
class Settings:
    data: Path
    sizes: tuple[int, ...] = (1, 2)
    weights: dict[str, float] | None = None
    name: str = ""
    fast: bool = False


def written(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_values_become_what_the_fields_want():
    found = from_table(Settings, {"data": "a/b", "sizes": [3], "weights": {"x": 1}, "fast": True}, "here")
    assert found == Settings(Path("a/b"), (3,), {"x": 1.0}, "", True)
    assert to_json(found) == {"data": "a/b", "sizes": [3], "weights": {"x": 1.0}, "name": "", "fast": True}


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({}, "here must have data"),
        ({"data": "x", "size": [1]}, r"here may have data, sizes, .*, got 'size' \(did you mean sizes\?\)"),
        ({"data": 3}, "here.data must be Path, got 3"),
        ({"data": "x", "sizes": [1, "2"]}, r"here.sizes\[1\] must be int, got '2'"),
        ({"data": "x", "sizes": 1}, "here.sizes must be tuple, got 1"),
        ({"data": "x", "fast": 1}, "here.fast must be bool, got 1"),
        ({"data": "x", "weights": {"a": "b"}}, "here.weights.a must be float, got 'b'"),
    ],
)
def test_complaints_about_a_table(table, complaint):
    with pytest.raises(ValueError, match=complaint):
        from_table(Settings, table, "here")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("task = ", "must be TOML"),
        ("[fit]\nsteps = 3", "must name its task"),
        ('task = "rates"\n[rate]', "run.toml: task must be one of spotter, .*, got 'rates'"),
        ('task = "rate"\n[fti]\nsteps = 3', r"may have task, fit, rate, got 'fti' \(did you mean fit\?\)"),
        ('task = "rate"\n[fit]\nstep = 3', r"fit may have steps, seed, .*, got 'step' \(did you mean steps\?\)"),
        ('task = "rate"\n[fit]\nsteps = 0', "steps must be at least 1"),
        ('task = "rate"\n[fit]\nprecision = "float16"', "precision must be one of float32, bfloat16"),
        ('task = "rate"\nrate = 3', "rate must be a table"),
    ],
)
def test_complaints_about_a_file(tmp_path, text, complaint):
    with pytest.raises(ValueError, match=complaint):
        read_config(written(tmp_path, text))


def test_the_command_trains_and_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TASKS, "toy", "tests.train.toy:Toy")
    text = 'task = "toy"\n[fit]\nsteps = 6\nsave_every = 2\n[toy]\nwidth = 4\n'
    path, out = written(tmp_path, text), tmp_path / "out"
    assert cli.main(["train", str(path), "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert "error: " in captured.out and "6/6 steps" in captured.err and "loss 0." in captured.err
    assert cli.main(["train", str(path), "--out", str(out)]) == 2
    assert "--resume must be given" in capsys.readouterr().err
    with monkeypatch.context() as patch:  # before the task is made, which may take minutes
        patch.setitem(TASKS, "toy", "tests.train.toy:NoSuchTask")
        assert cli.main(["train", str(path), "--out", str(out)]) == 2
        assert "--resume must be given" in capsys.readouterr().err
    assert cli.main(["train", str(path), "--out", str(out), "--resume"]) == 0
    path.write_text(text.replace("width = 4", "widht = 4"))
    assert cli.main(["train", str(path), "--out", str(out), "--resume"]) == 2
    assert "toy may have width, got 'widht' (did you mean width?)" in capsys.readouterr().err
    path.write_text('task = "toi"\n')
    assert cli.main(["train", str(path)]) == 2
    assert "task must be one of spotter" in capsys.readouterr().err


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_read(path):
    config = read_config(path)
    assert isinstance(config.fit, FitConfig) and config.task in TASKS
