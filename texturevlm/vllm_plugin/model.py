"""Qwen3-VL of vLLM that reads chosen tokens. Only vLLM imports this file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.multimodal import MULTIMODAL_REGISTRY

from texturevlm.vllm_plugin.options import most_tokens
from texturevlm.vllm_plugin.positions import prompt_positions, whole_grid
from texturevlm.vllm_plugin.processor import TextureDummyInputs, TextureInfo, TextureMultiModalProcessor
from texturevlm.vllm_plugin.tower import tower_metadata
from texturevlm.vlm import Geometry, is_packed, unpack
from texturevlm.vlm.trained import trained_as


@MULTIMODAL_REGISTRY.register_processor(TextureMultiModalProcessor, info=TextureInfo, dummy_inputs=TextureDummyInputs)
class TextureQwen3VL(Qwen3VLForConditionalGeneration):  # type: ignore[misc]
    """Rows of patches that carry their place (texturevlm/vlm/places.py) are chosen tokens; others pass unchanged."""

    def __init__(self, *, vllm_config: Any, prefix: str = "model") -> None:
        config = vllm_config.model_config.hf_config
        settings = vllm_config.model_config.multimodal_config
        most_tokens(config)
        if trained_as(config).levels == "causal":
            raise ValueError("texturevlm: levels of the checkpoint must be joint or apart under vLLM, got causal")
        if settings.mm_encoder_tp_mode == "data":
            raise ValueError("texturevlm: mm_encoder_tp_mode must be weights, because places are cut wrongly; got data")
        if settings.is_multimodal_pruning_enabled():
            raise ValueError("texturevlm: video_pruning_rate must be 0, because it moves positions; got more")
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        vision = config.vision_config
        self._row_width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2

    def get_encoder_cudagraph_config(self) -> Any:
        """No graphs of the tower: vLLM fills them with positions of whole grids."""
        return replace(super().get_encoder_cudagraph_config(), modalities=[])

    def _process_image_input(self, image_input: Any) -> tuple[Tensor, ...]:
        rows = image_input.get("pixel_values")
        if rows is None or not is_packed(rows, self._row_width):
            own: tuple[Tensor, ...] = super()._process_image_input(image_input)
            return own
        pixels, geometry, _ = unpack(rows.to(self.visual.device), self._row_width)
        found = self.visual(pixels, None, encoder_metadata=tower_metadata(self.visual, geometry))
        counts = (image_input["image_grid_thw"].prod(-1) // self.visual.spatial_merge_size**2).tolist()
        parts: tuple[Tensor, ...] = found.split(counts)
        return parts

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Sequence[Any]) -> tuple[Tensor, int]:
        if not any(self._chosen_rows(feature) is not None for feature in mm_features):
            own: tuple[Tensor, int] = super().get_mrope_input_positions(input_tokens, mm_features)
            return own
        return prompt_positions(len(input_tokens), self._pictures(input_tokens, mm_features))

    def _pictures(self, tokens: list[int], features: Sequence[Any]) -> Iterator[tuple[int, Geometry]]:
        """Where each picture begins, and its tokens; every frame of a video is a picture."""
        config, merge = self.config, self.config.vision_config.spatial_merge_size
        for feature in sorted(features, key=lambda feature: feature.mm_position.offset):
            if (rows := self._chosen_rows(feature)) is not None:
                yield feature.mm_position.offset, unpack(rows[:: merge**2].cpu(), self._row_width)[1]
                continue
            for first, height, width, _ in self._iter_mm_grid_hw(
                tokens,
                [feature],
                video_token_id=config.video_token_id,
                vision_start_token_id=config.vision_start_token_id,
                vision_end_token_id=config.vision_end_token_id,
                spatial_merge_size=merge,
            ):
                yield first, whole_grid(height, width)

    def _chosen_rows(self, feature: Any) -> Tensor | None:
        item = feature.data if feature.modality == "image" else None
        rows = item["pixel_values"].data if item is not None and "pixel_values" in item else None
        return rows if rows is not None and is_packed(rows, self._row_width) else None
