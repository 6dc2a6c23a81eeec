"""The model's attention moves the tokens of the next frames."""

import pytest
import torch

import texturevlm as tv
from tests.ask import models
from tests.video.moving import scene
from tests.video.test_conversation import QUESTION
from texturevlm import vlm
from texturevlm.allocate.value import delivered_scale

pytestmark = pytest.mark.usefixtures("captured_on_cpu")  # what a GPU captures runs as captured code
SIZE = (192, 320)
SIDE = 48


def frames(count):
    """A card of fine print crosses a scene in which more of it stands still."""
    ground = scene(SIZE, stripes=False)
    random = torch.Generator().manual_seed(3)
    card, wall = ((torch.rand(1, 3, *size, generator=random) > 0.5).float() for size in ((SIDE, SIDE), (80, 320)))
    found = []
    for index in range(count):
        frame = ground.clone()
        frame[..., :80, :] = wall
        frame[..., 100 : 100 + SIDE, 16 + 6 * index : 16 + 6 * index + SIDE] = card
        found.append(frame)
    return found


def finest_on_object(step, index):
    """Pixels per sample at the middle of the square."""
    scale = delivered_scale(step.allocation, (24, 40))[0]
    return float(scale[(100 + SIDE // 2) // 8, (16 + 6 * index + SIDE // 2) // 8])


def pointed(index):
    attention = torch.zeros(1, *SIZE)
    attention[:, 100 : 100 + SIDE, 16 + 6 * index : 16 + 6 * index + SIDE] = 1
    return attention


def test_tokens_follow_what_the_model_attended_to():
    """Attention on the square at its second frame: it is seen finely from there on, wherever it goes."""
    found = {}
    for share in (0.0, 0.9):
        one = tv.VideoStream(SIZE, 10, relevance="none", channels=["previous_attention", "fixation_history"])
        for index, image in enumerate(frames(12)):
            step = one.step(image)
            if index == 1 and share:
                one.tokens.attend(pointed(index), share=share)
        found[share] = finest_on_object(step, 11)
        layers = dict(zip(step.channels.names, step.channels.levels[0][0]))
        there = layers["previous_attention"][100 : 100 + SIDE, 82 : 82 + SIDE].mean()
        elsewhere = layers["previous_attention"][:60].mean()
        assert (there > 0.5 > 0.1 > elsewhere) if share else float(there) == 0
    assert found[0.9] < 0.7 * found[0.0]


def test_answers_point_and_can_be_told_not_to():
    model = models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=15)
    kept = {}
    for share in (0.0, 0.5):
        one = tv.VideoStream(SIZE, 15, model=model, relevance="none", limit=400, feedback=share)
        for image in frames(3):
            one.step(image)
        before = one.tokens.carry.relevance.mass.clone()
        one.ask(QUESTION, max_new_tokens=2)
        kept[share] = torch.equal(before, one.tokens.carry.relevance.mass)
        assert one.step(frames(4)[3]).reuse.tokens <= 15
    assert kept == {0.0: True, 0.5: False}


def test_the_map_has_the_attention_where_the_tokens_are():
    model = models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=15)
    one = tv.VideoStream(SIZE, 15, model=model, relevance="none", limit=400)
    one.step(frames(1)[0])
    talk = one.conversation
    (moment,) = talk.moments
    slot = next(iter(moment.places))
    attention = torch.zeros_like(talk.memory.attention)
    attention[slot] = 1.0
    found = talk.attended(attention, SIZE)[0]
    x0, y0, x1, y1 = moment.places[slot].box
    rows, columns = found.nonzero().T * (SIZE[0] / found.shape[0])
    assert y0 - 4 <= rows.min() and rows.max() <= y1 + 4 and x0 - 4 <= columns.min() and columns.max() <= x1 + 4


def test_bad_shares_are_named():
    with pytest.raises(ValueError, match="VideoStream: feedback must be above 0 and at most 1, got 2"):
        tv.VideoStream(SIZE, 15, feedback=2)
    with pytest.raises(ValueError, match="attend: the stream must hold a frame, got none yet"):
        tv.VideoStream(SIZE, 15, relevance="none").tokens.attend(pointed(0), share=0.5)
