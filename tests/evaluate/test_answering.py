"""A model answers under all conditions: what it is shown, what is written, and that a killed run loses nothing."""

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

from tests.ask import models
from tests.evaluate.folders import write_folder
from tests.evaluate.reader import model
from texturevlm.ask import VLM
from texturevlm.placement.finer import Finer
from texturevlm.types import Texture
from texturevlm.vlm import own_grid
from texturevlm.vlm.captured_decode import CapturedDecode
from texturevlm_lab.evaluate import answering
from texturevlm_lab.evaluate import prompted as prompted
from texturevlm_lab.evaluate.answer_report import answer_lines, answers_page
from texturevlm_lab.evaluate.answer_rows import AnswerRows
from texturevlm_lab.evaluate.answering import Asking, likeliest, other_pages
from texturevlm_lab.evaluate.answers import ANSWER_METRICS, DATA_SETS
from texturevlm_lab.evaluate.asked_page import AskedPage, box_map
from texturevlm_lab.evaluate.conditions import (
    BLANK,
    CHOSEN,
    FULL,
    INPUT_KINDS,
    ORACLE,
    OWN,
    PAGE,
    QUESTION,
    TEXT,
    Condition,
    conditions,
)
from texturevlm_lab.evaluate.data import load_data
from texturevlm_lab.evaluate.own_input import has_own_input, own_input
from texturevlm_lab.evaluate.page_cache import PageCache
from texturevlm_lab.rivals import steps_of
from texturevlm_lab.rivals.hooks.hook import TokenReduction
from texturevlm_lab.train.reader.alphabet import END, make_tokenizer

