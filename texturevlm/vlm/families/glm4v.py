"""GLM-4.1V and GLM-4.5V: tokens of 28 × 28 pixels (four patches), a position table beside the rotary positions.

The tower's embeddings module reads the table where a patch lies in a picture of the size that `grid_thw` says. That is
a pseudo-grid here, so a hook gives the module the true places.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.vlm.adapter import CLIP
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.override import Override
from texturevlm.vlm.places import grid_for


class Glm4V(QwenAdapter):
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

    @property
    def token_pixels(self) -> int:
        return int(self.side**2 * self.moments)

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
