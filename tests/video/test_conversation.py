"""A model's cache over a stream, against the model from scratch on the same tokens."""

import math

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.video.moving import noisy, scene, with_box
from tests.vlm import small
from texturevlm import vlm
from texturevlm.sampling import sample
from texturevlm.types import Texture
from texturevlm.video import conversation as conversations
from texturevlm.vlm.growing import TokenMemory
from texturevlm.vlm.views import moment_view

pytestmark = pytest.mark.usefixtures("captured_on_cpu")  # what a GPU captures runs as captured code
SIZE = (96, 160)
QUESTION = models.QUESTION


@pytest.fixture(scope="module")
def model():
    return models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=15)


def frames(count, step=9):
    ground = scene(SIZE)
    return [with_box(ground, step * index, 40) for index in range(count)]


def stream(model, **options):
    given = {"model": model, "relevance": "none", "allocator": "grid", "fps": 10, "limit": 400, **options}
    return tv.VideoStream(SIZE, 15, **given)


def logits_of(talk, question=QUESTION):
    """Of the first token of an answer, by the memory."""
    return talk.ask(question, max_new_tokens=1).logits


def from_scratch(talk, last_frame, question=QUESTION):
    """The logits of the unmodified forward pass on the moments that are kept. last_frame: of each, by its time"""
    adapter = talk.adapter
    head, tail = talk.wording.of_question(question)
    ids, views = list(head), []
    for moment in talk.moments:
        opening, closing = talk.wording.of_moment(moment.time)
        allocation, image = last_frame[moment.time]
        some = allocation.each(lambda column, own=list(moment.tokens): column[:, own])
        pixels = sample(Texture.open(image).mipmapped(), some).pixels[0]
        views.append(moment_view(pixels[:, None], some, levels="joint", number=0, seconds=0.0, fps=1.0))
        ids += [*opening, *[adapter.visual_ids[1]] * len(views[-1]), *closing]
    inputs = adapter.assemble([[*ids, *tail]], views)
    with torch.no_grad():
        return adapter.model(**inputs).logits[0, -1]


def shown(one, images):
    """Run a stream; the allocation and the last frame of each moment."""
    last = {}
    for image in images:
        step = one.step(image)
        last[one.conversation.moments[-1].time] = (step.allocation, image)
    return last


def error(found, wanted):
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("interval", [0.05, 0.25, 10.0])
def test_a_full_refresh_is_the_model_from_scratch(model, interval):
    """With a moment per frame, with several frames per moment, and with all in one."""
    one = stream(model, refresh="full", interval=interval)
    last = shown(one, frames(6))
    talk = one.conversation
    assert len(talk.moments) == {0.05: 6, 0.25: 2, 10.0: 1}[interval]
    found, wanted = logits_of(talk), from_scratch(talk, last)
    assert error(found, wanted) < 3e-5
    assert one.ask(QUESTION, max_new_tokens=3) == one.ask(QUESTION, max_new_tokens=3)
    assert error(logits_of(talk), wanted) < 3e-5  # questions leave nothing behind


def test_keys_are_rotated_again_when_a_moment_leaves(model):
    """After evictions a full refresh still equals the model from scratch, and so do the rotated keys alone."""
    one = stream(model, refresh="full", interval=0.05, limit=64)
    last = shown(one, frames(9))
    talk = one.conversation
    assert talk.evicted > 0 and talk.tokens <= 64
    assert error(logits_of(talk), from_scratch(talk, last)) < 3e-5
    before = talk.memory.turned.clone()
    talk.memory.turn()
    live = talk.memory.live
    assert torch.allclose(before[:, :, live], talk.memory.turned[:, :, live], atol=1e-5)
    talk.memory.position += 1  # a control: elsewhere they are others
    talk.memory.turn()
    assert not torch.allclose(before[:, :, live], talk.memory.turned[:, :, live], atol=1e-2)


def test_a_partial_refresh_computes_little_and_comes_near(model):
    errors, costs = [], []
    for refresh in (0, 4, "full"):
        one = stream(model, refresh=refresh, interval=10.0)
        last = shown(one, frames(6))
        costs.append(one.conversation.computed)
        errors.append(error(logits_of(one.conversation), from_scratch(one.conversation, last)))
    assert costs[0] < costs[1] < costs[2]
    assert errors[2] < 3e-5 < errors[0] < 1.0


def test_a_still_scene_costs_nothing(model):
    """Not even at a keyframe, behind sensor noise."""
    one = stream(model, keyframe=4)
    ground = scene(SIZE)
    for index in range(9):
        one.step(noisy(ground, 3, seed=index))
        if index:
            assert one.conversation.computed == 0
    assert len(one.conversation.moments) == 1


