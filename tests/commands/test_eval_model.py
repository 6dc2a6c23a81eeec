"""texturevlm eval --model: from a folder of questions to a table, and what is wrong with the data is said."""

import json

import pytest
from PIL import Image

from tests.evaluate.folders import write_folder, write_image, write_rows
from tests.evaluate.reader import saved
from tests.test_cli import status
from texturevlm_lab.evaluate import answering
from texturevlm_lab.evaluate.answer_rows import AnswerRows
from texturevlm_lab.evaluate.provenance import code_digest, named_origin
from texturevlm_lab.rivals import METHODS

QUICK = ["--budgets", "6", "--relevance", "none", "--suffix", "", "--max-new-tokens", 2, "--device", "cpu"]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("reader"))


@pytest.fixture(autouse=True)
def few_are_timed(monkeypatch):
    monkeypatch.setattr(answering, "TIMED", 1)


def run(*arguments):
    return status("eval", *arguments, *QUICK)


def test_a_table_and_the_same_table_from_its_rows(tmp_path, reader, capsys):
    folder = write_folder(tmp_path / "docvqa_small")
    assert run(folder, "--model", reader, "--out", tmp_path / "out") == 0  # the data set by the folder's name
    table = capsys.readouterr().out
    assert "# docvqa_small" not in table and table.startswith(f"# docvqa: answers of {reader.name}")
    assert "4 questions about 2 pages, scored by anls" in table
    for words in ("| full resolution", "| no image |", "| auto, none | 6 | 4 |", "## Decision rule", "- weights: "):
        assert words in table
    assert status("eval", "--from", tmp_path / "out" / "answers.jsonl", "--out", tmp_path / "again") == 0
    assert capsys.readouterr().out == table
    assert (tmp_path / "again" / "answers.md").read_text() == (tmp_path / "out" / "answers.md").read_text()
    assert run("docvqa", folder, "--model", reader, "--out", tmp_path / "out") == 0  # nothing is left to do
    assert capsys.readouterr().out == table


def test_a_table_says_which_code_made_it_and_other_code_does_not_go_on_with_it(tmp_path, reader, capsys):
    folder = write_folder(tmp_path / "docvqa")
    given = [folder, "--model", reader, "--out", tmp_path / "out", "--conditions", "text"]
    assert run(*given) == 0
    found = named_origin(capsys.readouterr().out)
    assert (
        found.digest == code_digest("texturevlm_lab.evaluate.answering")
        and found.module == "texturevlm_lab.evaluate.answering"
    )
    rows = tmp_path / "out" / "answers.jsonl"
    rows.write_text(rows.read_text().replace(f'"commit": "{found.commit}"', '"commit": "0000000"'))
    assert run(*given) == 0  # the digest tells, not the commit
    rows.write_text(rows.read_text().replace(found.digest, "0123456789abcdef"))
    assert run(*given) == 2
    assert "got code '0123456789abcdef' there" in capsys.readouterr().err
    assert status("eval", "--from", rows) == 0
    assert named_origin(capsys.readouterr().out).digest == "0123456789abcdef"


def test_a_reader_has_room_for_an_address_and_pages_of_one_name_are_two(tmp_path, reader):
    """Its tokens are characters."""
    folder = write_folder(tmp_path / "docvqa")
    lines = (folder / "questions.jsonl").read_text()
    (folder / "more").mkdir()
    (folder / "images" / "1.png").rename(folder / "more" / "0.png")
    (folder / "questions.jsonl").write_text(lines.replace("images/1.png", "more/0.png"))
    given = ["--device", "cpu", "--conditions", "text", "--relevance", "none", "--out", tmp_path / "out"]
    assert status("eval", folder, "--model", reader, *given) == 0
    rows = AnswerRows.read(tmp_path / "out" / "answers.jsonl")
    assert rows.settings["new_tokens"] == 160
    assert [page for _, page in rows.questions] == ["images/0.png"] * 2 + ["more/0.png"] * 2


def test_pages_are_turned_if_asked_for(tmp_path, reader, capsys):
    """A page that lies on its side has the answers of the upright one; only where tokens are chosen by a question."""
    folder = write_folder(tmp_path / "docvqa", pages=1)
    given = ["--model", reader, "--conditions", "chosen", "--allocators", "auto"]
    assert run(folder, *given, "--out", tmp_path / "upright") == 0
    for path in (folder / "images").iterdir():
        with Image.open(path) as page:
            page.rotate(-90, expand=True).save(path)
    lines = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    for line in lines:
        line["size"].reverse()
        line["boxes"] = []
    write_rows(folder, lines)
    assert run(folder, *given, "--turn", "90", "--out", tmp_path / "turned") == 0
    assert run(folder, *given, "--out", tmp_path / "lying") == 0
    likely = {
        name: [
            row.likelihood
            for own in AnswerRows.read(tmp_path / name / "answers.jsonl").rows.values()
            for row in own.values()
        ]
        for name in ("upright", "turned", "lying")
    }
    assert likely["turned"] == pytest.approx(likely["upright"], abs=1e-4) != likely["lying"]
    assert AnswerRows.read(tmp_path / "turned" / "answers.jsonl").settings["turn"] == 90
    assert status("eval", folder, "--out", tmp_path / "out", "--turn", "auto") == 2
    assert "--turn is for pages that a --model is asked about" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--conditions", "chosen"), "--conditions is for answers of a --model, got no --model"),
        (("--max-new-tokens", "9"), "--max-new-tokens is for answers of a --model"),
        (("--untimed",), "--untimed is for answers of a --model"),
        (("--model", "reader", "--ocr", "tesseract"), "--ocr is for runs without a model"),
        (("--model", "reader", "--controls", "none"), "--controls is for runs without a model"),
    ],
)
def test_options_of_the_other_kind_of_run_are_refused(tmp_path, given, said, capsys):
    assert status("eval", tmp_path, "--out", tmp_path / "out", *given) == 2
    assert said in capsys.readouterr().err


