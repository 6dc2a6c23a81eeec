"""Frames as video input of a small random Qwen3-VL."""

from dataclasses import replace

import pytest
import torch

from tests.video.moving import crossing
from tests.vlm.small import BUILDERS, IDS
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import adapt

SIZE = (96, 128)


@pytest.fixture(scope="module")
def adapter():
    adapted = adapt(*BUILDERS["qwen3_vl"]())
    yield adapted
    adapted.restore()


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
