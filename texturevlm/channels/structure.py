"""Structure: dark on light, light on dark, fine and coarse, what stands out; and the stencils that channels share.

Stencils repeat the edge texel beyond the border. None uses a statistic of the whole image. Each channel has a reach:
how many pixels away a changed pixel changes the result. A stream updates that much and no more.

Saliency is where brightness and colour change in every direction, not only along one. Multi-scale centre-surround
differences are as strong on a horizon or a shadow's edge as on a face. An edge changes along one direction only; an
object, at the scale of 8 to 16 pixels, changes along both. So saliency is nearly the smaller eigenvalue of the
structure tensor of the opponent colours, at two mip levels, averaged over a neighbourhood. On COCO it covers more of
the objects than centre-surround and than the spectral residual, which needs the whole image;
`texturevlm_lab.studies.channels` compares them.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.check import check_floating, check_shapes
from texturevlm.ops import check_pyramid, mipmap
from texturevlm.types import COLOURS, Texture

LUMA = (0.299, 0.587, 0.114)
NOISE = 2.5 / 255  # a difference that a camera or JPEG adds
SURROUND = 17  # pixels: wide enough for the strokes of a headline, narrow enough for one line of small print
DETAIL = 5  # pixels
COARSE_LEVEL, COARSER_LEVEL = 3, 5  # levels


def mip_reach(texels: int, level: int) -> int:
    """The reach, in pixels, of a window of ± `texels` on a mip level that is read bilinearly.

    At odd extents a texel covers up to 2^(level + 1) − 1 pixels, so the two that are read cover 2.5 texels.
    """
    return ((2 * texels + 5) << level) // 2 - 2


EDGES_REACH = SURROUND // 2
HIGH_PASS_REACH = DETAIL // 2
LOW_PASS_REACH = mip_reach(0, COARSER_LEVEL)


def centre_surround(image: Tensor) -> Tensor:
    """How much darker (above 0: edges) or lighter (below 0: edges_inverted) a pixel is than its surroundings.

    image:  (B, 3, H, W), 0 to 1
    returns (B, H, W), −1 to 1; a changed pixel reaches EDGES_REACH pixels
    The value is ±d² / (d² + σ² + NOISE²): d is the surround's mean minus the pixel, with NOISE subtracted from |d|, and
    σ² is the surround's variance. If the surround has two tones, the value is the share of the other tone: strokes,
    which cover less, are near ±1 and paper is near 0, at any contrast above the noise.
    """
    check_shapes("centre_surround", image=(image, "B 3 H W"))
    check_floating("centre_surround", image=image)
    grey = luma(image)
    mean = box_mean(grey, SURROUND, SURROUND)
    variance = (box_mean(grey * grey, SURROUND, SURROUND) - mean * mean).clamp(min=0)
    darker = mean - grey
    power = (darker.abs() - NOISE).clamp(min=0).square()
    return (darker.sign() * power / (power + variance + NOISE**2)).squeeze(1).to(image.dtype)


def high_pass(image: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Fine detail: the difference between a pixel and the mean of the 5×5 around it, minus the noise.

    image:  (B, 3, H, W), 0 to 1
    levels: its mip pyramid, finest first, each (B, 3, H_l, W_l)
    returns (B, H, W), 0 to 1; a changed pixel reaches HIGH_PASS_REACH pixels
    """
    check_image("high_pass", image, levels)
    grey = luma(image)
    detail = (grey - box_mean(grey, DETAIL, DETAIL)).abs() - NOISE
    return detail.clamp(min=0).squeeze(1).to(image.dtype)


def low_pass(image: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Coarse structure: the difference between the image blurred to 8 pixels and the image blurred to 32.

    The blurred image itself is already in the mip levels of red, green and blue.
    returns (B, H, W), 0 to 1; a changed pixel reaches LOW_PASS_REACH pixels
    """
    check_image("low_pass", image, levels)
    coarse, coarser = (luma(levels[min(level, len(levels) - 1)]) for level in (COARSE_LEVEL, COARSER_LEVEL))
    size = image.shape[-2:]
    return (enlarge(coarse, size) - enlarge(coarser, size)).abs().squeeze(1).to(image.dtype)


def check_image(function: str, image: Tensor, levels: Sequence[Tensor]) -> None:
    """Check an image and its mip pyramid."""
    check_pyramid(function, levels)
    check_shapes(function, image=(image, "B 3 H W"), levels=(levels[0], "B 3 H W"))
    check_floating(function, image=image)


def luma(image: Tensor) -> Tensor:
    """(B, 3, H, W) → (B, 1, H, W), brightness (BT.601 weights); half precision becomes float32."""
    wide = image.float() if image.dtype in (torch.float16, torch.bfloat16) else image
    return wide[:, 0:1] * LUMA[0] + wide[:, 1:2] * LUMA[1] + wide[:, 2:3] * LUMA[2]


def colour_levels(texture: Texture) -> list[Tensor]:
    """Red, green and blue of every level, (B, 3, H_l, W_l); without colours, the first channel three times."""
    if texture.names[:3] == COLOURS:
        return [level[:, :3] for level in texture.levels]
    if set(COLOURS) <= set(texture.names):
        picked = [texture.names.index(name) for name in COLOURS]
        # not by a list of indices, which would be copied to a GPU
        return [torch.stack([level[:, index] for index in picked], 1) for level in texture.levels]
    return [level[:, :1].expand(-1, 3, -1, -1) for level in texture.levels]


def grey_levels(texture: Texture) -> list[Tensor]:
    """(B, 1, H_l, W_l): brightness, with all mip levels."""
    if not set(COLOURS) <= set(texture.names):
        return mipmap(texture.levels[0][:, :1].float())
    grey = [luma(level) for level in colour_levels(texture)]
    return grey if len(grey) > 1 else mipmap(grey[0])


def enlarge(texels: Tensor, size: Sequence[int]) -> Tensor:
    """A coarse level (B, C, H_l, W_l) read bilinearly at the pixels of an image of `size`."""
    return functional.interpolate(texels, size=tuple(size), mode="bilinear", align_corners=False)


def box_mean(texels: Tensor, height: int, width: int) -> Tensor:
    """The mean of the height × width window around each texel, both odd."""
    return _slide(_slide(texels, width, -1, torch.add), height, -2, torch.add) / (height * width)


def highest(texels: Tensor, height: int, width: int) -> Tensor:
    """The greatest value in the height × width window around each texel, both odd."""
    return _slide(_slide(texels, width, -1, torch.maximum), height, -2, torch.maximum)


def lowest(texels: Tensor, height: int, width: int) -> Tensor:
    """The least value in the height × width window around each texel, both odd."""
    return _slide(_slide(texels, width, -1, torch.minimum), height, -2, torch.minimum)


def _slide(texels: Tensor, extent: int, axis: int, combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Combine windows along an axis from runs of 1, 2, 4, … texels: on a CPU up to 100 times faster than pooling."""
    reach = extent // 2
    sides = (reach, reach, 0, 0) if axis == -1 else (0, 0, reach, reach)
    runs = functional.pad(texels, sides, mode="replicate")
    count = texels.shape[axis]
    window: Tensor | None = None
    start, length = 0, 1
    while length <= extent:
        if extent & length:
            part = runs.narrow(axis, start, count)
            window = part if window is None else combine(window, part)
            start += length
        rest = runs.shape[axis] - length
        if 2 * length <= extent:
            runs = combine(runs.narrow(axis, 0, rest), runs.narrow(axis, length, rest))
        length *= 2
    assert window is not None
    return window


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
