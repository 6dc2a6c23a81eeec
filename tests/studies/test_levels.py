"""The study of levels, on a page and a small reader with random weights; and its arithmetic."""

import json

from texturevlm_lab.studies import levels


def row(page, joint, apart, causal):
    def own(score):
        return {"one": score, "two": score, "again": score / 2, "same": score == 1, "away": score or None}

    return {"page": page, "joint": own(joint), "apart": own(apart), "causal": own(causal)}


def test_lines_compare_with_the_levels_of_the_training():
    joint, apart, causal = levels.lines([row("a", 0.0, 1.0, 1.0), row("b", 0.5, 1.0, 1.0)], "apart")
    assert apart == ("apart", "1.000", "–", "1.000", "0.500", "1.00", "1.0000")
    assert causal[2] == "+0.000 (+0.000 to +0.000)" and joint[2].startswith("-0.750 (")
    assert joint[-2:] == ("0.00", "0.5000")


def test_the_table_is_made(tmp_path, asked_with, capsys, monkeypatch):
    monkeypatch.setattr(levels, "MOST", 4)
    assert levels.main(asked_with) == 0
    record = json.loads((tmp_path / "out" / "levels.json").read_text())
    assert [set(one) - {"set", "id", "page"} for one in record["rows"]] == [{"joint", "apart", "causal"}] * 2
    assert "| causal |" in capsys.readouterr().out
