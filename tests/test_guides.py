"""The code of the guides is run from top to bottom, prints what they show, and their commands are understood."""

import contextlib
import io
import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from texturevlm.cli import COMMANDS
from texturevlm.commands.arguments import Parser
from texturevlm_lab.commands.eval import add_eval

ROOT = Path(__file__).parent.parent
GUIDES = ("index", "document", "photograph", "video", "large-images", "own-model", "corpus", "allocator")
GUIDES += ("channels", "metric", "attention", "rivals", "codebook")
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
HUB = "Qwen/Qwen3-VL-4B-Instruct"


@pytest.mark.parametrize("name", GUIDES)
def test_code_runs_and_prints_what_is_shown(name, tmp_path, monkeypatch):
    text = (ROOT / "docs" / f"{name}.md").read_text()
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("train", "notebooks"))
    if HUB in text:
        from tests.ask.test_bad_input import save

        text = text.replace(HUB, str(save("qwen3_vl", tmp_path / "model")))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = 0
    for match in BLOCK.finditer(text):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * text[: match.start(1)].count("\n") + match[1], f"docs/{name}.md", "exec"), names)
        assert printed.getvalue() == (match[2] or ""), f"docs/{name}.md"
        shown += match[2] is not None
    assert shown


def test_commands_are_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    parser = Parser()
    commands = parser.add_subparsers()
    for name in COMMANDS:
        module = name.replace("-", "_")
        getattr(import_module(f"texturevlm.commands.{module}"), f"add_{module}")(commands)
    add_eval(commands)
    found = []
    for name in GUIDES:
        for block in re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / f"{name}.md").read_text(), re.DOTALL | re.M):
            found += [line for line in block.splitlines() if line.startswith("texturevlm ")]
    assert len(found) >= 4
    for line in found:
        words = shlex.split(line)[1:]
        for word in words:  # files and folders that the reader of the guide has
            if word.endswith("/"):
                Path(word).mkdir(exist_ok=True)
            elif re.search(r"\w\.[a-z]{3,5}$", word):
                Path(word).parent.mkdir(parents=True, exist_ok=True)
                Path(word).touch()
        assert parser.parse_args(words).run, line
