"""The README's code is run, and its output is what the README shows."""

import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_code_runs_and_prints_what_is_shown(monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", README, re.DOTALL)
    assert blocks
    for code, shown in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), {})
        assert printed.getvalue() == shown


def test_every_python_block_is_followed_by_its_output():
    assert README.count("```python") == len(re.findall(r"```python\n.*?```\n```text\n", README, re.DOTALL))