SETTINGS = {"data set": "docvqa", "metric": "anls"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data"), pages=3)


@pytest.fixture(scope="module")
def samples(folder):
    return load_data(folder).samples


def asking(path, samples, *, name="docvqa", **options):
    questions = [(sample.id, sample.image.name) for sample in samples]
    rows = AnswerRows.open(path / "answers.jsonl", SETTINGS, questions)
    options = {"suffix": "", "new_tokens": 3, "batch": 4, **options}
    return Asking(model().adapter, ANSWER_METRICS[DATA_SETS[name]], rows, PageCache(path / "pages"), **options)


ALL = conditions(["auto", "resize"], ["none", "scout"], [6, 12])


def test_the_conditions_of_a_run():
    assert {one.kind for one in ALL} == set(INPUT_KINDS)
    assert [str(one) for one in ALL if one.budget == 6] == [
        "resized by the model's own processor (max_pixels) at 6",
        "auto, none at 6",
        "auto, scout at 6",
        "auto: chosen by the true boxes (oracle) at 6",
        "auto, scout: chosen by another page's question at 6",
        "resize, none at 6",
    ]
    assert not any(one.kind == OWN for one in conditions(["auto"], ["none"], [6], own=False))
    assert [one.kind for one in conditions(["auto"], ["none"], [6], [FULL, TEXT])] == [FULL, TEXT]
    some = conditions(["auto", "resize"], ["none"], [6], [CHOSEN], reductions=["fastv", "tome"])
    assert [str(one) for one in some] == [
        "auto, none at 6",
        "auto, none, fastv at 6",
        "auto, none, tome at 6",
        "resize, none at 6",
        "resize, none, fastv at 6",
        "resize, none, tome at 6",
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, samples):
    """A run under all conditions; only the first question is timed."""
    path = tmp_path_factory.mktemp("finished")
    ask = asking(path, samples, texts=path / "texts.jsonl")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(answering, "TIMED", 1)
        ask.run(samples, ALL)
    return path, ask


def test_all_conditions_from_end_to_end(finished, samples):
    path, ask = finished
    assert not ask.failed
    assert {one: len(rows) for one, rows in ask.rows.rows.items()} == dict.fromkeys(ALL, len(samples))
    for condition, rows in ask.rows.rows.items():
        assert condition.kind == TEXT or len({row.likelihood for row in rows.values()}) > 3
        for row in rows.values():
            assert 0 <= row.score <= 1 and row.likelihood < 0
            assert row.tokens <= (condition.budget or 60)
    said = [json.loads(line) for line in (path / "texts.jsonl").read_text().splitlines()]
    assert len(said) == len(ALL) * len(samples) and len({one["said"] for one in said}) > len(samples)
    written = (path / "answers.jsonl").read_text()
    assert not any(sample.question in written for sample in samples)  # ids and scores only
    assert "alpha0" in written.splitlines()[0] and "alpha0" not in "".join(written.splitlines()[1:])


def test_cannot_read_it_is_not_said(tmp_path, samples, monkeypatch):
    """An answer that says so is no field, and field F1 counts the fields that were said."""
    monkeypatch.setattr(answering, "TIMED", 0)
    said = iter([samples[0].answers[0], " ", "? ", "wrong", "??", "I cannot read it"])
    monkeypatch.setattr(answering, "generated", lambda adapter, prompts, **more: [next(said) for _ in prompts])
    ask = asking(tmp_path, samples, name="sroie")
    monkeypatch.setattr(ask.adapter, "trained", replace(ask.adapter.trained, unreadable="?"))
    with monkeypatch.context() as patched:
        patched.setattr(ask.adapter, "tokenizer", make_tokenizer())  # the reader's
        assert ask._nothing == {"", "?", "I cannot read it"}  # kept from here on
    ask.run(samples, [Condition(TEXT)])
    rows = ask.rows.rows[Condition(TEXT)]
    assert len(samples) == 6 and [row.said for row in rows.values()] == [True, False, False, True, True, False]
    assert answer_lines(ask.rows)[Condition(TEXT)].field_f1 == pytest.approx(2 * 1 / (3 + 6))


@pytest.mark.parametrize("name", DATA_SETS)
def test_every_metric_scores_answers(name, tmp_path, samples, monkeypatch):
    monkeypatch.setattr(answering, "TIMED", 0)
    said = iter([sample.answers[0] for sample in samples])
    monkeypatch.setattr(answering, "generated", lambda adapter, prompts, **more: [next(said) for _ in prompts])
    if name == "coco":
        samples = [replace(sample, answers=("yes",)) for sample in samples]
        said = iter(["Yes, there is"] * len(samples))
    ask = asking(tmp_path, samples, name=name)
    ask.run(samples, [Condition(TEXT)])
    scores = {row.score for row in ask.rows.rows[Condition(TEXT)].values()}
    assert scores == ({0.3333} if "vqa_accuracy" in DATA_SETS[name] else {1.0})  # two people, not ten


def test_what_each_condition_shows(samples, tmp_path):
    """Tokens, and whether the model sees the same as under another condition."""
    ask = asking(tmp_path, samples)
    number = 0
    sample, other = samples[number], samples[other_pages(samples)[number]]
    pages = [AskedPage(one.image, ask.adapter, ask.words) for one in (sample, other)]

    def shown(*condition, sample=sample, other=other):
        found = ask._prompt(Condition(*condition), sample, other, *pages)
        inputs = prompted.batched_inputs(ask.adapter, [found])
        return found.tokens, inputs

    tokens, full = shown(FULL)
    rows, columns = ask.adapter.grid_for((160, 240))
    assert tokens == rows * columns and len(full["pixel_values"]) == 4 * tokens
    assert shown(TEXT)[0] == 0 and "pixel_values" not in shown(TEXT)[1]
    resized = shown(OWN, "", "", 12)
    assert 6 < resized[0] <= 12
    blank, page = shown(BLANK, "", "", 12), shown(PAGE, "", "", 12)
    assert blank[0] == page[0] == resized[0]
    assert (blank[1]["pixel_values"] == 1).all() and not torch.equal(page[1]["pixel_values"], blank[1]["pixel_values"])
    assert not torch.equal(page[1]["pixel_values"], resized[1]["pixel_values"])
    assert torch.equal(page[1]["input_ids"], resized[1]["input_ids"])  # the right question about the wrong page
    chosen, wrong = (shown(kind, "auto", "scout", 6) for kind in ("chosen", QUESTION))
    assert torch.equal(chosen[1]["input_ids"][:, :10], wrong[1]["input_ids"][:, :10])  # the same question is asked
    assert {asked for kind, asked, *_ in pages[0]._found if kind == "placed"} == {sample.question, other.question}
    assert sample.question != other.question and sample.image != other.image


def test_the_oracle_looks_at_the_true_boxes(samples, tmp_path):
    ask = asking(tmp_path, samples)
    page = AskedPage(samples[0].image, ask.adapter, ask.words)
    for sample in samples[:2]:  # above on the left, and below on the right
        finest = page.located(sample.boxes, "auto", 6).given
        used = finest.valid[0]
        best = finest.level[0].masked_fill(~used, 99).argmin()
        (x0, y0, x1, y1), (left, top, right, bottom) = sample.boxes[0], finest.boxes[0, best].tolist()
        assert left < x1 and right > x0 and top < y1 and bottom > y0
    shares = box_map([(30, 0, 60, 20)], (40, 120), (2, 4))
    assert torch.equal(shares, torch.tensor([[0.0, 1, 0, 0], [0, 0, 0, 0]]))
    assert box_map([(15, 10, 45, 20)], (40, 120), (2, 4))[0].tolist() == [0.25, 0.25, 0, 0]


def test_the_model_itself_chooses(samples, tmp_path, monkeypatch):
    ask = asking(tmp_path, samples)
    page = AskedPage(samples[0].image, ask.adapter, ask.words)
    seen = []

    def left(adapter, question, textures, allocations):
        seen.append(question)
        (allocation,) = allocations
        found = (allocation.valid[0] & (allocation.centre[0, :, 0] < allocation.size[1] / 2)).float()
        return [found / found.sum()]

    monkeypatch.setattr("texturevlm.ask.attention.question_attention", left)
    mass = page.placed("Where?", "auto", "model", 64).relevance.mass[0]
    assert float(mass[:, : mass.shape[1] // 2].sum()) > 0.8
    assert 0 < page.placed("Where?", "auto", "model", 6).tokens <= 6 and seen == [
        "Where?"
    ]  # the model is asked once per question


def test_the_oracle_is_not_asked_where_no_box_is_known(tmp_path, samples):
    some = [replace(samples[0], boxes=()), *samples[1:]]
    ask = asking(tmp_path, some)
    wanted = [Condition(ORACLE, "auto", "", 6), Condition(TEXT)]
    ask.run(some, wanted)
    assert sorted(ask.rows.rows[wanted[0]]) == [1, 2, 3, 4, 5] and len(ask.rows.rows[wanted[1]]) == 6


def test_one_batch_is_one_call_and_gives_the_answers_of_single_questions(tmp_path, samples, monkeypatch):
    real, calls = prompted.generated, []

    def counted(adapter, prompts, **options):
        calls.append(len(prompts))
        return real(adapter, prompts, **options)

    monkeypatch.setattr(answering, "generated", counted)
    monkeypatch.setattr(answering, "TIMED", 0)
    wanted = [Condition("chosen", "auto", "scout", 6), Condition(OWN, budget=12), Condition(TEXT)]
    (tmp_path / "one").mkdir()
    together, alone = asking(tmp_path, samples, batch=6), asking(tmp_path / "one", samples, batch=1)
    together.run(samples, wanted)
    assert calls == [6, 6, 6]
    alone.run(samples, wanted)
    assert calls[3:] == [1] * 18
    for condition in wanted:
        for number, row in together.rows.rows[condition].items():
            other = alone.rows.rows[condition][number]
            assert (row.score, row.tokens) == (other.score, other.tokens)
            assert row.likelihood == pytest.approx(other.likelihood, abs=1e-3)


def test_likelihoods_are_those_of_the_logits(samples):
    """Token by token, against a forward pass over one prompt without padding; the end of the answer counts."""
    adapter = model().adapter
    image = own_input(adapter, Image.open(samples[0].image).convert("RGB"), 12)
    prompts = [prompted.own_prompt(adapter, text, image) for text in ("Where?", "What is the total of it?")]
    texts = ["alpha0", "12"]
    found = prompted.log_likelihoods(adapter, prompts, texts)
    assert [len(one) for one in found] == [7, 3]
    for prompt, text, likelihoods in zip(prompts, texts, found):
        ending = [*make_tokenizer()(text)["input_ids"], END]
        inputs = prompted.batched_inputs(adapter, [prompt], [ending])
        with torch.no_grad():
            logits = adapter.model(**inputs).logits[0].log_softmax(-1)
        wanted = [float(logits[len(prompt.ids) - 1 + at, token]) for at, token in enumerate(ending)]
        assert likelihoods == pytest.approx(wanted, abs=1e-4)
    with pytest.raises(ValueError, match="log_likelihoods: answers must have at least one token"):
        adapter.model.generation_config.eos_token_id, kept = None, adapter.model.generation_config.eos_token_id
        try:
            prompted.log_likelihoods(adapter, prompts, ["a", ""])
        finally:
            adapter.model.generation_config.eos_token_id = kept


@pytest.mark.parametrize("method", ["fastv", "cdpruner"])
def test_a_reduction_does_not_look_at_the_answer_that_is_judged(method, samples):
    """How likely an answer begins with 1 does not depend on how it goes on."""
    adapter = model().adapter
    texture = Texture.open(Image.open(samples[0].image).convert("RGB"))
    allocation = own_grid(adapter, texture)
    prompts = [prompted.chosen_prompt(adapter, "Where?", [texture], [allocation])] * 3
    options = {"hooks": (TokenReduction(steps=steps_of("eval", method, 3)),)}
    found = prompted.log_likelihoods(adapter, prompts, ["1", "19", "1alpha"], **options)
    assert [one[0] for one in found] == pytest.approx([found[0][0]] * 3, abs=1e-4)
    assert found[0][0] != pytest.approx(prompted.log_likelihoods(adapter, prompts[:1], ["1"])[0][0], abs=1e-4)


@pytest.mark.parametrize("relevance", ["none", "scout", "model"])
def test_each_budget_shows_print_as_finely_as_it_needs(samples, tmp_path, monkeypatch, relevance):
    ask = asking(tmp_path, samples)
    finer = Finer(((16, 3.0), (256, 1.5)))
    monkeypatch.setattr(ask.adapter, "trained", replace(ask.adapter.trained, finer=finer))
    page = AskedPage(samples[0].image, ask.adapter, ask.words)
    scales = [
        page.placed("Where?", "auto", relevance, budget).relevance.legible_scale * finer.at(budget)
        for budget in (16, 64, 256)
    ]
    torch.testing.assert_close(scales[0], scales[1])
    torch.testing.assert_close(scales[0], scales[2])


def test_reduced_conditions_choose_more_and_keep_the_budget(tmp_path, samples):
    ask = asking(tmp_path, samples)
    plain, reduced = Condition(CHOSEN, "resize", "none", 6), Condition(CHOSEN, "resize", "none", 6, "fastv")
    ask.run(samples, [plain, reduced])
    again = asking(tmp_path, samples).rows.rows
    assert set(again) == {plain, reduced}
    page = AskedPage(samples[0].image, ask.adapter, ask.words)
    chosen = ask._prompt(reduced, samples[0], samples[1], page, None).tokens
    assert 6 < chosen <= 12
    assert again[reduced][0].tokens == 6
    assert again[plain][0].tokens <= 6
    assert [row.likelihood for row in again[plain].values()] != [row.likelihood for row in again[reduced].values()]


def test_our_own_input_is_the_stock_models(samples):
    """The full resolution goes through the unmodified path: the same logits after the hooks are removed."""
    adapter = model().adapter
    image = own_input(adapter, Image.open(samples[0].image).convert("RGB"))
    inputs = prompted.batched_inputs(adapter, [prompted.own_prompt(adapter, "Where?", image)])
    with torch.no_grad():
        ours = adapter.model(**inputs).logits
        bound = adapter.model.texturevlm_adapter
        bound.restore()
        try:
            assert torch.equal(ours, adapter.model(**inputs).logits)
        finally:
            bound.bind(adapter.model)


@pytest.mark.parametrize("most", [7, 16, 20, 33, 64, 273])
@pytest.mark.parametrize("size", [(160, 240), (40, 40), (700, 90), (64, 460), (470, 470)])
def test_the_models_own_resize_stays_within_the_budget(size, most):
    image = own_input(model().adapter, Image.new("RGB", size[::-1]), most)
    assert 1 <= image.tokens <= most


def test_full_resolution_is_what_the_context_holds(samples, tmp_path, monkeypatch):
    ask = asking(tmp_path, samples)
    assert ask._full(samples[0]) is None
    rows, columns = ask.adapter.grid_for(samples[0].size)
    room = answering.CONTEXT_ROOM + ask.new_tokens
    monkeypatch.setattr(ask.adapter.config.get_text_config(), "max_position_embeddings", room + rows * columns - 5)
    page = AskedPage(samples[0].image, ask.adapter, ask.words)
    found = ask._prompt(Condition(FULL), samples[0], samples[0], page, None)
    assert rows * columns - 15 < found.tokens <= rows * columns - 5


def test_time_and_memory_of_the_first_questions_alone(tmp_path, samples, monkeypatch):
    monkeypatch.setattr(answering, "TIMED", 2)
    ask = asking(tmp_path, samples, batch=6)
    condition = Condition("chosen", "auto", "none", 6)
    ask.run(samples, [condition])
    timed = [number for number, row in ask.rows.rows[condition].items() if row.ms is not None]
    assert timed == [0, 1] and ask.rows.rows[condition][0].ms > 0
    other = asking(tmp_path / "untimed", samples, batch=6, timed=False)
    other.run(samples, [condition])
    assert all(row.ms is None for row in other.rows.rows[condition].values())


def test_answers_decoded_from_a_graph_are_the_same(tmp_path, samples):
    """Reduced or not, and for the model's own input; without a GPU what would be captured runs as it is."""
    wanted = [
        Condition(TEXT),
        Condition(OWN, budget=6),
        *conditions(["resize"], [], [6], [CHOSEN], reductions=["fastv"]),
    ]
    plain = asking(tmp_path / "plain", samples, timed=False)
    decode = CapturedDecode(plain.adapter)
    graph = asking(tmp_path / "graph", samples, timed=False, decode=decode, texts=tmp_path / "texts.jsonl")
    for one in (plain, graph):
        one.run(samples, wanted)
    assert plain.rows.rows == graph.rows.rows and decode.replay is not None


class Killed(BaseException):
    pass


@pytest.mark.parametrize("torn", [0, 1, 7])
def test_a_killed_run_goes_on_where_it_was(tmp_path, samples, monkeypatch, torn):
    """Nothing is lost and nothing counted twice, even if the last line was half written."""
    monkeypatch.setattr(answering, "TIMED", 0)
    wanted = [Condition(TEXT), Condition(OWN, budget=6), Condition("chosen", "auto", "none", 6)]
    whole = asking(tmp_path / "whole", samples)
    whole.run(samples, wanted)
    real, asked = prompted.generated, []

    def dying(adapter, prompts, **options):
        if len(asked) == 8:
            raise Killed
        asked.extend(prompts)
        return real(adapter, prompts, **options)

    monkeypatch.setattr(answering, "generated", dying)
    with pytest.raises(Killed):
        asking(tmp_path, samples).run(samples, wanted)
    file = tmp_path / "answers.jsonl"
    file.write_bytes(file.read_bytes()[: -torn or None])
    monkeypatch.setattr(answering, "generated", lambda *one, **more: asked.extend(one[1]) or real(*one, **more))
    again = asking(tmp_path, samples)
    again.run(samples, wanted)
    assert len(asked) == 3 * len(samples) + (torn > 0)  # a torn line is asked again, and no other
    written = [tuple(line[:2]) for line in map(json.loads, file.read_text().splitlines()) if isinstance(line, list)]
    assert len(written) == len(set(written)) == 3 * len(samples)
    assert AnswerRows.read(file).rows == again.rows.rows
    scores = [{n: row.score for n, row in rows.items()} for run in (whole, again) for rows in run.rows.rows.values()]
    assert scores[:3] == scores[3:]
    assert answers_page(AnswerRows.read(file)).splitlines()[4:9] == answers_page(again.rows).splitlines()[4:9]


def test_a_run_killed_while_it_wrote_its_first_line_begins_again(tmp_path, samples):
    asking(tmp_path, samples)
    file = tmp_path / "answers.jsonl"
    file.write_bytes(file.read_bytes()[:20])
    assert asking(tmp_path, samples).rows.rows == {}
    assert AnswerRows.read(file).settings == SETTINGS


def test_rows_of_other_settings_or_versions_are_refused(tmp_path, samples):
    ask = asking(tmp_path, samples)
    file = tmp_path / "answers.jsonl"
    with pytest.raises(ValueError, match="same settings, got metric 'anls' there, 'f1' now"):
        AnswerRows.open(file, SETTINGS | {"metric": "f1"}, ask.rows.questions)
    with pytest.raises(ValueError, match="got 6 other questions there, 5 now"):
        AnswerRows.open(file, SETTINGS, ask.rows.questions[1:])
    assert AnswerRows.open(file, SETTINGS | {"metric": "f1"}, ask.rows.questions, fresh=True).settings["metric"] == "f1"
    file.write_text(file.read_text().replace('"answers": 1', '"answers": 9'))
    with pytest.raises(ValueError, match=r"answers.jsonl must be of version 1, got version 9"):
        AnswerRows.read(file)
    file.write_text('{"settings": {}}\n')
    with pytest.raises(ValueError, match="must begin with the settings of a run with a model"):
        AnswerRows.read(file)


@pytest.mark.parametrize(
    "line",
    [
        "[0, 0, 1]",
        "[5, 0, 1, -1, 0, 1]",
        "[0, 99, 1, -1, 0, 1]",
        "3",
        '{"condition": ["x"]}',
        '{"condition": ["text", "", "", 0]}',
    ],
)
def test_a_broken_line_is_named(tmp_path, samples, line):
    ask = asking(tmp_path, samples)
    ask.rows.add(Condition(TEXT), {})
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=r"answers.jsonl:3: must be a line of answers, got"):
        AnswerRows.read(tmp_path / "answers.jsonl")


def test_a_page_that_cannot_be_read_is_named_and_left_out(tmp_path):
    folder = write_folder(tmp_path / "data", pages=3)
    samples = load_data(folder).samples
    broken = folder / "images" / "1.png"
    broken.write_bytes(broken.read_bytes()[:-200])  # a header alone tells nothing
    ask = asking(tmp_path, samples)
    ask.run(samples, [Condition(TEXT), Condition(PAGE, budget=6)])
    assert sorted(ask.rows.rows[Condition(TEXT)]) == [0, 1, 4, 5]
    assert len([what for what in ask.failed if "1.png cannot be read" in what]) >= 1


def test_a_page_that_the_models_own_processor_refuses_is_named_and_left_out(tmp_path, samples, monkeypatch):
    own, refused = AskedPage.own, samples[0].image

    def refusing(page, most):
        if page.path == refused:
            raise ValueError("cannot reshape array of size 29952")
        return own(page, most)

    monkeypatch.setattr(AskedPage, "own", refusing)
    ask = asking(tmp_path, samples)
    ask.run(samples, [Condition(OWN, budget=6)])
    assert ask.failed == [f"image {refused}, by the model's own processor: cannot reshape array of size 29952"]
    left = {number for number, sample in enumerate(samples) if sample.image != refused}
    assert set(ask.rows.rows[Condition(OWN, budget=6)]) == left


def test_every_condition_shows_a_transparent_page_over_white(tmp_path):
    page = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    page.save(tmp_path / "clear.png")
    shown = AskedPage(tmp_path / "clear.png", model().adapter, PageCache(tmp_path))
    assert shown.image.getextrema() == ((255, 255),) * 3
    assert float(shown.upright.texture.levels[0].min()) == 1


def test_too_little_memory_halves_the_batch(tmp_path, samples, monkeypatch):
    real, sizes = prompted.generated, []

    def small(adapter, prompts, **options):
        sizes.append(len(prompts))
        if len(prompts) > 2:
            raise torch.OutOfMemoryError
        return real(adapter, prompts, **options)

    monkeypatch.setattr(answering, "generated", small)
    monkeypatch.setattr(answering, "TIMED", 0)
    samples = [*samples, *(replace(sample, id=f"{sample.id}-again") for sample in samples[:2])]
    ask = asking(tmp_path, samples)
    ask.run(samples, [Condition(TEXT)])
    assert sizes == [4, 2, 2, 2, 2] and len(ask.rows.rows[Condition(TEXT)]) == 8  # the next four are not tried at once


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl"])
def test_other_families(tmp_path, samples, family, monkeypatch):
    """LLaVA's processor cannot be asked for fewer tokens: its grid and our resize stand in."""
    monkeypatch.setattr(answering, "TIMED", 0)
    adapter = VLM(*models.built(family)).adapter
    own = has_own_input(adapter)
    assert own == (family != "llava")
    wanted = conditions(["auto", "resize"], ["none"], [6], own=own)
    rows = AnswerRows.open(tmp_path / "answers.jsonl", SETTINGS, [(sample.id, sample.image.name) for sample in samples])
    ask = Asking(adapter, ANSWER_METRICS["anls"], rows, PageCache(tmp_path), suffix="", new_tokens=2)
    if own:  # the processor of this test model does not resize
        wanted = [one for one in wanted if one.kind != FULL]
    ask.run(samples, wanted)
    assert not ask.failed and [len(found) for found in rows.rows.values()] == [len(samples)] * len(wanted)
    for condition, found in rows.rows.items():
        assert all(row.tokens <= (condition.budget or 36) for row in found.values())
    if not own:
        assert rows.rows[Condition(FULL)][0].tokens == 36
        assert answer_lines(rows)[Condition("chosen", "auto", "none", 6)].to_resize is not None


def test_the_question_of_another_page_differs_from_the_right_one(samples):
    for number, other in enumerate(other_pages(samples)):
        assert samples[other].image != samples[number].image
        assert samples[other].question != samples[number].question
    same = [replace(sample, question="What is the total?") for sample in samples]
    assert all(same[other].image != same[number].image for number, other in enumerate(other_pages(same)))
    assert other_pages(same[:2]) == [0, 1]  # one page alone has no other


def test_one_page_alone_has_no_controls_of_another_page(tmp_path, samples):
    one_page = [sample for sample in samples if sample.image == samples[0].image]
    ask = asking(tmp_path, one_page)
    wanted = [Condition(TEXT), Condition(PAGE, budget=6), Condition(QUESTION, "auto", "scout", 6)]
    ask.run(one_page, wanted)
    assert not ask.failed and {one: len(found) for one, found in ask.rows.rows.items()} == {wanted[0]: len(one_page)}


def test_likeliest():
    assert likeliest(["a", "b", "b"]) == "b" and likeliest(["a", "b"]) == "a"


def test_lines_come_from_rows_alone(finished):
    lines = answer_lines(AnswerRows.read(finished[0] / "answers.jsonl"))
    assert set(lines) == set(ALL)
    assert {one for one, line in lines.items() if line.to_full is None} == {Condition(FULL)}
    resize = {one for one, line in lines.items() if line.to_resize is None}
    assert {one.kind for one in resize} == {FULL, TEXT, BLANK, PAGE, OWN}