def test_without_a_model_too_nothing_left_is_status_1(tmp_path, capsys):
    (tmp_path / "questions.jsonl").write_text("{broken\n")
    assert status("eval", tmp_path, "--skip-broken", "--out", tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert "questions.jsonl:1: must be JSON" in said and "1 skipped in all" in said and "got none" in said


def test_from_changes_no_file(tmp_path, reader, capsys):
    """Neither one that is no file of answers, nor one that a run is writing."""
    other = tmp_path / "page.png"
    write_image(other)
    before = other.read_bytes()
    assert status("eval", "--from", other) == 2 and other.read_bytes() == before
    folder = write_folder(tmp_path / "docvqa")
    assert run(folder, "--model", reader, "--out", tmp_path / "out", "--conditions", "text") == 0
    rows = tmp_path / "out" / "answers.jsonl"
    rows.write_bytes(before := rows.read_bytes()[:-3])
    capsys.readouterr()
    assert status("eval", "--from", rows) == 0 and rows.read_bytes() == before
    assert "| no image | | 3 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "wrong", "words"),
    [
        ("--levels", "above", "--levels must be one of"),
        ("--coordinates", "polar", "--coordinates must be one of"),
        ("--budgets", "32,9999", "budget must leave room in the model's context of"),
        ("--split", "dev", "--split must be one of train, eval, all, got 'dev'"),
    ],
)
def test_what_a_model_cannot_do_is_refused_before_its_weights_are_read(
    tmp_path, reader, capsys, monkeypatch, option, wrong, words
):
    monkeypatch.setattr("texturevlm_lab.commands.eval_model.load_vlm", None)
    folder = write_folder(tmp_path / "docvqa")
    assert status("eval", folder, "--model", reader, "--out", tmp_path / "out", option, wrong) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_another_metric_than_the_data_sets_own(tmp_path, reader, capsys):
    folder = write_folder(tmp_path / "sroie", pages=1)
    given = [folder, "--model", reader, "--out", tmp_path / "out", "--conditions", "text", "--metrics"]
    assert run(*given, "anls") == 0
    assert "scored by anls" in capsys.readouterr().out
    for wrong, words in (("anls,exact_match", "--metrics must be one metric"), ("anl", "--metrics must be one of")):
        assert run(*given[:-1], "--fresh", "--metrics", wrong) == 2
        assert words in capsys.readouterr().err


def test_words_are_left_out_where_nothing_can_read_them(tmp_path, reader, capsys, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "rapidocr" else real(name, *more)
    )
    folder = write_folder(tmp_path / "docvqa", pages=1)
    given = ["--suffix", "", "--max-new-tokens", 2, "--device", "cpu", "--budgets", 6, "--conditions", "chosen"]
    assert status("eval", folder, "--model", reader, "--out", tmp_path / "out", "--allocators", "auto", *given) == 0
    said = capsys.readouterr()
    assert "without relevance words" in said.err and "| auto, words |" not in said.out and "| auto, scout |" in said.out


def test_other_settings_are_refused_until_one_begins_afresh(tmp_path, reader, capsys):
    folder = write_folder(tmp_path / "data")
    texts = tmp_path / "texts.jsonl"
    given = [folder, "--model", reader, "--out", tmp_path / "out", "--conditions", "text", "--texts", texts]
    assert run("docvqa", *given[:-1], folder) == 2
    assert "--texts must be a file, got the folder" in capsys.readouterr().err
    assert run("docvqa", *given) == 0
    answers = texts.read_text()
    assert run("docvqa", *given) == 0 and texts.read_text() == answers  # nothing is left to ask
    assert run("infovqa", *given) == 2 and texts.read_text() == answers
    assert (
        "must hold answers of the same settings, got data set 'docvqa' there, 'infovqa' now" in capsys.readouterr().err
    )
    assert run("infovqa", *given, "--fresh") == 0
    assert len(texts.read_text().splitlines()) == len(answers.splitlines())  # not those of the other run too
    listing = folder / "questions.jsonl"
    listing.write_text(listing.read_text().replace('"ALPHA0"', '"OMEGA"'))  # the same ids with other answers
    assert run("infovqa", *given) == 2
    assert "got questions '" in capsys.readouterr().err


