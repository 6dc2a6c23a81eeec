"""A document is asked like an image: pages are chosen per question, and the prompt names them."""

import pytest
from PIL import Image

import texturevlm as tv
from tests.ask import models
from tests.pages.papers import WORDS, paper, pdf_of
from texturevlm.ask import session as documents
from texturevlm.ask.messages import IMAGE, conversation_with
from texturevlm.vlm.trained import trained_as


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("documents") / "report.pdf"
    path.write_bytes(pdf_of([paper(word) for word in WORDS[:4]]))
    return path


@pytest.fixture
def model(qwen):
    return models.asked(qwen, budget=40, relevance="scout")


def test_the_details_list_pages_and_tokens(model, report):
    answer = model.ask(report, "the mosquito", return_details=True, max_new_tokens=2)
    assert 4 in answer.pages and set(answer.pages) <= {1, 2, 3, 4}
    tokens = [one.tokens for one in answer.placements]
    assert list(answer.pages.values()) == tokens and sum(tokens) <= 40
    assert model.ask(Image.new("RGB", (64, 64)), "x", return_details=True, max_new_tokens=2).pages == {}


def test_the_prompt_names_the_pages(model, report, monkeypatch):
    asked = []
    monkeypatch.setattr(model.generator, "answers", lambda batch, *_: [asked.append(one) for one in batch])
    model.ask(report, ["the umbrella", [{"role": "user", "content": "the zeppelin"}]])
    for one, question in zip(asked, ("the umbrella", "the zeppelin")):
        (message,) = one.prompt
        *pages, last = message["content"]
        names = [f"Page {number} of 4:" for number in one.pages]
        assert [block["text"] for block in pages[::2]] == names and pages[1::2] == [IMAGE] * len(names)
        assert last["text"] == question
        assert len(one.textures) == len(names)
    assert 2 in asked[0].pages and 3 in asked[1].pages


def test_a_template_that_writes_text_first_gets_no_names(model, report, monkeypatch):
    template = "{% for m in messages %}{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}"
    template += "{% for p in m.content if p.type == 'image' %}" + model.adapter.marks[0] + "{% endfor %}{% endfor %}"
    assert documents._keeps_places(model.adapter)
    for owner in (model.adapter.processor, model.adapter.processor.tokenizer):
        if getattr(owner, "chat_template", None):
            monkeypatch.setattr(owner, "chat_template", template)
    assert not documents._keeps_places(model.adapter)


def test_the_same_question_is_not_read_twice(model, report, monkeypatch):
    calls = []
    real = documents.choose_pages
    monkeypatch.setattr(documents, "choose_pages", lambda *args, **given: calls.append(1) or real(*args, **given))
    session = model.prepare(report)
    session.ask("the umbrella", max_new_tokens=2)
    picture = session.look("the umbrella")
    assert len(calls) == 1 and picture.size[0] > 0
    chosen = session.choose("the zeppelin")
    assert len(calls) == 2
    assert 0 < sum(one.tokens for one in chosen) <= 40


def test_at_most_so_many_pages_get_tokens_of_their_own(model, report, monkeypatch):
    def pages(**options):
        found = model.ask(report, "the umbrella", return_details=True, max_new_tokens=2, **options).pages
        return [number for number, tokens in found.items() if tokens > 1]  # the others are on the sheet

    assert pages(fine_pages=1) == [2] and len(pages(fine_pages=2)) == 2
    assert len(model.prepare(report).choose("the umbrella", fine_pages=1)) == 2  # with the sheet
    assert model.look(report, "the umbrella", fine_pages=1).size != model.look(report, "the umbrella").size
    monkeypatch.setattr(model.model.config, "texturevlm", {"fine_pages": 1}, raising=False)
    model = tv.VLM(model.model, model.processor.processor, budget=40, relevance="scout")
    assert pages() == [2] and len(pages(fine_pages=2)) == 2  # what the checkpoint names is a default


def test_the_number_of_pages_is_part_of_a_checkpoint():
    config = type("Config", (), {"texturevlm": {"fine_pages": 2}})
    assert trained_as(config).fine_pages == 2
    config.texturevlm = {"fine_pages": 0}
    with pytest.raises(ValueError, match=r"fine_pages in texturevlm of config\.json must be between 1 and 20, got 0"):
        trained_as(config)


def test_what_documents_cannot_do_is_refused(model, report):
    with pytest.raises(ValueError, match="ask: looks must be 1 for a document, got 2"):
        model.ask(report, "x", looks=2, relevance="auto")
    with pytest.raises(ValueError, match="ask: looks must be 1 for a document, got auto"):
        model.ask(report, "x", looks="auto")
    for wrong in (0, 21):
        with pytest.raises(ValueError, match=f"ask: fine_pages must be between 1 and 20, got {wrong}"):
            model.ask(report, "x", fine_pages=wrong)
    with pytest.raises(ValueError, match="ask: fine_pages is for a document, got 2 with a ImageSession"):
        model.ask(Image.new("RGB", (64, 64)), "x", fine_pages=2)
    with pytest.raises(ValueError, match="is a PDF, not an image"):
        model.ask([report, report], "x")
    with pytest.raises(FileNotFoundError, match=r"ask: no such file: none\.pdf"):
        model.ask("none.pdf", "x")


def test_messages_with_names_put_them_before_their_images():
    (message,) = conversation_with("what ?", 2, ["<i>"], apart=True, names=["Page 1:", "Page 9:"])
    one, two = ({"type": "text", "text": name} for name in ("Page 1:", "Page 9:"))
    assert message["content"] == [one, IMAGE, two, IMAGE, {"type": "text", "text": "what ?"}]
