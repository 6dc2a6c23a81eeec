"""The patches of a stream: those that read a marked tile are sampled again, in place (patches.cu: refresh_patches)."""

from collections.abc import Sequence

from torch import Tensor

from texturevlm.cuda.launch import launch, pack_pyramid, scalar_bits
from texturevlm.cuda.struct import Layout
from texturevlm.ops.marks import Marks
from texturevlm.ops.probe_kernel import CHANNELS_PER_THREAD, patch_parts
from texturevlm.ops.sampling import MAX_ANISOTROPY

_PATCHES, _REFRESH = Layout("patches.cu", "PatchJob"), Layout("patches.cu", "Refresh")


def refresh_patches_cuda(
    pixels: Tensor,
    levels: Sequence[Tensor],
    centre: Tensor,
    ddx: Tensor,
    ddy: Tensor,
    valid: Tensor,
    sampled: Tensor,
    marks: Marks,
) -> None:
    """Sample again what reads a marked tile.

    pixels:  (1, K, C, P, P), contiguous, written in place
    levels:  finest first, each (1, C, H_l, W_l)
    centre, ddx, ddy: (1, K, 2) float32, contiguous, as for `sample_patches`
    valid:   (1, K) bool, the slots that are used
    sampled: (K,) bool, gets which patches were written
    """
    count, patch = pixels.shape[1], pixels.shape[4]
    groups = -(-levels[0].shape[1] // CHANNELS_PER_THREAD)
    job = _PATCHES.pack(
        pyramid=pack_pyramid(levels, ()),
        gradient=None,
        centre=centre,
        ddx=ddx,
        ddy=ddy,
        pixels=pixels,
        per_image=count,
        patch=patch,
        groups=groups,
        max_anisotropy=MAX_ANISOTROPY,
    )
    parameters = _REFRESH.pack(job=job, marks=marks.packed, valid=valid, sampled=sampled)
    scalar = scalar_bits(levels[0].dtype)
    blocks = (count * groups, patch_parts(count * groups, patch))
    launch("patches.cu", "refresh_patches", pixels.device, blocks, parameters, SCALAR=scalar)
