"""The notebooks run as plain scripts and as notebooks, without a network, and show what they say."""

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NAMES = ("look_at_an_image", "write_an_allocator", "compare_with_resize")


def run(name, monkeypatch, folder=FOLDER):
    monkeypatch.chdir(folder)
    return runpy.run_path(str(FOLDER / f"{name}.py"))


def test_look_at_an_image(monkeypatch, capsys):
    found = run("look_at_an_image", monkeypatch)
    assert found["delivered"].size == (1240, 1754) and found["picture"].width > 1000
    assert 40 < int(found["moved"].sum()) <= 96
    assert "tokens 96" in capsys.readouterr().out


def test_write_an_allocator(monkeypatch, capsys):
    found = run("write_an_allocator", monkeypatch, FOLDER.parent.parent)  # from the root of the repository
    assert int(found["mine"].valid.sum()) == 96 and float(found["mine"].coverage) == 1
    assert found["errors"]["mine"] < 0.5 * found["errors"]["resized"]
    source = (FOLDER / "write_an_allocator.py").read_text()
    body = source.split('again and again."""\n')[1].split("\n\n\n# %%")[0]
    assert len([line for line in body.splitlines() if line.strip()]) <= 10


def test_compare_with_resize(monkeypatch, capsys):
    found = run("compare_with_resize", monkeypatch)
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(found["budgets"])
    few = found["table"][32]
    assert all(chosen < resized for resized, chosen in few)


@pytest.mark.parametrize("name", NAMES)
def test_jupytext_makes_a_notebook_of_it(name):
    jupytext = pytest.importorskip("jupytext", reason="needs jupytext: pip install 'texturevlm[docs]'")
    cells = jupytext.read(FOLDER / f"{name}.py").cells
    kinds = [cell.cell_type for cell in cells]
    assert kinds[:2] == ["markdown", "code"] and cells[0].source.startswith("# ") and 6 <= len(kinds) <= 12
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NAMES)
