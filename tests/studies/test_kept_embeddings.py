"""Kept embeddings of a stream's tokens, with a small random Qwen3-VL tower."""

import pytest
import torch

from tests.video.moving import crossing, noisy, scene
from tests.vlm.small import BUILDERS
from texturevlm.video import TokenStream
from texturevlm.vlm import adapt
from texturevlm_lab.studies.kept_embeddings import KeptEmbeddings

SIZE = (96, 128)


@pytest.fixture(scope="module")
def adapter():
    adapted = adapt(*BUILDERS["qwen3_vl"]())
    yield adapted
    adapted.restore()


def encoded(adapter, frames, context=None, **options):
    """Steps of a stream, their embeddings, how many were encoded, and how often the tower ran."""
    counted = []

    def encode(texture, allocation):
        counted.append(int(allocation.valid.sum()))
        return adapter.encode(texture, allocation)

    one = TokenStream(SIZE, 10, patch=adapter.side, relevance="none", keyframe=1000, **options)
    kept = KeptEmbeddings(encode, context)
    for frame in frames:
        step = one.step(frame)
        yield step, kept.update(step), kept.encoded, len(counted)


def test_exact_embeddings_are_those_of_the_whole_frame(adapter):
    for number, (step, tokens, _, runs) in enumerate(encoded(adapter, crossing(SIZE, 6)), 1):
        wanted = adapter.encode(step.texture, step.allocation)
        assert torch.equal(tokens.embeds, wanted.embeds)
        assert all(torch.equal(got, made) for got, made in zip(tokens.deepstack, wanted.deepstack))
        assert runs == number


def test_nothing_is_encoded_where_nothing_changed(adapter):
    ground = scene(SIZE) * 0.6 + 0.2
    found = list(encoded(adapter, [ground, *(noisy(ground, 1, seed) for seed in range(4))]))
    assert found[-1][3] == 1 and torch.equal(found[-1][1].embeds, found[0][1].embeds)


def test_approximate_embeddings_are_near_and_cost_less(adapter):
    differences, sizes = [], []
    for step, tokens, count, _ in encoded(adapter, crossing(SIZE, 8, side=16), context=0.5):
        used = step.reuse.used
        wanted = adapter.encode(step.texture, step.allocation).embeds[:, used].detach()
        differences.append(float((tokens.embeds[:, used] - wanted).norm() / wanted.norm()))
        sizes.append(count)
    assert differences[0] == 0  # the first frame is encoded in full
    assert 0 < max(differences) < 0.5  # approximate, and no more than that
    assert min(sizes[1:]) < sizes[0]


def test_positions_follow_a_new_allocation(adapter):
    for step, tokens, *_ in encoded(adapter, crossing(SIZE, 5), context=1.0, hold=0.0):
        assert torch.equal(tokens.position, step.allocation.centre)
        assert torch.equal(tokens.weight > 0, step.allocation.valid)
