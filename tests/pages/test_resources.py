"""One budget over images, documents and frames together."""

import json

import pytest

from tests.pages.papers import WORDS, paper, pdf_of
from texturevlm.cli import main
from texturevlm.pages import SharedBudget
from texturevlm.pages.resources import BoundPages
from texturevlm.types import Allocation


def papers(*numbers):
    return [paper(WORDS[number]) for number in numbers]


@pytest.fixture(scope="module")
def sources():
    """An image, a PDF of three pages, and a clip of two frames."""
    return [papers(0)[0], pdf_of(papers(1, 2, 3)), papers(4, 5)]


@pytest.mark.parametrize("word, unit", [(0, (0, 1)), (2, (1, 2)), (5, (2, 2))])
def test_the_unit_that_the_question_is_about_wins(sources, word, unit):
    allocator = SharedBudget(budget=48, fine_pages=2, relevance="scout")
    found = allocator.spend(sources, f"Where is the {WORDS[word]}?")
    assert max(found, key=lambda one: one.tokens.worth).units == (unit,)
    assert sum(one.tokens.tokens for one in found) <= 48 and len(found) <= 2


def test_the_sheet_shows_the_other_units(sources):
    *fine, sheet = SharedBudget(budget=90, fine_pages=1, relevance="scout").spend(sources, "zeppelin")
    assert [one.units for one in fine] == [((1, 2),)]
    assert sheet.units == ((0, 1), (1, 1), (1, 3), (2, 1), (2, 2))


def test_units_are_numbered_source_by_source():
    class Counted(list):
        pass

    bound = BoundPages([Counted("ab"), Counted("c"), Counted("def")])
    assert [bound.place(index) for index in range(len(bound))] == [(0, 1), (0, 2), (1, 1), (2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(
    "given, error, message",
    [
        ([], TypeError, "sources must be a list of at least one source"),
        ("report.pdf", TypeError, "sources must be a list of at least one source, got 'report.pdf'"),
        ([[]], ValueError, "document must have at least one page, got an empty list"),
        ([b"%PDF-1.4 nothing"], ValueError, "SharedBudget: .*"),
        ([["x.png"] * 600, ["y.png"] * 600], ValueError, "at most 1000 units together, got 1200"),
        ([["x.png"] * 1001], ValueError, "document must have at most 1000 pages, got a list of 1001"),
        ([pdf_of(papers(0)), "x.png"], FileNotFoundError, "no such file: x.png"),
        ([pdf_of(papers(0)), b"text"], ValueError, "source of 4 bytes is not an image"),
        ([papers(0), [paper(WORDS[0]), "x.png"]], FileNotFoundError, "no such file: x.png"),
    ],
)
def test_what_is_refused_before_anything_is_read(given, error, message, monkeypatch):
    monkeypatch.setattr("texturevlm.pages.choose.scouted", None)
    with pytest.raises(error, match=message):
        SharedBudget().spend(given, "what?")


def test_the_command_spends_one_budget_on_images_and_pages(tmp_path, capsys):
    (tmp_path / "report.pdf").write_bytes(pdf_of(papers(1, 2)))
    paper(WORDS[0]).save(tmp_path / "scan.png")
    given = ["allocate", *(str(tmp_path / name) for name in ("scan.png", "report.pdf")), "--query", WORDS[2]]
    given += ["--budget", "40", "--relevance", "scout", "--device", "cpu"]
    assert main(given) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"file": str(tmp_path / "report.pdf"), "page": 2} in [one["pages"][0] for one in found]
    tokens = [int(Allocation.from_json(json.dumps(one["allocation"])).valid.sum()) for one in found]
    assert min(tokens) > 0 and sum(tokens) <= 40
    assert main([*given, "--fine-pages", "1"]) == 0
    first, sheet = json.loads(capsys.readouterr().out)
    assert first["pages"] == [{"file": str(tmp_path / "report.pdf"), "page": 2}] and len(sheet["pages"]) == 2
    assert main([*given, "--turn", "90", "--balance", "learned"]) == 0
    sizes = [one["allocation"]["size"] for one in json.loads(capsys.readouterr().out)]
    assert all(height < width for height, width in sizes), "footprints lie in the pages as they were given"
    assert main([*given, "--fine-pages", "21"]) == 2
    assert "--fine-pages must be between 1 and 20" in capsys.readouterr().err