def test_the_first_moment_and_what_questions_look_at_stay(model):
    one = stream(model, interval=0.05, limit=64)
    images = frames(14)
    for image in images[:3]:
        one.step(image)
    talk = one.conversation
    first, second = talk.moments[:2]
    second.relevance = 100.0
    for image in images[3:]:
        one.step(image)
    assert talk.moments[0] is first and talk.moments[1] is second and talk.evicted >= 3
    assert [moment.time for moment in talk.moments] == sorted(moment.time for moment in talk.moments)


def test_memory_is_flat(model):
    one = stream(model, interval=0.05, limit=64)
    sizes = set()
    for image in frames(30, step=4):
        one.step(image)
        sizes.add(sum(part.numel() for part in (one.conversation.memory.keys, one.conversation.memory.embeds)))
        assert len(one.conversation.memory.free) + one.conversation.tokens + len(one.conversation.head) == 64 + 768
    assert len(sizes) == 1


def test_questions_move_the_relevance_of_moments(model):
    one = stream(model, interval=0.05)
    shown(one, frames(4))
    assert all(moment.relevance == 0 for moment in one.conversation.moments)
    one.ask(QUESTION, max_new_tokens=2)
    assert sum(moment.relevance for moment in one.conversation.moments) == pytest.approx(1, abs=1e-4)


