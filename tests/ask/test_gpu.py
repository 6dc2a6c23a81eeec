"""On a GPU, in bfloat16: what is captured answers as transformers' own path does, in one piece or in several.

Answers are compared by the scores behind every token, up to the first one where rounding may tip the balance.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.ask.models import QUESTION, conversation, picture
from tests.vlm import small
from texturevlm import vlm
from texturevlm.placement.finer import Finer
from texturevlm.types import Texture

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BUDGET = 20
ROUNDING = 0.02  # of the scores' range; on a CPU bfloat16 moves them by up to 0.008, another image by 0.06 and more


@pytest.fixture(params=["qwen3_vl", "qwen2_5_vl"], scope="module")
def adapter(request):
    return on_gpu(request.param)


def on_gpu(family):
    model, processor = models.built(family)
    return vlm.adapt(model.to(DEVICE, torch.bfloat16), processor)


@pytest.fixture(autouse=True)
def without_compiler(request, monkeypatch):
    """Graphs alone, since torch.compile takes longer than all the rest; one test has both."""
    if "compiled" not in request.node.name:
        for module in ("texturevlm.ask.generation", "texturevlm_lab.rivals.hooks.captured"):
            monkeypatch.setattr(f"{module}.CapturedPrefill", partial(vlm.CapturedPrefill, compiled=False))


def both(adapter, **options):
    """The model by transformers' own path, and captured."""
    return [models.asked(adapter, budget=BUDGET, captured=one, **options) for one in (False, True)]


class Scores:
    """Keeps what every token of answers was chosen by."""

    def __init__(self):
        from transformers import LogitsProcessorList

        self.steps = []
        self.options = {"max_new_tokens": 6, "logits_processor": LogitsProcessorList([self])}

    def __call__(self, input_ids, scores):
        self.steps.append(scores.float().cpu())
        return scores

    def of(self, row):
        """Of one answer."""
        return [step[row] for step in self.steps]


def told(ask, *inputs, **options):
    """An answer, as text and as scores."""
    scores = Scores()
    found = ask(*inputs, **scores.options, **options)
    return found if isinstance(found, str) else "".join(found).strip(), scores.of(0)


def distance(one, other):
    """Between the scores of two tokens, as a part of their range."""
    return float((one - other).abs().max() / (other.max() - other.min()))


def check_same(one, other):
    """The same answer: the same scores, and as long as they choose the same tokens, the same text."""
    (text, steps), (wanted, theirs) = one, other
    assert len(steps) == len(theirs) == 6
    for ours, step in zip(steps, theirs):
        assert distance(ours, step) < ROUNDING
        if int(ours.argmax()) != int(step.argmax()):
            return
    assert text == wanted


def test_one_question(adapter):
    """Sizes of every kind, one capture; the scores of another image are far off."""
    plain, replayed = both(adapter, relevance="none")
    seen = []
    for size in ((150, 260), (300, 64), (10, 10)):
        image = models.noise(*size)
        seen.append(told(plain.ask, image, QUESTION))
        check_same(told(replayed.ask, image, QUESTION), seen[-1])
    assert replayed.reasons == [] and plain.graphs.fixed is None
    assert replayed.graphs.fixed.tower.reason is None and len(replayed.graphs.fixed.prefills) == 1
    assert distance(seen[0][1][0], seen[1][1][0]) > 2 * ROUNDING


def test_several_questions_on_one_image(adapter):
    image = models.noise(200, 300)
    sessions = [one.prepare(image) for one in both(adapter)]
    for question in (QUESTION, "and there ?", "what is the total and what is there ? " * 4):
        plain, replayed = (told(session.ask, question, relevance="none") for session in sessions)
        check_same(replayed, plain)
    assert sessions[1].model.reasons == [] and len(sessions[1].model.graphs.fixed.prefills) == 2


def test_an_image_that_is_asked_often_is_read_by_the_texture_units(adapter):
    """They blend with 8 bits, which moves the scores as little as bfloat16 does."""
    image = models.noise(200, 300)
    for model in both(adapter, relevance="none"):
        plain, kept = model.prepare(image), model.prepare(image, questions=10_000)
        assert plain.pictures[0].texture.resident is None and kept.pictures[0].texture.resident is not None
        check_same(told(kept.ask, QUESTION), told(plain.ask, QUESTION))


