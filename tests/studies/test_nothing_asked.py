"""Settings are chosen on held-out documents only, paired, by each engine: salience or prior, and the steepness."""

import json

import pytest
import torch

from tests.evaluate.folders import write_folder, write_page, write_rows
from tests.evaluate.test_run import Ink
from texturevlm.allocate import ALLOCATORS, cells
from texturevlm.ops import legibility
from texturevlm.relevance import find_relevance
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import held_out
from texturevlm_lab.studies.held_out import MAIN_SET
from texturevlm_lab.studies.nothing_asked import PRIOR, SALIENCE, guesses, main
from texturevlm_lab.studies.steepness import SHIPPED, TRIED, steepness, variants
from texturevlm_lab.train.pages import HELD_OUT, SETS, held_images


def write_sets(folder, pages=2 * HELD_OUT):
    for name in SETS:
        write_folder(folder / name, pages=pages if name == held_out.MAIN_SET else 1)
        rows = [json.loads(line) for line in (folder / name / "questions.jsonl").read_text().splitlines()]
        write_rows(folder / name, [row | {"split": "train", "document": row["image"]} for row in rows])
    return folder


def test_a_guess_is_a_map_of_chances(tmp_path):
    write_page(tmp_path / "page.png", {"Invoice": (20, 20), "Total": (20, 100), "1975": (150, 100)})
    texture = Texture.open(tmp_path / "page.png").mipmapped()
    found = guesses(texture)
    assert [name.partition(",")[0] for name in found] == [SALIENCE, "scout", "scout"]
    assert not found[SALIENCE].asked and all(torch.isclose(one.mass.sum(), torch.ones(())) for one in found.values())
    few, many = list(found.values())[1:]
    distance = [(one.mass - found[SALIENCE].mass).abs().sum() for one in (few, many)]
    assert distance[0] > distance[1] > 0


def test_only_held_out_documents_are_measured(tmp_path, monkeypatch):
    data = write_sets(tmp_path / "data")
    held = held_images(data, MAIN_SET)
    assert 0 < len(held) < 2 * HELD_OUT
    monkeypatch.setattr(held_out, "open_engines", lambda names: {name: Ink() for name in names})
    monkeypatch.setattr(held_out, "BUDGETS", (4,))
    assert main([str(data), "--out", str(tmp_path / "out"), "--ocr", "a,b"]) == 0
    record = json.loads((tmp_path / "out" / "nothing-asked.json").read_text())
    assert record["questions"] == 2 * len(held) and record["pages"] == len(held) and set(record["rows"]) == {"a", "b"}
    assert record["rows"]["a"][f"4/{SALIENCE}"]["difference"] == [0, 0, 0]
    assert PRIOR in (tmp_path / "out" / "nothing-asked.md").read_text()


def test_a_steepness_holds_for_its_variant_only(monkeypatch):
    seen = []

    def allocate(texture, relevance, *, budget, patch):
        seen.append((budget, cells.STEEPNESS, float(legibility.legibility(torch.ones(()), 2.0))))
        return seen[-1]

    monkeypatch.setitem(ALLOCATORS, "auto", allocate)
    texture = Texture.open(torch.rand(3, 160, 240)).mipmapped()
    (chosen,) = variants(texture, [Sample("1", None, (160, 240), "What is the total?")])
    assert list(chosen) == [f"{budget}/{value:g}" for value in TRIED for budget in held_out.BUDGETS]
    for key, (_, value, share) in chosen.items():
        assert value == float(key.split("/")[1]) and share == pytest.approx(1 / (1 + 2.0**value))
    assert cells.STEEPNESS == legibility.STEEPNESS == SHIPPED


def test_the_shipped_steepness_changes_nothing_and_another_does(tmp_path):
    write_page(tmp_path / "page.png", {"Invoice": (20, 20), "Total": (20, 100), "1975": (150, 100)})
    texture = Texture.open(tmp_path / "page.png").mipmapped()
    own = cells.Cells.of(find_relevance(texture, patch=16, relevance="none"), 0, 16)
    wanted = own.worth(3.0)
    with steepness(SHIPPED):
        assert abs(own.worth(3.0) - wanted).max() <= 1  # of the integers that a worth is rounded to
    with steepness(7.0):
        assert abs(own.worth(3.0) - wanted).max() > 100
    assert (own.worth(3.0) == wanted).all()
