"""The question of a prompt comes from its messages, whatever the template makes of them."""

import copy
import warnings
from pathlib import Path

import pytest
from PIL import Image

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION, conversation, inputs_of, picture
from texturevlm.ask import messages as questions
from texturevlm.ask import processor as module
from texturevlm.ask.messages import question_of
from texturevlm.ask.processor import TextureProcessor

MARK = "<|image_pad|>"
CONTENT = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}"
    "{{ c.text if c.type == 'text' else '<|image_pad|>' }}{% endfor %}{% endif %}"
)
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n" + CONTENT + "<|im_end|>\n{% endfor %}",
    "vicuna": "{% for m in messages %}{{ m.role | upper }}: " + CONTENT + " {% endfor %}ASSISTANT:",
    "inst": "{% for m in messages %}{% if m.role == 'assistant' %} "
    + CONTENT
    + "</s>{% else %}[INST] "
    + CONTENT
    + " [/INST]{% endif %}{% endfor %}",
}
SYSTEM = {"role": "system", "content": [{"type": "text", "text": "You help the user. ASSISTANT: no"}]}
HISTORY = [
    *conversation(picture(64, 64), question="Who signed?"),
    {"role": "assistant", "content": [{"type": "text", "text": "Nobody did."}]},
]


@pytest.fixture(scope="module")
def processor():
    model, given = models.built("qwen3_vl")
    return TextureProcessor(given, model.config, budget=4, relevance="none")


@pytest.fixture
def asked(monkeypatch):
    """The questions that tokens were chosen for."""
    found, place_together = [], module.place_together

    def recording(pictures, question, how):
        found.append(question)
        return place_together(pictures, question, how)

    monkeypatch.setattr(module, "place_together", recording)
    return found


def user(text, *images):
    return conversation(*images, question=text)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    ("messages", "question"),
    [
        (user("System voltage on this plate?", picture(64, 64)), "System voltage on this plate?"),
        (user("User name?", picture(64, 64)), "User name?"),
        ([SYSTEM, *HISTORY, *user("And when?")], "And when?"),
        ([SYSTEM, *HISTORY], "Who signed?"),  # as in training data: the assistant has the last turn
        ([*HISTORY, {"role": "user", "content": "assistant: [INST] why?"}], "assistant: [INST] why?"),
        (user("", picture(64, 64)), ""),
    ],
)
def test_the_question_is_the_last_turn_of_the_user(processor, asked, template, messages, question):
    options = {"chat_template": TEMPLATES[template]}
    inputs_of(processor, messages, **options)
    text = processor.apply_chat_template(messages, tokenize=False, **options)
    processor(text=text, images=picture(64, 64))
    assert asked == [question, question]


def test_placeholders_in_the_text_are_no_part_of_the_question(processor, asked):
    """As LLaVA's training data has them."""
    text = processor.apply_chat_template(
        [{"role": "user", "content": f"{MARK}\nWhat is it?"}], chat_template=TEMPLATES["vicuna"]
    )
    processor(text=text, images=picture(64, 64))
    assert asked == ["What is it?"]


def test_blocks_of_the_openai_format(processor, asked, tmp_path):
    picture(64, 64).save(tmp_path / "image.png")
    url = {"type": "image_url", "image_url": {"url": str(tmp_path / "image.png")}}
    messages = [
        {"role": "user", "content": [url, {"type": "text", "text": "What is"}, {"type": "text", "text": "it?"}]}
    ]
    found = inputs_of(processor, messages)
    assert asked == ["What is it?"] and found["pixel_values"].shape[0] == 4 * 4


def test_a_batch_has_a_question_each(processor, asked):
    batch = [user(text, picture(64, 64, seed)) for seed, text in enumerate(("one?", "two?", "three?"))]
    inputs_of(processor, batch, processor_kwargs={"padding": True})
    texts = processor.apply_chat_template(batch, tokenize=False)
    processor(text=list(reversed(texts)), images=[picture(64, 64)] * 3)
    assert asked == ["one?", "two?", "three?", "three?", "two?", "one?"]


def test_a_question_may_be_given(processor, asked):
    processor(text=f"{MARK} total", images=picture(64, 64), question="what?")
    processor(text=[MARK, MARK], images=[picture(64, 64)] * 2, question=["one?", "two?"])
    inputs_of(processor, user("one?", picture(64, 64)), processor_kwargs={"question": "rather this?"})
    assert asked == ["what?", "one?", "two?", "rather this?"]
    with pytest.raises(ValueError, match=r"question must be one per text \(2\), got 1"):
        processor(text=[MARK, MARK], images=[picture(64, 64)] * 2, question="what?")
    with pytest.raises(TypeError, match="question must be a text or a list of texts, got int"):
        processor(text=[MARK], images=[picture(64, 64)], question=[3])


def test_an_unknown_text_warns_once_and_is_chosen_for_without_a_question(asked):
    model, given = models.built("qwen3_vl")
    processor = tv.attach(model, given, budget=4, relevance="auto")
    with pytest.warns(UserWarning, match="the question of this prompt is unknown") as caught:
        for _ in range(3):
            processor(text=[f"{MARK} what", f"{MARK} is"], images=[picture(64, 64)] * 2)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert asked == [""] * 6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = processor.apply_chat_template(user("", picture(64, 64)), tokenize=False)
        processor(text=text, images=picture(64, 64))  # known, and empty
        processor(text="what is there ?")
        for relevance in ("prior", "none"):  # which read no question
            unasked = tv.attach(model, given, budget=4, relevance=relevance)
            unasked(text=f"{MARK} what", images=picture(64, 64))


def test_an_answer_may_be_appended(processor, asked):
    """As collators for training do."""
    first = processor.apply_chat_template(user("one?", picture(64, 64)), tokenize=False)
    both = [*user("one?", picture(64, 64)), {"role": "assistant", "content": []}, *user("two?")]
    second = processor.apply_chat_template(both, tokenize=False)
    assert second.startswith(first)
    for text in (first, second):
        processor(text=f"{text} total 4 2", images=picture(64, 64))
    assert asked == ["one?", "two?"]


def test_rendered_texts_are_forgotten_in_the_end(processor, asked, monkeypatch):
    monkeypatch.setattr(questions, "REMEMBERED", 3)
    other = copy.deepcopy(processor)
    texts = [other.apply_chat_template(user(f"{number} ?", picture(8, 8)), tokenize=False) for number in range(5)]
    for text in texts:
        other(text=text, images=picture(64, 64))
    assert asked == ["", "", "2 ?", "3 ?", "4 ?"]


def test_questions_move_the_tokens(asked):
    """Or all of the above would be for nothing."""
    model, given = models.built("qwen3_vl")
    processor = TextureProcessor(given, model.config, budget=24, relevance="scout")
    page = Image.open(Path(__file__).parents[2] / "examples" / "invoice.png").crop((700, 1000, 1240, 1300))
    questions = ("What is the total due?", "Who is the chairman of the committee?")
    first, second = (inputs_of(processor, user(text, page))["pixel_values"] for text in questions)
    assert first.shape != second.shape or not first.equal(second)


@pytest.mark.parametrize(
    ("messages", "question"),
    [
        ([], ""),
        ([{"role": "system", "content": "Be brief."}], ""),
        ([{"role": "user", "content": None}], ""),
        ([{"role": "user", "content": ["what?"]}], "what?"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text"}]}], "a"),
        (conversation(question=QUESTION), QUESTION),
    ],
)
def test_question_of(messages, question):
    assert question_of(messages) == question