def test_questions_that_are_answered_together(adapter):
    """About images of several sizes, in prompts of several lengths; the second time everything is a replay."""
    plain, replayed = both(adapter, relevance="none")
    images = [[models.noise(100 + 40 * index, 140, seed=index)] for index in range(4)]
    questions = [QUESTION + " and the ?" * (index % 3) for index in range(4)]
    scores = Scores()
    wanted = plain.ask(images, questions, **scores.options)
    for _ in range(2):
        ours = Scores()
        found = replayed.ask(images, questions, **ours.options)
        assert replayed.reasons == [] and replayed.graphs.together[4].decode.replay is not None
        for row in range(4):
            check_same((found[row].strip(), ours.of(row)), (wanted[row].strip(), scores.of(row)))


@pytest.mark.parametrize("size", [(260, 200), (700, 300)])
def test_two_looks(adapter, size):
    image = models.noise(*size)
    plain, replayed = both(adapter)
    check_same(told(replayed.ask, image, QUESTION, looks=2), told(plain.ask, image, QUESTION, looks=2))
    assert replayed.reasons == [] and replayed.graphs.fixed.tower is not None


@pytest.mark.parametrize("method", ["stride", "cdpruner"])
def test_reduced_between_two_graphs(adapter, method):
    plain, replayed = both(adapter, relevance="none")
    for size in ((200, 300), (300, 120)):
        image, options = models.noise(*size), {"reduce": method, "keep": 6}
        check_same(told(replayed.ask, image, QUESTION, **options), told(plain.ask, image, QUESTION, **options))
    fixed = replayed.graphs.fixed
    assert replayed.reasons == [] and fixed.wide.tower.reason is None and len(fixed.narrow.prefills) == 1


@pytest.mark.parametrize("method", ["visionzip", "pyramiddrop"])
def test_reduced_by_the_model_and_decoded_from_a_graph(adapter, method):
    plain, replayed = both(adapter, relevance="none")
    for size in ((200, 300), (300, 120)):
        image, options = models.noise(*size), {"reduce": method, "keep": 6}
        check_same(told(replayed.ask, image, QUESTION, **options), told(plain.ask, image, QUESTION, **options))
        assert replayed.graphs.decode.replay.reason is None


def test_hierarchical_attention_decoded_from_a_graph(family="qwen3_vl"):
    """Of one model, since its hooks are its own: with graphs, then without."""
    sizes = {"block": 16, "group": 16, "neighbours": 0, "fine": 0.3}
    asked = models.asked(on_gpu(family), budget=64, relevance="none", attention=sizes)
    for size in ((200, 300), (300, 220)):
        image = models.noise(*size)
        asked.graphs.captured = True
        found = told(asked.ask, image, QUESTION)
        assert asked.graphs.decode.replay.reason is None
        asked.graphs.captured = False
        check_same(found, told(asked.ask, image, QUESTION))


def test_a_stream_captures_in_its_thread_and_on_the_stream_of_its_caller(adapter):
    image = models.noise(150, 260)
    plain, replayed = both(adapter, relevance="none")
    wanted = told(plain.ask, image, QUESTION)
    side, streams = torch.cuda.Stream(), []
    hook = adapter.model.register_forward_pre_hook(lambda *_: streams.append(torch.cuda.current_stream()))
    try:
        with torch.cuda.stream(side):
            check_same(told(replayed.ask, image, QUESTION, stream=True), wanted)
            assert torch.cuda.current_stream() == side
    finally:
        hook.remove()
    assert replayed.reasons == [] and replayed.graphs.fixed.tower is not None
    assert streams and set(streams) == {side}
    check_same(told(replayed.ask, image, QUESTION, stream=True), wanted)
    check_same(told(replayed.ask, image, QUESTION), wanted)


def test_streams_in_turns_do_not_mix(adapter):
    """The second one captures while the first is still being written."""
    plain, replayed = both(adapter, relevance="none")
    questions = [QUESTION, "what is the total and what is there ? " * 5]
    image = models.noise(150, 260)
    scores = [Scores() for _ in questions]
    streams = [replayed.ask(image, question, stream=True, **one.options) for question, one in zip(questions, scores)]
    begun = [next(stream) for stream in streams]
    texts = [(first + "".join(rest)).strip() for first, rest in zip(begun, streams)]
    for question, text, one in zip(questions, texts, scores):
        check_same((text, one.of(0)), told(plain.ask, image, question))
    assert replayed.reasons == [] and len(replayed.graphs.fixed.prefills) == 2


