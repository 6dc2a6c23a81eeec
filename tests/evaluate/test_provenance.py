"""The digest of what a table depends on, and what a table says about it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from texturevlm_lab.evaluate.provenance import (
    ROOT,
    Origin,
    code_digest,
    commit,
    dependencies,
    module_now,
    named_origin,
    origin,
    statements,
)


def copied(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for folder in ("texturevlm", "lab/texturevlm_lab"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_the_digest_covers_code_and_shipped_weights(tmp_path):
    """Bug 8: the scout and its weights were left out, so resumed runs mixed results of two scouts."""
    root = copied(tmp_path)
    known = {code_digest(root=root)}
    assert known == {code_digest()}
    names = "scout/spotter.py scout/scout.npz relevance/words.json ops/cover.cu text/strings.py evaluate/statistics.py"
    for name in names.split():
        with next(root.rglob(name)).open("ab") as file:
            file.write(b"\n0\n")
        known.add(code_digest(root=root))
    (root / "texturevlm" / "relevance" / "new.safetensors").write_bytes(b"weights")
    known.add(code_digest(root=root))
    assert len(known) == 8
    for name in ("commands/eval.py", "train/fit.py", "vlm/adapter.py", "evaluate/report.py"):  # no score needs these
        next(root.rglob(name)).write_text("")
    assert code_digest(root=root) in known


def test_comments_docstrings_and_blank_lines_do_not_count(tmp_path):
    """They would make every table one of other code."""
    code = [
        "'''A module.'''",
        "import json  # why",
        "",
        "def one(text='# kept'):",
        "    '''Of two",
        "    lines.'''",
        "    # a comment",
        "    return text + '''",
        "# kept'''",
        "class Two:",
        "    '''Nothing.'''",
        "    def three(self): '''stays'''",
    ]
    assert statements("\n".join(code)).split("\n") == ["import json", code[3], *code[7:10], code[11]]
    root = copied(tmp_path)
    path, before = root / "texturevlm" / "scout" / "spotter.py", code_digest(root=root)
    source = path.read_text()
    path.write_text("# new\n\n" + source + "\n# newer\n")
    assert code_digest(root=root) == before
    path.write_text(source.replace("return ", "return  ", 1))
    assert code_digest(root=root) != before


def test_code_that_was_only_moved_keeps_its_digest(tmp_path):
    """36, section 8.8: moving files orphaned every table."""
    root, (here, there) = tmp_path, ("texturevlm/b.py", "lab/texturevlm_lab/deep/b.py")
    files = {
        "lab/texturevlm_lab/a.py": "import json\n\nfrom texturevlm import (\n    b,\n)\n__all__ = ['x']\n"
        "x = b.f('texturevlm.b')\n",
        here: "def f(name):\n    return name\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    before = code_digest("texturevlm_lab.a", root=root)
    (root / there).parent.mkdir()
    (root / there).with_name("__init__.py").write_text('"""A room."""\n')
    (root / here).rename(root / there)
    (root / "lab/texturevlm_lab/a.py").rename(root / "lab/texturevlm_lab/c.py")
    text = "import json\n\nfrom texturevlm_lab.deep import b\nx = b.f('texturevlm_lab.deep.b')\n"
    (root / "lab/texturevlm_lab/c.py").write_text(text)
    assert code_digest("texturevlm_lab.c", root=root) == before
    (root / there).write_text("def f(name):\n    return None\n")
    assert code_digest("texturevlm_lab.c", root=root) != before
    assert module_now("texturevlm.b+texturevlm_lab.studies.c", root=root) == "texturevlm_lab.deep.b+texturevlm_lab.c"
    (root / here).write_text("")
    assert module_now("other.b+texturevlm.gone", root=root) == "other.b+texturevlm.gone"  # two are as near; none


def test_imports_inside_functions_count_and_names_are_no_modules(tmp_path):
    files = {
        "lab/texturevlm_lab/studies/a.py": "from texturevlm.b import thing\ndef late():\n"
        "    from texturevlm.deep import c\n",
        "texturevlm/__init__.py": "import texturevlm.unused\n",
        "texturevlm/unused.py": "",
        "texturevlm/b.py": "import json\n",
        "texturevlm/deep/__init__.py": "",
        "texturevlm/deep/c.py": "from texturevlm import b as bees\n",
        "texturevlm/deep/kernel.cu": "x",
        "texturevlm/deep/notes.txt": "x",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [path.relative_to(tmp_path).as_posix() for path in dependencies("texturevlm_lab.studies.a", root=tmp_path)]
    assert found == [
        "lab/texturevlm_lab/studies/a.py",
        "texturevlm/b.py",
        "texturevlm/deep/__init__.py",
        "texturevlm/deep/c.py",
        "texturevlm/deep/kernel.cu",
    ]
    with pytest.raises(ValueError, match=r"module must be one of .*, got 'texturevlm_lab.studies.z'"):
        dependencies("texturevlm_lab.studies.a+texturevlm_lab.studies.z", root=tmp_path)


def test_a_commit_says_whether_what_counts_was_changed(tmp_path, monkeypatch):
    root = copied(tmp_path)
    (root / "readme").write_text("")
    monkeypatch.delenv("TEXTUREVLM_COMMIT", raising=False)
    assert commit(root=root) == "unknown"
    git = ["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e@e"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "m"]):
        subprocess.run([*git, *command], check=True)
    clean = commit(root=root)
    assert len(clean) == 7
    (root / "readme").write_text("changed")
    assert commit(root=root) == clean
    (root / "texturevlm" / "placement" / "placement.py").write_text("")
    assert commit(root=root) == f"{clean} with changes"
    monkeypatch.setenv("TEXTUREVLM_COMMIT", "1a2b3c4")  # a copy's own git may be older than its files
    assert commit(root=root) == "1a2b3c4"


def test_a_table_names_its_origin():
    own = origin()
    assert named_origin(f"# T\n\n{own}; device cpu.\n") == own
    changed = Origin("texturevlm_lab.studies.a", "0123456789abcdef", "1a2b3c4 with changes")
    assert named_origin(f"x {changed}.") == changed
    assert named_origin("# T\n\ncode e19ea43a49f11015") is None
