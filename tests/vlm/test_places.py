"""Positions: the grid is the processor's, the taps are transformers' own, and numbers survive a ride in pixel rows."""

from types import SimpleNamespace

import pytest
import torch

from texturevlm.vlm import adapter_for
from texturevlm.vlm.places import bilinear_taps, frame, grid_for, places


def test_the_grid_is_that_of_the_processor():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    sizes = [*torch.randint(1, 3000, (300, 2)).tolist(), [3508, 2480], [1, 150], [80, 80], [16, 48]]
    for height, width in sizes:
        if max(height, width) / min(height, width) > 200:
            continue
        limits = {"min_pixels": 1 << 16, "max_pixels": 1 << 21}
        wanted = smart_resize(height, width, 32, **limits)
        found = grid_for((height, width), 32, least=1 << 16, most=1 << 21)
        assert (found[0] * 32, found[1] * 32) == tuple(wanted), (height, width)
    assert grid_for((1, 5000), 32) == (1, 156)  # too thin for the processor


def test_the_grid_of_glm_is_that_of_its_processor():
    from transformers import Glm4vConfig
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil, smart_resize

    size = {"shortest_edge": 1 << 16, "longest_edge": 1 << 21}
    processor = SimpleNamespace(image_processor=Glm4vImageProcessorPil(size=size))
    adapter = adapter_for(Glm4vConfig(), processor)
    for height, width in [*torch.randint(1, 3000, (100, 2)).tolist(), [3508, 2480], [20, 90], [80, 80], [5, 5]]:
        if max(height, width) / min(height, width) < 200:
            wanted = smart_resize(2, height, width, min_pixels=1 << 16, max_pixels=1 << 21)
            rows, columns = adapter.grid_for((height, width))
            assert (rows * 28, columns * 28) == tuple(wanted), (height, width)


def test_taps_are_those_of_transformers():
    vision_utils = pytest.importorskip("transformers.vision_utils")
    if not hasattr(vision_utils, "get_vision_interpolation_indices_and_weights"):
        pytest.skip("another layout before 5.15")
    indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, 6, 10]]), num_grid_per_side=7, align_corners=True, spatial_merge_size=1
    )
    patch = torch.cartesian_prod(torch.arange(6.0), torch.arange(10.0))
    ours = bilinear_taps(patch, torch.tensor([6.0, 10.0]).expand_as(patch), 7)
    table = torch.randn(49, 3)
    wanted, found = ((table[i] * w[..., None]).sum(1) for i, w in ((indices, weights), ours))
    assert float((wanted - found).abs().max()) < 1e-6


def test_taps_outside_the_grid_stay_on_the_table():
    patch = torch.tensor([[-3.0, 0.0], [9.0, 40.0]])
    indices, weights = bilinear_taps(patch, torch.tensor([[4.0, 4.0]] * 2), 5)
    assert indices.min() >= 0 and indices.max() < 25
    assert torch.allclose(weights.sum(-1), torch.ones(2))


def test_sub_patches_have_places_of_their_own():
    centre, step = torch.tensor([[48.0, 80.0], [64.0, 64.0]]), torch.tensor([[1.0, 1.0], [4.0, 2.0]])
    found = places(centre, step, frame((128, 128), (4, 4)), side=32)
    assert found.patch[0].tolist() == [[4, 2], [4, 3], [5, 2], [5, 3]]  # an ordinary cell
    stretched = [[2.5, 1.5], [2.5, 5.5], [4.5, 1.5], [4.5, 5.5]]  # four times as wide, twice as tall
    assert found.patch[1].tolist() == stretched
    assert found.token.tolist() == [[2, 1], [1.5, 1.5]]
    native = places(centre, step, frame((128, 128), (4, 4)), side=32, coordinates="native")
    assert native.patch[1].tolist() == [[1, 0], [1, 1], [2, 0], [2, 1]]
    assert native.extent[1, 0].tolist() == [4, 2]
