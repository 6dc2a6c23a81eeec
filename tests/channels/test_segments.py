"""sam_regions: the choosing and painting of masks on masks that are known, the rest on a tiny SAM made on the spot."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import worst
from texturevlm.channels.segments import Segmenter, distinct, mask_boxes, paint, point_grid, sam_regions
from texturevlm.image import to_tensor

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'texturevlm[hf]'")

ANY = {"trust": -1e9, "stability": 0.0}  # random weights trust nothing


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A SAM of 64 pixels a side."""
    torch.manual_seed(0)
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "patch_size": 8}
    vision = {**tower, "output_channels": 16, "window_size": 4, "global_attn_indexes": [1], "num_pos_feats": 8}
    decoder = {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
    config = transformers.SamConfig(
        vision_config={**vision, "mlp_dim": 32, "initializer_range": 0.3},
        prompt_encoder_config={"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
        mask_decoder_config=decoder,
        initializer_range=0.3,
    )
    place = tmp_path_factory.mktemp("sam")
    transformers.SamModel(config).save_pretrained(place)
    transformers.SamImageProcessorPil(size={"longest_edge": 64}, pad_size={"height": 64, "width": 64}).save_pretrained(
        place
    )
    return place


@pytest.fixture(scope="module")
def segmenter(folder):
    return Segmenter.load(folder)


def boxes_as_logits(*boxes, side=16):
    logits = torch.full((len(boxes), side, side), -4.0)
    for mask, (x0, y0, x1, y1) in zip(logits, boxes):
        mask[y0:y1, x0:x1] = 4.0
    return logits


def test_small_masks_are_painted_over_large_ones_and_hidden_ones_leave_no_gap():
    small, large, hidden = (5, 5, 7, 7), (0, 0, 12, 12), (4, 4, 8, 8)
    cover = (4, 4, 8, 8)
    regions = paint(boxes_as_logits(small, hidden, large, cover), (16, 16), 16, (16, 16))
    assert regions.dtype == torch.int32
    assert regions.unique().tolist() == [0, 1, 2, 3]
    assert (regions[5:7, 5:7] == 3).all() and regions[4, 4] == 2 and regions[0, 0] == 1 and regions[15, 15] == 0
    assert (regions == 1).sum() == 144 - 16


def test_masks_are_enlarged_to_the_image_and_the_padding_is_cut_off():
    # An image of 60×40 in a square of 64 (as 64×43), masks of 16: its right half.
    regions = paint(boxes_as_logits((5, 0, 16, 16)), (64, 43), 64, (60, 40))
    edge = 5 * 4 * 40 / 43
    columns = torch.arange(40) + 0.5
    assert torch.equal(regions[30] == 1, columns > edge)
    assert paint(boxes_as_logits(), (64, 43), 64, (60, 40)).eq(0).all()


def test_boxes_and_duplicates():
    given = [(2, 3, 9, 11), (0, 0, 16, 16), (2, 3, 10, 11), (12, 12, 13, 16)]
    boxes = mask_boxes(boxes_as_logits(*given) > 0)
    assert boxes.tolist() == [list(map(float, box)) for box in given]
    quality = torch.tensor([0.90, 0.95, 0.92, 0.99])
    assert distinct(boxes, quality, 0.7).tolist() == [3, 1, 2]  # the first is the third again, and worse
    assert distinct(boxes, quality, 0.9).tolist() == [3, 1, 2, 0]
    assert distinct(boxes[:0], quality[:0], 0.7).tolist() == []
    assert mask_boxes(torch.zeros(0, 4, 5, dtype=torch.bool)).shape == (0, 4)


def test_point_grid():
    assert point_grid(2, (10, 40)).tolist() == [[10, 2.5], [30, 2.5], [10, 7.5], [30, 7.5]]


def test_pixels_and_masks_are_those_of_transformers(segmenter, folder):
    picture = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    picture = Image.fromarray(picture).resize((120, 80), Image.Resampling.BICUBIC)
    processor = transformers.SamImageProcessorPil.from_pretrained(folder)
    inputs = processor(picture, return_tensors="pt")
    points = point_grid(3, (43, 64))
    with torch.inference_mode():
        embedding, size = segmenter.embed(to_tensor(picture))
        logits, quality = segmenter.masks(embedding, points)
        theirs = segmenter.network(pixel_values=inputs["pixel_values"], input_points=points[None, :, None])
    assert size == tuple(inputs["reshaped_input_sizes"][0].tolist()) == (43, 64)
    assert logits.shape == (27, 32, 32)
    scale = theirs.pred_masks.abs().max()
    assert worst(logits, theirs.pred_masks[0].flatten(0, 1)) < 0.05 * scale  # Pillow rounds to whole numbers
    assert worst(quality, theirs.iou_scores.flatten()) < 0.05 * theirs.iou_scores.abs().max()
    sizes = inputs["original_sizes"], inputs["reshaped_input_sizes"]
    full = processor.post_process_masks(logits[None, :, None], *sizes)[0][:, 0]
    for mask, wanted in zip(logits, full):
        assert torch.equal(paint(mask[None], size, 64, (80, 120)) == 1, wanted)


@pytest.mark.parametrize("size", [(64, 64), (1, 1), (1, 200), (150, 90), (45, 180)])
def test_regions_of_any_size(segmenter, size):
    image = torch.rand(2, 3, *size)
    regions = sam_regions(image, segmenter, points=4, **ANY)
    assert regions.shape == (2, *size) and regions.dtype == torch.int32
    for one in regions:
        present = one.unique()
        assert torch.equal(present[present > 0], torch.arange(1, int(one.max()) + 1, dtype=torch.int32))
    regions += 1  # no inference tensor: a stream updates in place


def test_a_batch_is_its_images(segmenter):
    image = torch.rand(2, 1, 70, 50)
    together = sam_regions(image, segmenter, points=3, **ANY)
    assert torch.equal(together[1], sam_regions(image[1:].expand(-1, 3, -1, -1), segmenter, points=3, **ANY)[0])


@pytest.mark.gpu
def test_on_the_gpu(segmenter, folder):
    image = torch.rand(1, 3, 70, 50)
    regions = sam_regions(image, Segmenter.load(folder, device="cuda"), points=4, **ANY)
    assert regions.is_cuda and regions.shape == (1, 70, 50)
    assert (regions.cpu() > 0).eq(sam_regions(image, segmenter, points=4, **ANY) > 0).float().mean() > 0.9


def test_limit_and_thresholds(segmenter):
    image = torch.rand(1, 3, 64, 64)
    assert sam_regions(image, segmenter, points=4, limit=2, **ANY).max() <= 2
    assert sam_regions(image, segmenter, points=4, trust=1e9, stability=0.0).eq(0).all()
    assert sam_regions(image, segmenter, points=4, trust=-1e9, stability=1.1).eq(0).all()


def test_errors_say_what_to_pass(segmenter, tmp_path, monkeypatch):
    image = torch.rand(1, 3, 64, 64)
    with pytest.raises(FileNotFoundError, match=r"Segmenter.load: no such folder: /nowhere/sam"):
        Segmenter.load("/nowhere/sam")
    with pytest.raises(ValueError, match=r"sam_regions: image must have 3 channels or 1, got \(1, 4, 64, 64\)"):
        sam_regions(torch.rand(1, 4, 64, 64), segmenter)
    with pytest.raises(ValueError, match=r"sam_regions: points must be at least 1, got 0"):
        sam_regions(image, segmenter, points=0)
    transformers.CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"Segmenter.load: model_type of .* must be one of sam, got 'clip'"):
        Segmenter.load(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"Segmenter.load: needs transformers; pip install 'texturevlm\[hf\]'"):
        Segmenter.load(tmp_path)
