"""The six questions, asked of a small reader with random weights."""

import json
import runpy
from pathlib import Path

from tests.train.test_reader import small_network
from texturevlm_lab.studies import reader_invoice
from texturevlm_lab.studies.reader_invoice import ANSWERS, main
from texturevlm_lab.train.reader.network import save_folder

ROOT = Path(__file__).parents[2]


def test_the_table_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(reader_invoice, "MOST", 4)
    save_folder(small_network(), tmp_path / "reader")
    given = ["--out", str(tmp_path / "out"), "--model", str(tmp_path / "reader"), "--budget", "16", "--limit", "2"]
    assert main([str(ROOT / "examples"), *given]) == 0
    rows = json.loads((tmp_path / "out" / "reader-invoice.json").read_text())["rows"]
    assert [(row["chooser"], row["question"]) for row in rows] == [
        (chooser, question) for chooser in ("scout", "resize") for question in list(ANSWERS)[:2]
    ]
    assert "| 16 | resize | What is the total? |" in capsys.readouterr().out
    assert main([str(tmp_path), *given]) == 2 and "DATA must hold invoice.png" in capsys.readouterr().err


def test_the_answers_are_those_of_the_script():
    script = runpy.run_path(str(ROOT / "examples" / "render_invoice.py"))
    amounts = script["Amounts"].of(script["ITEMS"])
    assert list(ANSWERS.values()) == [
        script["money"](amounts.total),
        script["INVOICE_NUMBER"],
        script["long_date"](script["INVOICE_DATE"]),
        script["long_date"](script["DUE_DATE"]),
        script["RECIPIENT_LINES"][0],
        script["money"](amounts.vat),
    ]
