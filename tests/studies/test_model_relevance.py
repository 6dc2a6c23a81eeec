"""The study of the model's own look, on a page and a small reader with random weights; and its table."""

import json

from texturevlm_lab.studies import model_relevance


def test_the_table_is_made(tmp_path, asked_with, monkeypatch):
    monkeypatch.setattr(model_relevance, "MOST", 4)
    assert model_relevance.main(asked_with) == 0
    record = json.loads((tmp_path / "out" / "model-relevance.json").read_text())
    assert len(record["rows"]) == 2 and set(record["rows"][0]) == {"set", "id", "page", *model_relevance.BY}
    assert all(0 <= row["model"]["top"] <= 1 for row in record["rows"])


def test_differences_are_to_none_and_to_the_scout():
    def row(page, *values):
        return {"page": page, **{by: {"anls": one, "top": one} for by, one in zip(model_relevance.BY, values)}}

    rows = [row("a", 0.0, 0.5, 1.0), row("b", 0.5, 0.5, 0.5)]
    record = {"rows": rows, "split": "train", "model": "reader", "budget": 96, "command": "", "torch": "", "python": ""}
    (line,) = [line for line in model_relevance.report(record).splitlines() if line.startswith("| model |")]
    assert line.startswith("| model | 0.750 | +0.500 (+0.000 to +1.000) | +0.250 (+0.000 to +0.500) |")
