"""Real pages for the reader: which are packed, and that boxes, words and answers survive the way."""

import json

import numpy as np
import pytest
from PIL import Image

from tests.train.papers import LABELS, SIZE, drawn
from texturevlm.relevance.ocr import Page, Word
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.studies.held_out_pages import main as write_pages
from texturevlm_lab.train.pages import CHARTS, is_measured_chart
from texturevlm_lab.train.reader.packing import PackedPages, is_held, pack_reader, read_page, train_pages

SETS = ("docvqa_half", "funsd", "sroie", CHARTS)
COUNT = 24  # pages per set: some are held out


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Pages with three labels and values; DocVQA's boxes are in pixels of a page twice as large."""
    root = tmp_path_factory.mktemp("data")
    image, words = drawn(list(LABELS.items()))
    boxes = dict(words)
    read = Page(tuple(Word(text, box, line // 2, 0.9) for line, (text, box) in enumerate(words)), SIZE)
    for name in SETS:
        (root / name).mkdir()
        (root / "words" / name).mkdir(parents=True)
        rows = []
        for number in range(COUNT):
            file, more = f"{number}.png", 2 if name == "docvqa_half" else 1
            Image.fromarray(image).save(root / name / file)
            (root / "words" / name / f"{file}.json").write_text(read.to_json())
            row = {"image": file, "size": [more * side for side in SIZE], "split": "train"}
            row |= {"document": f"letter {number}"} if name == "docvqa_half" else {}
            for label, value in LABELS.items():
                places = [] if name == CHARTS else [[more * edge for edge in boxes[value]]]
                row["id"] = f"{name}-{number}-{label}"
                rows.append({**row, "question": f"What is the {label}?", "answers": [value], "boxes": places})
        (root / name / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root


def test_a_fifth_of_the_charts_is_left_for_measuring(data):
    charts = [page.path for page in train_pages(data) if page.source == CHARTS]
    assert 0 < len(charts) < COUNT and not any(map(is_measured_chart, charts))
    assert len(train_pages(data)) == 3 * COUNT + len(charts)


def test_a_page_has_its_words_and_questions_at_its_own_size(data):
    for page in train_pages(data, 1):
        read = read_page(page, data / "words")
        assert read.image.shape == SIZE and [text for text, _ in read.words][:2] == ["Total", "940.00"]
        places = dict(read.words)
        assert [one.answer for one in read.questions] == list(LABELS.values())
        for one in read.questions:
            assert one.kind == page.source
            np.testing.assert_allclose(one.boxes, [places[one.answer]], atol=0.1)


def test_packed_pages_are_the_pages(data, tmp_path):
    count = pack_reader(data, data / "words", tmp_path, 2, views=1)
    packed = PackedPages(tmp_path)
    assert count == len(packed.rows)
    page = packed.page(0)
    assert [one.answer for one in page.questions] == list(LABELS.values()) and len(page.views) == len(LABELS)
    (x0, y0, x1, y1) = np.round(page.questions[0].boxes[0]).astype(int)
    assert page.image[y0:y1, x0:x1].min() < 120 and page.image[: y0 - 2, x0:x1].min() > 180


def test_pages_to_choose_on_are_held_out_and_have_other_answers(data, tmp_path, capsys):
    out = tmp_path / "held"
    assert write_pages([str(data), "--words", str(data / "words"), "--out", str(out), "--copies", "2"]) == 0
    assert f"{out / 'rewritten-funsd'}: " in capsys.readouterr().out
    documents = {(page.source, page.path.name): page.document for page in train_pages(data)}
    samples = {folder.name: load_data(folder, split="train").samples for folder in sorted(out.iterdir())}
    for source in SETS:
        annotated = samples.get(f"annotated-{source}", [])  # of few pages none may be held out
        held = {name for (own, name), one in documents.items() if own == source and is_held(one)}
        assert {one.image.name for one in annotated} == held
        for one in annotated:
            assert one.image.read_bytes() == (data / source / one.image.name).read_bytes()
            assert one.answers[0] in LABELS.values()
    rewritten = [sample for folder, own in samples.items() if folder.startswith("rewritten") for sample in own]
    assert len(rewritten) > 4
    for sample in rewritten:
        source = sample.image.parent.name.partition("-")[2]
        original = f"{sample.image.stem.rpartition('-')[0]}.png"
        assert is_held(documents[source, original])
        assert sample.answers[0] not in LABELS.values()
        before, after = (np.asarray(Image.open(one)) for one in (data / source / original, sample.image))
        (x0, y0, x1, y1) = np.round(sample.boxes[0]).astype(int)
        assert (before[y0:y1, x0:x1] != after[y0:y1, x0:x1]).any()