def test_photographs_are_asked_for_objects(tmp_path, reader, capsys):
    rows = [
        {"id": f"{n}-{name}", "image": f"{n}.png", "name": name, "boxes": [[1, 2, 9, 9]], "split": "eval"}
        for n, name in enumerate(["cat", "dog"])
    ]
    write_rows(tmp_path / "coco", rows)
    for number in range(2):
        write_image(tmp_path / "coco" / f"{number}.png", (64, 96))
    assert run("coco", tmp_path / "coco", "--model", reader, "--out", tmp_path / "out") == 0
    assert "4 questions about 2 pages, scored by yes_or_no" in capsys.readouterr().out
    found = AnswerRows.read(tmp_path / "out" / "answers.jsonl")
    assert [one for one, _ in found.questions] == ["0-cat", "0-cat-not", "1-dog", "1-dog-not"]


def test_broken_entries_are_named_counted_and_left_out(tmp_path, reader, capsys):
    folder = write_folder(tmp_path / "data", pages=1)
    good = (folder / "questions.jsonl").read_text()
    row = json.loads(good.splitlines()[0])
    broken = [
        json.dumps(row),  # its id comes again
        json.dumps(row | {"id": "gone", "image": "images/gone.png"}),
        json.dumps(row | {"id": "mute", "answers": []}),
        json.dumps(row | {"id": "blank", "answers": [" "]}),
        "{not json",
    ]
    (folder / "questions.jsonl").write_text(good + "\n".join(broken) + "\n")
    assert run("docvqa", folder, "--model", reader, "--out", tmp_path / "out", "--conditions", "text") == 0
    said = capsys.readouterr()
    for words in (
        "id must be new, got '0-alpha0' again",
        "sample gone: no such image",
        "questions.jsonl:5: answers must have at least one answer, got []",
        "questions.jsonl:6: answers must have at least one answer, got [' ']",
        "questions.jsonl:7: must be JSON",
        "5 skipped in all",
    ):
        assert words in said.err
    assert "5 broken entries of the data were skipped" in said.out
    (folder / "questions.jsonl").write_text("\n".join(broken[1:]) + "\n")
    assert run("docvqa", folder, "--model", reader, "--out", tmp_path / "new") == 1
    said = capsys.readouterr()
    assert "must hold eval samples, got none (4 were broken)" in said.err and "sample gone" in said.err
    assert said.out == "" and not (tmp_path / "new").exists()


def test_a_run_in_which_no_image_can_be_read_has_status_1(tmp_path, reader, capsys, monkeypatch):
    folder = write_folder(tmp_path / "data", pages=2)
    real = answering.Asking.run

    def run_without_images(self, samples, wanted):
        for sample in samples:
            sample.image.write_bytes(sample.image.read_bytes()[:-99])
        real(self, samples, wanted)

    monkeypatch.setattr(answering.Asking, "run", run_without_images)
    assert run("docvqa", folder, "--model", reader, "--out", tmp_path / "out") == 1
    assert "0.png cannot be read" in capsys.readouterr().err


def test_parquet(tmp_path, reader, capsys):
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    folder = write_folder(tmp_path / "data", pages=2)
    rows = [json.loads(line) for line in (folder / "questions.jsonl").read_text().splitlines()]
    table = [
        {"questionId": row["id"], "question": row["question"], "answers": row["answers"]}
        | {"image": {"bytes": (folder / row["image"]).read_bytes(), "path": None}}
        for row in rows
    ]
    datasets.Dataset.from_list(table).to_parquet(str(tmp_path / "val.parquet"))
    given = ["--model", reader, "--out", tmp_path / "out", "--conditions", "text,own"]
    assert run("docvqa", tmp_path / "val.parquet", *given) == 0
    assert "4 questions about 2 pages" in capsys.readouterr().out
    assert run(tmp_path / "val.parquet", *given) == 2
    assert "SET must be one of docvqa" in capsys.readouterr().err


def test_a_model_that_is_none(tmp_path, capsys):
    folder = write_folder(tmp_path / "docvqa")
    assert run(folder, "--model", tmp_path / "nothing", "--out", tmp_path / "out") == 2
    assert "nothing" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_all_reductions_from_graphs(tmp_path, reader, monkeypatch, capsys):
    few = {name: METHODS[name] for name in ("random", "fastv")}  # for time's sake
    # Deleting from it would leave it in another order.
    monkeypatch.setattr("texturevlm_lab.commands.eval_model.METHODS", few)
    given = [write_folder(tmp_path / "docvqa"), "--conditions", "chosen", "--allocators", "resize", "--captured"]
    assert run(*given, "--model", reader, "--out", tmp_path / "out", "--reduce", "all", "--untimed") == 0
    rows = AnswerRows.read(tmp_path / "out" / "answers.jsonl")
    assert [one.reduce for one in rows.rows] == ["", "random", "fastv"]
    assert rows.settings["captured"] and rows.settings["timed"] == 0
    assert run(*given, "--model", reader, "--out", tmp_path / "out", "--reduce", "every") == 2
    assert "--reduce must be one of random, fastv, got 'every'" in capsys.readouterr().err
