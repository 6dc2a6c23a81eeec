"""Saliency: where brightness and colour change in every direction, not only along one.

Multi-scale centre-surround differences are as strong on a horizon or a shadow's edge as on a face. An edge changes
along one direction only; an object, at the scale of 8 to 16 pixels, changes along both. So saliency is nearly the
smaller eigenvalue of the structure tensor of the opponent colours, at two mip levels, averaged over a neighbourhood. On
COCO it covers more of the objects than centre-surround and than the spectral residual, which needs the whole image;
`texturevlm_lab.studies.channels` compares them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.structure import box_mean, check_image, enlarge, mip_reach
from texturevlm.ops.mip import mipmap

SALIENCY_LEVELS = (3, 4)  # mip levels of the differences; both are averaged on the last one
NEIGHBOURHOOD = 3  # texels, averaged twice
COLOUR = 2.0  # weight of a change of colour; a change of brightness has 1
SALIENCY_HALF = 0.01  # the squared change in the weaker direction that becomes 0.5
EPSILON = 1e-9  # far below the square of the smallest change
CENTRE = 0.45  # standard deviation of the centre prior, of the image's sides

SALIENCY_REACH = mip_reach(1 + 2 * (NEIGHBOURHOOD // 2), SALIENCY_LEVELS[-1])


def saliency(image: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """How much a place differs from its surroundings.

    image:  (B, 3, H, W), 0 to 1
    levels: its mip pyramid, finest first, each (B, 3, H_l, W_l)
    returns (B, H, W), 0 to 1; a changed pixel reaches SALIENCY_REACH pixels
    """
    check_image("saliency", image, levels)
    last = len(levels) - 1
    total: Tensor | None = None
    for scale in SALIENCY_LEVELS:
        here, there = min(scale, last), min(SALIENCY_LEVELS[-1], last)
        tensor = mipmap(structure_tensor(opponents(levels[here])), levels=there - here + 1)[-1]
        energy = weaker(box_mean(box_mean(tensor, NEIGHBOURHOOD, NEIGHBOURHOOD), NEIGHBOURHOOD, NEIGHBOURHOOD))
        total = energy if total is None else total + energy
    assert total is not None
    return enlarge(total / (total + SALIENCY_HALF), image.shape[-2:]).squeeze(1).to(image.dtype)


def opponents(image: Tensor) -> Tensor:
    """(B, 3, H, W) → brightness, red against green, yellow against blue; orthogonal; colour is weighted by COLOUR."""
    wide = image.float() if image.dtype in (torch.float16, torch.bfloat16) else image
    red, green, blue = torch.split(wide, 1, 1)
    brightness = (red + green + blue) / 3**0.5
    red_green = (red - green) * (COLOUR / 2**0.5)
    yellow_blue = (red + green - 2 * blue) * (COLOUR / 6**0.5)
    return torch.cat([brightness, red_green, yellow_blue], 1)


def structure_tensor(texels: Tensor) -> Tensor:
    """(B, C, H, W) → (B, 3, H, W): Σ dx², Σ dy² and Σ dx·dy over the channels, by central differences."""
    around = functional.pad(texels, (1, 1, 1, 1), mode="replicate")
    dx = (around[..., 1:-1, 2:] - around[..., 1:-1, :-2]) / 2
    dy = (around[..., 2:, 1:-1] - around[..., :-2, 1:-1]) / 2
    return torch.stack([(dx * dx).sum(1), (dy * dy).sum(1), (dx * dy).sum(1)], 1)


def weaker(tensor: Tensor) -> Tensor:
    """(B, 3, H, W) → (B, 1, H, W): det / trace, close to the smaller eigenvalue; 0 for a straight edge."""
    xx, yy, xy = torch.split(tensor, 1, 1)
    return (xx * yy - xy * xy).clamp(min=0) / (xx + yy + EPSILON)


def centre_prior(image: Tensor) -> Tensor:
    """(H, W) for an image (B, C, H, W): a Gaussian around the centre, where photographers put objects, 1 there."""
    dtype = torch.float64 if image.dtype == torch.float64 else torch.float32
    y, x = (
        (torch.arange(extent, device=image.device, dtype=dtype) + 0.5) / extent - 0.5 for extent in image.shape[-2:]
    )
    return torch.exp(-(y[:, None].square() + x.square()) / (2 * CENTRE**2))
