"""The multimodal processor of vLLM: every image of a request becomes a budget of chosen tokens.

It runs on the CPU in vLLM's front end, where a bad option is an error of its request alone. vLLM processes and caches
images one by one, so each image has the whole budget, and the question is part of the key of the cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from transformers import BatchFeature
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLMultiModalProcessor,
    Qwen3VLProcessingInfo,
)
from vllm.multimodal.parse import ImageProcessorItems

from texturevlm.ask.processor import TextureProcessor
from texturevlm.vllm_plugin.options import chosen_options, most_tokens, other_options


class Chooser(TextureProcessor):
    def _warn_if_none_attached(self) -> None:
        """The model is in another process, and not one of transformers."""


class TextureInfo(Qwen3VLProcessingInfo):  # type: ignore[misc]
    def get_hf_processor(self, **kwargs: object) -> Any:
        return super().get_hf_processor(**other_options(kwargs))

    def get_max_image_tokens(self) -> int:
        return most_tokens(self.get_hf_config())


class TextureDummyInputs(Qwen3VLDummyInputsBuilder):  # type: ignore[misc]
    def get_dummy_mm_data(self, seq_len: int, mm_counts: Mapping[str, int], mm_options: Mapping[str, Any]) -> Any:
        """Images just large enough for the most tokens, instead of the largest that the model's own processor takes."""
        config = self.info.get_hf_config()
        side = config.vision_config.patch_size * config.vision_config.spatial_merge_size
        square = side * math.ceil(math.sqrt(most_tokens(config)))
        images = self._get_dummy_images(
            width=square, height=square, num_images=mm_counts.get("image", 0), overrides=mm_options.get("image")
        )
        return {**super().get_dummy_mm_data(seq_len, {**mm_counts, "image": 0}, mm_options), "image": images}


class TextureMultiModalProcessor(Qwen3VLMultiModalProcessor):  # type: ignore[misc]
    def _apply_hf_processor_main(self, mm_items: Any, hf_processor_mm_kwargs: Mapping[str, Any]) -> BatchFeature:
        """Images are ours; videos, and embeddings that a client computed, are the model's own."""
        counts, options = mm_items.get_all_counts(), other_options(hf_processor_mm_kwargs)
        images = mm_items.get("image")
        if not counts.get("image") or not isinstance(images, ImageProcessorItems):
            return super()._apply_hf_processor_main(mm_items, options)
        found = BatchFeature({})
        if others := {name for name, count in counts.items() if count and name != "image"}:
            found = super()._apply_hf_processor_main(mm_items.select(others), options)
        found.update(self._chosen(images.get_all(), hf_processor_mm_kwargs))
        return found

    def _chosen(self, images: list[Any], given: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Rows that hold the pixels and the place of every patch, and a grid with as many patches per image."""
        config = self.info.get_hf_config()
        options = chosen_options(given, config)
        question = options.pop("question")
        chooser = Chooser(self.info.get_hf_processor(**given), config, **options)
        inputs = [chooser(images=[image], text=chooser.image_token, question=question) for image in images]
        return {name: torch.cat([found[name] for found in inputs]) for name in ("pixel_values", "image_grid_thw")}
