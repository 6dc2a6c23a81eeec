"""A model that gets stored features instead of running its tower, for every family."""

import pytest
import torch

from tests.vlm import small
from tests.vlm.test_families import FAMILIES, QUESTION, logits
from texturevlm import vlm
from texturevlm_lab.evaluate.prompted import batched_inputs, chosen_prompt


@pytest.fixture(params=list(FAMILIES), scope="module")
def built(request):
    if not hasattr(small.transformers, vlm.FAMILIES[request.param].architecture):
        pytest.skip(f"{request.param} is not in transformers {small.transformers.__version__}")
    return small.built(FAMILIES, request.param)


def asked(adapter):
    """Two prompts, of five and of seven tokens."""
    texture = small.picture(8 * adapter.side, 6 * adapter.side)
    return [
        chosen_prompt(adapter, QUESTION, [texture], [small.chosen(texture, adapter.side, count)]) for count in (5, 7)
    ]


def test_stored_features_answer_like_the_tower(adapter):
    prompts = asked(adapter)
    inputs = batched_inputs(adapter, prompts)
    with torch.no_grad():
        features = adapter.embed([view for one in prompts for view in one.views])
    blank = inputs | {"pixel_values": inputs["pixel_values"].clone()}
    blank["pixel_values"][..., : adapter.row_width] = 0  # the pixels are not looked at
    expected = logits(adapter, inputs)
    with vlm.StoredFeatures(features).run(adapter):
        found = logits(adapter, blank)
    with vlm.StoredFeatures([[torch.zeros_like(one) for one in part] for part in features]).run(adapter):
        other = logits(adapter, inputs)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    assert float((other - expected).abs().max()) > 1e-2
    torch.testing.assert_close(logits(adapter, inputs), expected)  # the tower runs again


def test_features_of_other_prompts_are_refused(adapter):
    prompts = asked(adapter)
    with torch.no_grad():
        features = adapter.embed(prompts[0].views)
    inputs = batched_inputs(adapter, prompts)
    wrong = pytest.raises(ValueError, match="StoredFeatures: features must have")
    with wrong, vlm.StoredFeatures(features).run(adapter):
        logits(adapter, inputs)
    with pytest.raises(ValueError, match="features must be lists of"):
        vlm.StoredFeatures([[torch.zeros(3)]])
