"""The Qwen-VL families and GLM-V, each by what it has beside the rest (`qwen.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.vlm.adapter import CENTRED, CLIP
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.modules import Override
from texturevlm.vlm.places import bilinear_taps, grid_for
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import LEVELS, View


class Qwen2VL(QwenAdapter):
    architecture = "Qwen2VLForConditionalGeneration"
    normalisation = CLIP

    def moment(self, view: View) -> Tensor:
        """Videos of Qwen2-VL count their pairs of frames."""
        return view.moment / self.moments if view.video else super().moment(view)


class Qwen2_5_VL(QwenAdapter):
    architecture = "Qwen2_5_VLForConditionalGeneration"
    normalisation = CLIP

    def tower_arguments(self, patch: Tensor, extent: Tensor, begins: Tensor) -> dict[str, Tensor]:
        """Add the order of the windows, and where each ends."""
        per_token = self.merge**2
        segment = begins.view(-1, per_token)[:, 0].cumsum(0)
        window = torch.cat([segment[:, None], self.windows(patch.view(-1, per_token, 2))], -1)
        order = torch.arange(len(segment), device=patch.device)
        for key in window.flip(-1).unbind(-1):
            order = order[key[order].argsort(stable=True)]
        changes = (window[order][1:] != window[order][:-1]).any(-1).nonzero()[:, 0] + 1
        ends = torch.cat([changes.new_zeros(1), changes, changes.new_full((1,), len(order))])
        return super().tower_arguments(patch, extent, begins) | {
            "window_index": order,
            "cu_window_seqlens": (ends * per_token).int(),
        }

    @property
    def whole_blocks(self) -> Collection[int]:
        blocks: Collection[int] = self.tower.fullatt_block_indexes
        return blocks

    def windows(self, patch: Tensor) -> Tensor:
        """(..., M², 2) rows and columns of a token's patches → (..., 2), the row and column of its window."""
        across: int = self.config.vision_config.window_size // self.config.vision_config.patch_size  # patches
        return ((patch.mean(-2) + 0.5) / across).floor().long()

    def moment(self, view: View) -> Tensor:
        if not view.video:
            return super().moment(view)
        per_second: float = self.config.vision_config.tokens_per_second
        return (view.times(view.fps) * per_second).floor()


class Qwen3VL(QwenAdapter):
    architecture = "Qwen3VLForConditionalGeneration"
    normalisation = CENTRED
    levels = LEVELS

    def tower_arguments(self, patch: Tensor, extent: Tensor, begins: Tensor) -> dict[str, Tensor]:
        """Add the taps into the position table, under the names of the installed transformers."""
        from transformers import vision_utils

        indices, weights = bilinear_taps(patch, extent, self.tower.num_grid_per_side)
        if hasattr(vision_utils, "get_vision_interpolation_indices_and_weights"):
            taps = {"interp_indices": indices, "interp_weights": weights}
        else:  # before 5.15
            taps = {"bilinear_indices": indices.T, "bilinear_weights": weights.T}
        return super().tower_arguments(patch, extent, begins) | taps

    @property
    def deepstack_mergers(self) -> dict[int, Any]:
        return dict(zip(self.tower.deepstack_visual_indexes, self.tower.deepstack_merger_list))

    def learned_positions(self, patch: Tensor, extent: Tensor) -> Tensor:
        indices, weights = bilinear_taps(patch, extent, self.tower.num_grid_per_side)
        table: Tensor = self.tower.pos_embed(indices)
        return (table * weights[..., None]).sum(1)

    def video_views(self, picture: PromptImage, levels: str) -> list[View]:
        """One view per moment: each has its own place in the prompt."""
        (whole,) = super().video_views(picture, levels)
        return [whole.part(whole.moment == moment) for moment in whole.moment.unique()]

    def clip_groups(self, moments: Sequence[View]) -> list[list[View]]:
        return [list(moments)]

    def filling(self, group: Sequence[View], fps: float) -> str:
        if not group[0].video:
            return super().filling(group, fps)
        times = [float(view.times(fps)[0]) + (self.moments - 1) / 2 / fps for view in group]
        return "".join(
            f"<{time:.1f} seconds>{super(Qwen3VL, self).filling([view], fps)}" for time, view in zip(times, group)
        )


class Qwen3VLMoe(Qwen3VL):
    architecture = "Qwen3VLMoeForConditionalGeneration"
    captured = False


class Glm4V(QwenAdapter):
    architecture = "Glm4vForConditionalGeneration"
    normalisation = CLIP
    captured = False
    grows = False
    two_looks = False  # its language model rotates pairs of neighbours
    videos = False  # a video has the placeholders of images, told apart by the tokens around them

    def __init__(self, config: Any, processor: Any = None) -> None:
        super().__init__(config, processor)
        self._extents: dict[int, Tensor] = {}  # by thread: of the grids of the rows that the tower is processing

    @property
    def wrapper_ids(self) -> tuple[int, int]:
        return self.config.image_start_token_id, self.config.image_end_token_id

    def grid_for(self, size: tuple[int, int]) -> tuple[int, int]:
        """As the stock processor: limits are pixels times frames, and a side below a token is enlarged to one."""
        images = getattr(self.processor, "image_processor", None)
        if images is None or not getattr(images, "do_resize", True):
            return grid_for(size, self.side)
        scale = max(1.0, self.side / min(size))
        least, most = (images.size[name] / self.moments for name in ("shortest_edge", "longest_edge"))
        return grid_for((int(size[0] * scale), int(size[1] * scale)), self.side, least=least, most=most)

    def tower_arguments(self, patch: Tensor, extent: Tensor, begins: Tensor) -> dict[str, Tensor]:
        self._extents[get_ident()] = extent
        return super().tower_arguments(patch, extent, begins)

    def _tower_forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._tower_forward(hidden_states, *args, **kwargs)
        finally:  # an error may have come before the table was read
            self._extents.pop(get_ident(), None)

    def hooks(self, model: Any) -> Iterator[Any]:
        yield from super().hooks(model)
        yield self.tower.embeddings.register_forward_pre_hook(self._before_table, with_kwargs=True)
        if hasattr(type(model), "_expand_multimodal_outputs"):  # not in 5.17
            self._expansion = Override(model, "_expand_multimodal_outputs", self._expanded)
            yield self._expansion

    def _expanded(self, input_ids: Any, outputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Repeat the images of a prompt together for beams, as all models do but GLM's own: A B A B, not A A B B."""
        from transformers import GenerationMixin

        if outputs.get("video") is not None:
            return self._expansion.original(input_ids, outputs, *args, **kwargs)
        return GenerationMixin._expand_multimodal_outputs(self.model, input_ids, outputs, *args, **kwargs)

    def _before_table(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        extent = self._extents.pop(get_ident(), None)
        if extent is None:
            return None
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        down, across = ((given[name] + 0.5) / side - 0.5 for name, side in zip(("h_coords", "w_coords"), extent.T))
        whole = given["lengths"].sum()[None]
        shape = torch.ones(1, 3, dtype=torch.int64, device=whole.device)
        return (), given | {"lengths": whole, "image_shapes": shape, "h_coords": down, "w_coords": across}


class Glm4VMoe(Glm4V):
    """GLM-4.5V: GLM-4.1V with a mixture of experts."""

    architecture = "Glm4vMoeForConditionalGeneration"
