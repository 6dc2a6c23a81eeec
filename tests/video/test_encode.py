"""Tokens of a stream with a small random Qwen3-VL tower."""

from dataclasses import replace

import pytest
import torch

from tests.video.moving import crossing, noisy, scene
from tests.vlm.small import BUILDERS, IDS
from texturevlm.types import Allocation, Texture
from texturevlm.video import TokenStream
from texturevlm.vlm import adapt

SIZE = (96, 128)


@pytest.fixture(scope="module")
def adapter():
    adapted = adapt(*BUILDERS["qwen3_vl"]())
    yield adapted
    adapted.restore()


def stream(adapter, **options):
    counted = []

    def encode(texture, allocation):
        counted.append(int(allocation.valid.sum()))
        return adapter.encode(texture, allocation)

    given = {"patch": adapter.side, "relevance": "none", "encode": encode, "keyframe": 1000} | options
    return TokenStream(SIZE, 10, **given), counted


def test_exact_tokens_are_those_of_the_whole_frame(adapter):
    one, counted = stream(adapter)
    for frame in crossing(SIZE, 6):
        step = one.step(frame)
        wanted = adapter.encode(step.texture, step.allocation)
        assert torch.equal(step.tokens.embeds, wanted.embeds)
        assert all(torch.equal(got, made) for got, made in zip(step.tokens.deepstack, wanted.deepstack))
    assert len(counted) == 6


def test_nothing_is_encoded_where_nothing_changed(adapter):
    ground = scene(SIZE) * 0.6 + 0.2
    one, counted = stream(adapter)
    first = one.step(ground).tokens.embeds.clone()
    for seed in range(4):
        step = one.step(noisy(ground, 1, seed))
    assert len(counted) == 1 and torch.equal(step.tokens.embeds, first)


def test_approximate_tokens_are_near_and_cost_less(adapter):
    one, counted = stream(adapter, keep="approximate", context=0.5)
    differences, sizes = [], []
    for frame in crossing(SIZE, 8, side=16):
        step = one.step(frame)
        used = step.reuse.used
        wanted = adapter.encode(step.texture, step.allocation).embeds[:, used].detach()
        differences.append(float((step.tokens.embeds[:, used] - wanted).norm() / wanted.norm()))
        sizes.append(one.encoded.encoded)
    assert differences[0] == 0  # the first frame is encoded in full
    assert 0 < max(differences) < 0.5  # approximate, and no more than that
    assert min(sizes[1:]) < sizes[0] and sum(counted) < 8 * counted[0]


def test_positions_follow_a_new_allocation(adapter):
    one, _ = stream(adapter, keep="approximate", hold=0.0)
    for frame in crossing(SIZE, 5):
        step = one.step(frame)
        assert torch.equal(step.tokens.position, step.allocation.centre)
        assert torch.equal(step.tokens.weight > 0, step.allocation.valid)


def clip(adapter):
    """Four frames, and tokens of the first and of the second moment of two frames."""
    texture = Texture((torch.cat(list(crossing(SIZE, 4))),)).mipmapped()
    corner = torch.rand(1, 14, 2, generator=torch.Generator().manual_seed(0)) * 60
    allocation = Allocation.of_boxes(torch.cat([corner, corner + 32], -1), SIZE, adapter.side)
    return texture, replace(allocation, source=torch.tensor([[0] * 9 + [2] * 5]))


def test_frames_are_video_input_with_right_times(adapter):
    texture, allocation = clip(adapter)
    inputs = adapter.prepare("what is the total ?", texture, allocation, fps=4.0)
    ids = inputs["input_ids"][0].tolist()
    assert ids.count(5) == allocation.budget  # a placeholder a token
    assert inputs["video_grid_thw"].shape[0] == 2
    words = {value: word for word, value in IDS.items()}
    spoken = "".join(words[one] for one in ids if one in words and one not in range(2, 6))
    for moment in (0, 2):
        assert f"<{(moment + 0.5) / 4:.1f}seconds>" in spoken
    with torch.no_grad():
        assert torch.isfinite(adapter.model(**inputs).logits).all()


def test_earlier_moments_are_encoded_the_same_whatever_follows(adapter):
    texture, allocation = clip(adapter)
    early = allocation.each(lambda column: column[:, allocation.source[0] == 0])

    def encoded(part):
        inputs = adapter.prepare("what is the total ?", texture, part)
        with torch.no_grad():
            return adapter.tower(inputs["pixel_values_videos"], grid_thw=inputs["video_grid_thw"]).pooler_output

    alone, together = encoded(early), encoded(allocation)
    assert torch.allclose(together[: len(alone)], alone, atol=1e-5)
