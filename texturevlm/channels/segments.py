"""Regions from SAM: an alternative to superpixels where objects matter and a model may be run.

The model is asked for three masks at each point of a grid. Masks of high
quality that do not depend on the threshold are kept, one of each group of near-duplicates, and painted from the largest
to the smallest, so that a button stays visible on its coat. Masks are chosen at the decoder's resolution (a quarter of
the model's) and only painted at the image's: a page at 300 dpi would need gigabytes otherwise.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.pretrained import ModelPath, load_pretrained, model_pixels
from texturevlm.check import check_count, check_floating, check_shapes

_TOGETHER = 64  # points decoded in one call
STEP = 1.0  # how far the threshold is moved to see whether a mask is stable, in logits


@dataclass(frozen=True, eq=False)
class Segmenter:
    """A SAM model of transformers. network: the model; mean, std: (3,), of the pixels it was trained on."""

    network: Any
    mean: Tensor
    std: Tensor

    @classmethod
    def load(
        cls, model: ModelPath, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> "Segmenter":
        """From a hub id (facebook/sam-vit-base) or a folder with the same files."""
        network, processor, _ = load_pretrained("Segmenter.load", model, {"sam": "SamModel"}, device)
        return cls(network.to(dtype), torch.tensor(list(processor.image_mean)), torch.tensor(list(processor.image_std)))

    def embed(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The model's embedding of one image (1, 3, H, W), and the size that the image was resized to."""
        side = self.network.config.vision_config.image_size
        height, width = image.shape[2:]
        scale = side / max(height, width)
        size = max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)
        pixels = model_pixels(self.network, image, size, self.mean, self.std)
        return self.network.get_image_embeddings(functional.pad(pixels, (0, side - size[1], 0, side - size[0]))), size

    def masks(self, embedding: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """Three masks for each point (N, 2), x then y in the model's pixels: logits (3·N, h, w) and trust (3·N,)."""
        asked = points[None, :, None].to(embedding.device, embedding.dtype)
        answer = self.network(image_embeddings=embedding, input_points=asked, multimask_output=True)
        return answer.pred_masks[0].flatten(0, 1).float(), answer.iou_scores[0].flatten().float()


def sam_regions(
    image: Tensor,
    segmenter: Segmenter,
    *,
    points: int = 32,
    trust: float = 0.88,
    stability: float = 0.95,
    overlap: float = 0.7,
    limit: int = 255,
) -> Tensor:
    """Cut an image into the regions that SAM finds in it.

    image:     (B, 3, H, W) or (B, 1, H, W), values 0 to 1
    points:    along each side of the grid
    trust:     the least quality of a mask, as the model itself estimates it
    stability: the least share of its pixels that a mask must keep when its threshold is moved
    overlap:   of two masks whose boxes overlap more than this, the one of lower quality is dropped
    limit:     at most this many masks, the best ones
    returns    (B, H, W) int32: 0 where no mask lies, 1 … R for the regions, larger ones first
    """
    sizes = check_shapes("sam_regions", image=(image, "B C H W"))
    check_floating("sam_regions", image=image)
    check_count("sam_regions", "points", points, 1)
    check_count("sam_regions", "limit", limit, 1)
    if sizes["C"] not in (1, 3):
        raise ValueError(f"sam_regions: image must have 3 channels or 1, got {tuple(image.shape)}")
    side = segmenter.network.config.vision_config.image_size
    maps = []
    with torch.inference_mode():
        for picture in torch.split(image.expand(-1, 3, -1, -1), 1):
            embedding, size = segmenter.embed(picture)
            found = [
                _good(*segmenter.masks(embedding, part), size, side, trust, stability)
                for part in torch.split(point_grid(points, size), _TOGETHER)
            ]
            logits, quality = (torch.cat(parts) for parts in zip(*found))
            keep = distinct(mask_boxes(_inside(logits, size, side) > 0), quality, overlap)[:limit]
            maps.append(paint(logits[keep], size, side, (sizes["H"], sizes["W"])))
    return torch.stack(maps)


def point_grid(count: int, size: tuple[int, int]) -> Tensor:
    """The centres of count × count equal cells of an image: (count², 2), x then y."""
    centre = (torch.arange(count) + 0.5) / count
    y, x = torch.meshgrid(centre * size[0], centre * size[1], indexing="ij")
    return torch.stack([x, y], -1).flatten(0, 1)


def _inside(logits: Tensor, size: tuple[int, int], side: int) -> Tensor:
    """The part of masks (M, h, w) that shows the image and not the padding around it."""
    rows, columns = (-(-extent * logits.shape[-1] // side) for extent in size)
    return logits[:, :rows, :columns]


def _good(
    logits: Tensor, quality: Tensor, size: tuple[int, int], side: int, trust: float, stability: float
) -> tuple[Tensor, Tensor]:
    """The masks that the model trusts, that hardly depend on the threshold, and that are not empty."""
    shown = _inside(logits, size, side)
    sure, likely, perhaps = ((shown > level).sum((1, 2)) for level in (STEP, 0.0, -STEP))
    good = (quality >= trust) & (sure >= stability * perhaps) & (likely > 0)
    return logits[good], quality[good]


def mask_boxes(masks: Tensor) -> Tensor:
    """(M, h, w), none of them empty → (M, 4) xyxy."""
    edges = []
    for axis in (1, 2):  # any in a column gives x, any in a row gives y
        used = masks.any(axis).float()
        edges.append((used.argmax(1), used.shape[1] - used.flip(1).argmax(1)))
    (x0, x1), (y0, y1) = edges
    return torch.stack([x0, y0, x1, y1], 1).float()


def distinct(boxes: Tensor, quality: Tensor, overlap: float) -> Tensor:
    """Which boxes (M, 4) to keep, best first: each drops the worse ones whose IoU with it is above `overlap`."""
    order = quality.argsort(descending=True, stable=True)
    boxes = boxes[order]
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    near = (shared > overlap * (area[:, None] + area - shared)).cpu()
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for index in range(len(boxes)):
        if alive[index]:
            alive[index + 1 :] &= ~near[index, index + 1 :]
    return order[alive.to(order.device)]


def paint(logits: Tensor, size: tuple[int, int], side: int, extent: tuple[int, int]) -> Tensor:
    """Paint masks (M, h, w), largest first → (H, W) int32: 0 where there is none, else region numbers without gaps.

    size: of the image in the model's pixels; side: of the model's square; extent: (H, W)
    """
    area = (_inside(logits, size, side) > 0).sum((1, 2))
    regions = torch.zeros(extent, dtype=torch.int32, device=logits.device)
    for number, mask in enumerate(logits[area.argsort(descending=True, stable=True)], 1):
        full = functional.interpolate(mask[None, None], (side, side), mode="bilinear", align_corners=False)
        full = full[..., : size[0], : size[1]]
        regions[functional.interpolate(full, extent, mode="bilinear", align_corners=False)[0, 0] > 0] = number
    visible = torch.bincount(regions.flatten(), minlength=len(logits) + 1) > 0
    visible[0] = True
    return (visible.cumsum(0) - 1).int()[regions.long()]