def test_a_failing_question_leaves_the_state(model, monkeypatch):
    one = stream(model)
    shown(one, frames(3))
    wanted = logits_of(one.conversation)
    free = sorted(one.conversation.memory.free)
    monkeypatch.setattr(conversations.Conversation, "_pay", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one.ask(QUESTION)
    monkeypatch.undo()
    assert sorted(one.conversation.memory.free) == free
    assert torch.allclose(logits_of(one.conversation), wanted, atol=1e-4)


def test_without_moments_the_model_keeps_what_is_there_now(model):
    """Also when the tokens are chosen again: a cut, and keyframes."""
    one = stream(model, refresh="full", interval=math.inf, allocator="density", keyframe=3)
    images = [*frames(4), *[with_box(scene(SIZE, seed=4), 9 * index, 20) for index in range(4)]]
    last = shown(one, images)
    (moment,) = one.conversation.moments
    step = one.step(images[-1])
    assert len(moment.places) == int(step.allocation.valid.sum())
    last = {moment.time: (step.allocation, images[-1])}
    assert error(logits_of(one.conversation), from_scratch(one.conversation, last)) < 3e-5


def test_a_failing_frame_is_shown_by_the_next(model, monkeypatch):
    """Whether it fails in the tower or in the language model, at the first frame or later."""
    images = frames(4)
    for failing, owner in (("__call__", conversations.TokenEncoder), ("run", conversations.TokenMemory)):
        one, whole = stream(model, refresh="full", interval=0.05), stream(model, refresh="full", interval=0.05)
        for index, image in enumerate(images):
            if index in (0, 2):
                monkeypatch.setattr(owner, failing, lambda *_: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    one.step(image, time=index / 10)
                monkeypatch.undo()
            one.step(image, time=index / 10)
            whole.step(image, time=index / 10)
        assert torch.allclose(logits_of(one.conversation), logits_of(whole.conversation), atol=1e-3)
        assert len(one.conversation.memory.free) == len(whole.conversation.memory.free)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2_vl"])
def test_other_families_watch_too(family):
    adapter = vlm.adapt(*(models.built(family) if family in models.FAMILIES else small.MORE[family]()))
    if family not in models.FAMILIES:
        adapter.processor = models._qwen_processor(adapter.processor)
    one = stream(models.asked(adapter, budget=15), refresh="full", interval=0.05, allocator="density")
    last = shown(one, frames(3))
    assert error(logits_of(one.conversation), from_scratch(one.conversation, last)) < 3e-5


def test_a_template_that_begins_with_the_question(model):
    """As the reader's: the question stands before the pictures, so another question computes them anew."""
    tokenizer = model.adapter.tokenizer
    template = tokenizer.chat_template
    tokenizer.chat_template = (
        "{% for m in messages %}{% for c in m.content %}{% if c.type == 'text' %} {{ c.text }} {% endif %}{% endfor %}"
        "{% for c in m.content %}{% if c.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% endif %}"
        "{% endfor %}{% endfor %} : "
    )
    try:
        one = stream(model, refresh="full", interval=0.05)
        last = shown(one, frames(3))
        for question in (QUESTION, "is there ?"):
            assert error(logits_of(one.conversation, question), from_scratch(one.conversation, last, question)) < 3e-5
    finally:
        tokenizer.chat_template = template


def test_a_stream_says_what_is_wrong(model):
    one = stream(model)
    with pytest.raises(ValueError, match="ask: question must come after the first frame, got one before it"):
        one.ask(QUESTION)
    with pytest.raises(ValueError, match="step: frame must be given to a stream without a source, got none"):
        one.step()
    with pytest.raises(ValueError, match="watch: the stream must have a source"):
        one.watch(QUESTION)
    one.step(frames(1)[0])
    with pytest.raises(ValueError, match="ask: question must take at most 768 tokens with its prompt and its answer"):
        one.ask(QUESTION, max_new_tokens=800)
    with pytest.raises(TypeError, match="ask: question must be text, got int"):
        one.ask(3)
    with pytest.raises(ValueError, match="ask: max_new_tokens must be at least 1, got 0"):
        one.ask(QUESTION, max_new_tokens=0)
    with pytest.raises(ValueError, match="ask: the stream must have a model"):
        tv.VideoStream(SIZE, 15, relevance="none").ask(QUESTION)
    with pytest.raises(TypeError, match="VideoStream: model must be a VLM"):
        tv.VideoStream(SIZE, 15, model=model.model)
    for family in ("llava", "qwen3_vl_moe"):
        network = {**small.LLAVAS, **small.MORE}[family]
        with pytest.raises(ValueError, match=f"VideoStream: model must be of a Qwen-VL family .*, got {family}"):
            TokenMemory(vlm.adapt(*network()), 8)
    with pytest.raises(ValueError, match="VideoStream: interval must be above 0, got 0"):
        stream(model, interval=0)
    with pytest.raises(ValueError, match="VideoStream: refresh must be at least 0, got -1"):
        stream(model, refresh=-1)


def test_the_captured_tower_gives_the_same_tokens(model):
    one = tv.VideoStream(SIZE, 15, model=model, relevance="none", allocator="layers", limit=400)
    step = one.step(frames(1)[0])
    some = list(one.conversation.places)[::2]
    plain, captured = (conversations.TokenEncoder(model.adapter, captured=one) for one in (False, True))
    for encode in (plain, captured):
        encode.hold(step.allocation, torch.device("cpu"))
    with torch.no_grad():
        pairs = list(zip(*(encode(step.patches.pixels[0], some) for encode in (plain, captured))))
        other = captured(step.patches.pixels[0], some[::-1])[0]
    assert len(pairs) > 1 and all(torch.allclose(*pair, atol=1e-5) for pair in pairs)
    assert torch.allclose(other, pairs[0][0], atol=1e-5)  # the tower gives them in reading order


@pytest.mark.parametrize("interval", [0.05, 10.0])
def test_the_least_limit_holds_any_video(model, interval):
    """Every frame another scene: two whole moments fit, and no more is needed."""
    least = 2 * (15 + stream(model).conversation.wording.longest)
    with pytest.raises(ValueError, match=f"VideoStream: limit must be at least {least}, got {least - 1}"):
        stream(model, limit=least - 1)
    one = stream(model, limit=least, interval=interval, refresh="full")
    last = shown(one, [scene(SIZE, seed=index) for index in range(5)])
    talk = one.conversation
    assert talk.evicted >= 2 and len(talk.moments) == 2 and talk.tokens <= least
    assert error(logits_of(talk), from_scratch(talk, last)) < 3e-5


def test_a_question_has_room_when_the_cache_is_full(model, monkeypatch):
    """The longest one that is taken, too; a longer one changes nothing."""
    monkeypatch.setattr(conversations, "SCRATCH", 40)
    one = stream(model, interval=0.05, limit=64)
    shown(one, frames(9))
    talk = one.conversation
    head, tail = talk.wording.of_question(QUESTION)
    most = conversations.SCRATCH - len(head) - len(tail)
    wanted = logits_of(talk)
    with pytest.raises(ValueError, match="ask: question must take at most 40 tokens with its prompt and its answer"):
        one.ask(QUESTION, max_new_tokens=most + 1)
    assert len(talk.ask(QUESTION, max_new_tokens=most).logprobs) >= 1
    assert torch.allclose(logits_of(talk), wanted, atol=1e-4)


def test_a_question_after_a_failed_frame_is_answered_from_what_is_there(model, monkeypatch):
    """Tokens that were placed and not computed are computed before the question."""
    one, whole = stream(model, refresh="full", interval=0.05), stream(model, refresh="full", interval=0.05)
    images = frames(3)
    for index, image in enumerate(images):
        whole.step(image, time=index / 10)
    for index, image in enumerate(images[:2]):
        one.step(image, time=index / 10)
    monkeypatch.setattr(conversations.TokenMemory, "run", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one.step(images[2], time=0.2)
    monkeypatch.undo()
    assert torch.allclose(logits_of(one.conversation), logits_of(whole.conversation), atol=1e-3)