def test_a_model_that_went_away_and_came_back(adapter):
    """Its weights lie elsewhere then, which the old graphs would not notice."""
    _, replayed = both(adapter, relevance="none")
    session = replayed.prepare(models.noise(150, 260))
    wanted = told(session.ask, QUESTION)
    adapter.model.to("cpu")
    try:
        check_same(told(session.ask, QUESTION), wanted)
        assert session.pictures[0].texture.device.type == "cpu"
        where_they_lay = [torch.full_like(one, torch.nan, device=DEVICE) for one in adapter.model.parameters()]
    finally:
        adapter.model.to(DEVICE)
    check_same(told(session.ask, QUESTION), wanted)
    assert replayed.reasons == [] and all(one.isnan().all() for one in where_they_lay)


@pytest.mark.parametrize("family", list(models.FAMILIES))
def test_attached_the_users_own_code_goes_on_working(family):
    model, own = models.built(family)
    model.to(DEVICE, torch.bfloat16)
    processor = tv.attach(model, own, budget=BUDGET, relevance="none")
    asked = tv.VLM(model, processor, captured=False)
    image = picture(224, 224)

    def users_code(**options):
        """As it stands in every model card."""
        inputs = processor.apply_chat_template(
            conversation(image), add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        ).to(model.device, torch.bfloat16)
        generated = model.generate(**inputs, do_sample=False, **options)
        return processor.tokenizer.decode(
            generated[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        ).strip()

    wanted = told(asked.ask, image, QUESTION)
    for _ in range(2):
        check_same(told(users_code), wanted)
    few = tv.attach(model, own, budget=2, relevance="none")
    processor.detach()
    assert distance(told(tv.VLM(model, few, captured=False).ask, image, QUESTION)[1][0], wanted[1][0]) > ROUNDING


@pytest.mark.parametrize("family", list(models.FAMILIES))
def test_what_lies_on_the_cpu_is_brought_to_the_model(family):
    adapter = on_gpu(family)
    texture = small.picture(150, 260)
    allocation = small.chosen(texture, adapter.side, BUDGET)
    there = texture.to(DEVICE), allocation.to(DEVICE)
    found = []
    for own in ((texture, allocation), there):
        scores = Scores()
        adapter.generate(QUESTION, *own, do_sample=False, **scores.options)
        found.append(("", scores.of(0)))
    check_same(*found)


def test_compiled_in_the_thread_of_a_stream():
    """As it is by default: torch.compile, then graphs. Takes longer than all the others together."""
    adapter = on_gpu("qwen3_vl")
    plain, _ = both(adapter, relevance="none")
    replayed = models.asked(adapter, budget=BUDGET, relevance="none")
    image = models.noise(150, 260)
    check_same(told(replayed.ask, image, QUESTION, stream=True), told(plain.ask, image, QUESTION))
    assert replayed.reasons == [] and replayed.graphs.fixed.tower.reason is None


@pytest.mark.parametrize(("relevance", "finer"), [("scout", 1.0), ("scout", 1.6), ("none", 1.0), ("prior", 1.0)])
def test_a_size_that_comes_again_is_chosen_for_by_a_graph_and_the_choice_is_the_same(
    adapter, relevance, finer, monkeypatch
):
    by_budget = Finer(((1, 1.0), (BUDGET, finer)))  # above 1 the image is enlarged
    monkeypatch.setattr(adapter, "trained", replace(adapter.trained, finer=by_budget))
    plain, replayed = (models.asked(adapter, budget=BUDGET, relevance=relevance, captured=one) for one in (False, True))
    for turn in range(4):
        image, question = models.noise(320, 480, seed=turn), (QUESTION, "where is the date ?")[turn // 2]
        image[:, :, : 100 * turn] = 0.9  # another choice each time
        ours, theirs = (one.prepare(image).choose(question)[0] for one in (replayed, plain))
        for name in ("centre", "ddx", "ddy", "valid"):
            torch.testing.assert_close(getattr(ours.given, name), getattr(theirs.given, name))
        torch.testing.assert_close(ours.relevance.mass, theirs.relevance.mass)
        assert ours.relevance.scorer == theirs.relevance.scorer
        graphs = list(replayed._choice.kept.values())
        assert len(graphs) == (turn > 0) and all(one.reason is None for one in graphs)


def test_a_texture_without_its_finest_level_is_refused_every_time(adapter):
    """A graph would take its levels for the whole image."""
    whole = Texture.open(models.noise(256, 256)).mipmapped()
    session = models.asked(adapter, budget=BUDGET, relevance="none").prepare(Texture(whole.levels[1:], size=whole.size))
    for _ in range(3):
        with pytest.raises(ValueError, match="texture must start at the image's size"):
            session.choose(QUESTION)
