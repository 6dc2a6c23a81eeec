"""CLIP, SigLIP and SigLIP 2: the full grid gives the unmodified model's features."""

from dataclasses import replace

import pytest
import torch

from tests.vlm import small
from texturevlm import vlm
from texturevlm.types import Allocation, Texture

SIDE = 16


@pytest.fixture(params=list(small.ENCODERS), scope="module")
def adapter(request):
    return vlm.adapt(small.ENCODERS[request.param]())


def stock(adapter, image):
    """The model's own input for an image whose sides are multiples of a patch."""
    pixels = adapter.normalised(image)
    if adapter.model.config.model_type != "siglip2":
        return {"pixel_values": pixels}
    batch, _, height, width = pixels.shape
    rows, columns = height // SIDE, width // SIDE
    cut = pixels.view(batch, 3, rows, SIDE, columns, SIDE).permute(0, 2, 4, 3, 5, 1)
    return {
        "pixel_values": cut.reshape(batch, rows * columns, -1),
        "pixel_attention_mask": torch.ones(batch, rows * columns, dtype=torch.int64),
        "spatial_shapes": torch.tensor([[rows, columns]] * batch),
    }


def difference(one, other):
    return float((one - other).detach().abs().max())


def test_full_grid_gives_the_unmodified_features(adapter):
    texture = small.picture(96, 96, batch=2)
    allocation = small.full_grid(texture, SIDE)
    inputs = stock(adapter, texture.levels[0])
    with torch.no_grad():
        wanted = adapter.model.get_image_features(**inputs)
        hidden = adapter.model.vision_model(**inputs).last_hidden_state
    assert difference(adapter.features(texture, allocation), wanted.pooler_output) < 1e-5
    tokens = adapter.encode(texture, allocation)
    assert difference(tokens.embeds, hidden[:, -36:]) < 1e-5
    assert not adapter.tower.embeddings._forward_hooks


@pytest.mark.parametrize("size", [(48, 160), (128, 144), (32, 32)])
def test_siglip2_reads_grids_of_any_shape(size):
    """Smaller, larger and oblong: its table is averaged or enlarged as the model itself does."""
    adapter = vlm.adapt(small.siglip2())
    texture = small.picture(*size)
    with torch.no_grad():
        wanted = adapter.model.get_image_features(**stock(adapter, texture.levels[0])).pooler_output
    assert difference(adapter.features(texture, small.full_grid(texture, SIDE)), wanted) < 1e-5


def test_positions_matter(adapter):
    texture = small.picture(96, 96)
    allocation = small.chosen(texture, SIDE, 10)
    moved = replace(allocation, centre=allocation.centre.flip(1))
    pixels = adapter.encode(texture, allocation).embeds
    assert difference(pixels, adapter.encode(texture, moved).embeds) > 1e-2
    plain = Texture.open(torch.full((1, 3, 96, 96), 0.5)).mipmapped()  # the same pixels everywhere: places alone differ
    place = [adapter.features(plain, one) for one in (allocation, small.chosen(texture, SIDE, 10, seed=5))]
    assert difference(*place) > 1e-3


def test_unused_slots_and_the_order_of_slots_do_not_matter(adapter):
    texture = small.picture(96, 64, batch=2)
    allocation = small.chosen(texture, SIDE, 9)
    valid = torch.tensor([[True] * 9, [True] * 5 + [False] * 4])
    some = replace(allocation, valid=valid)
    found = adapter.features(texture, some)
    first, second = (Texture.open(texture.levels[0][one : one + 1]).mipmapped() for one in (0, 1))
    alone = allocation.each(lambda column: column[1:, :5].flip(1))
    assert difference(found[1], adapter.features(second, alone)[0]) < 1e-5
    assert difference(found[0], adapter.features(first, allocation.each(lambda column: column[:1]))[0]) < 1e-5
    tokens = adapter.encode(texture, some)
    assert not tokens.embeds[1, 5:].any() and tokens.embeds[1, 4].any()
    assert tokens.weight.tolist() == valid.float().tolist()


def test_gradients_reach_the_pixels(adapter):
    image = torch.rand(1, 3, 40, 70, requires_grad=True)
    texture = Texture((image,)).mipmapped()
    adapter.features(texture, small.chosen(texture, SIDE, 6)).sum().backward()
    assert image.grad.abs().sum() > 0


def test_bfloat16_and_the_vision_model_alone(adapter):
    texture = small.picture(50, 30)
    allocation = small.chosen(texture, SIDE, 4)
    wanted = adapter.encode(texture, allocation).embeds
    alone = vlm.adapt(adapter.model.vision_model)
    assert torch.equal(alone.encode(texture, allocation).embeds, wanted) and alone.side == SIDE
    adapter.model.bfloat16()
    try:
        half = adapter.encode(texture, allocation).embeds
    finally:
        adapter.model.float()
    assert half.dtype == torch.bfloat16 and difference(half.float(), wanted) < 0.1 * float(wanted.detach().abs().max())


def test_complaints(adapter):
    texture = small.picture(32, 32)
    allocation = small.full_grid(texture, SIDE)
    turned = replace(allocation, ddx=-allocation.ddx)
    with pytest.raises(ValueError, match="cannot read mirrored or slanted ones, got 4 of those"):
        adapter.features(texture, turned)
    boxes = Allocation.of_boxes(torch.tensor([[[0.0, 0, 32, 32]]]), (32, 32), 32)
    with pytest.raises(ValueError, match="patches of 16 for this model, got 32"):
        adapter.encode(texture, boxes)
