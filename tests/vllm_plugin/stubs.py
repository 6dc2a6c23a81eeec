"""The part of vLLM's interface that the plug-in uses, as its commit a014e35 (22 August 2026) has it.

Signatures and what goes in and out are vLLM's; what is inside is ours. The vision tower holds the weights of a small
model of transformers, so that what the plug-in gives it can be compared with that model.
"""

from collections import UserDict
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image


class ModelRegistry:
    models: dict[str, str] = {}  # noqa: RUF012

    @classmethod
    def get_supported_archs(cls):
        return cls.models.keys()

    @classmethod
    def register_model(cls, model_arch, model_cls):
        assert model_arch not in cls.models and model_cls.count(":") == 1
        cls.models[model_arch] = model_cls


class Registry:
    def register_processor(self, processor, *, info, dummy_inputs):
        def wrapper(model_cls):
            model_cls.factories = SimpleNamespace(processor=processor, info=info, dummy_inputs=dummy_inputs)
            return model_cls

        return wrapper


class ImageProcessorItems:
    def __init__(self, data):
        self.data = data

    def get_count(self):
        return len(self.data)

    def get_all(self):
        return list(self.data)


class EmbeddingItems:
    def get_count(self):
        return 1


class VideoItems(EmbeddingItems):
    pass


class MultiModalDataItems(UserDict):
    def select(self, modalities):
        return MultiModalDataItems({modality: self[modality] for modality in modalities})

    def get_all_counts(self):
        return {modality: items.get_count() for modality, items in self.items()}


class Qwen3VLProcessingInfo:
    """vLLM loads a processor of transformers for every new set of options: `loaded` counts those."""

    def __init__(self, config, processor):
        self.config, self.processor, self.loaded = config, processor, []

    def get_hf_config(self):
        return self.config

    def get_hf_processor(self, **kwargs):
        self.loaded.append(kwargs)
        return self.processor

    def get_max_image_tokens(self):
        return 16384

    def get_mm_max_tokens_per_item(self, seq_len, mm_counts):
        return {"image": self.get_max_image_tokens(), "video": seq_len}


class Qwen3VLDummyInputsBuilder:
    def __init__(self, info):
        self.info = info

    def get_dummy_mm_data(self, seq_len, mm_counts, mm_options):
        assert not mm_counts["image"], "images of 16 million pixels"
        return {"image": [], "video": ["a video"] * mm_counts.get("video", 0)}

    def _get_dummy_images(self, *, width, height, num_images, overrides=None):
        return [Image.new("RGB", (width, height), 255)] * num_images


class Qwen3VLMultiModalProcessor:
    def __init__(self, info, dummy_inputs):
        self.info, self.dummy_inputs = info, dummy_inputs

    def _apply_hf_processor_main(self, mm_items, hf_processor_mm_kwargs):
        """Says what came here instead of processing it."""
        return {"stock": (sorted(mm_items), dict(hf_processor_mm_kwargs))}


@dataclass
class PlaceholderRange:
    offset: int
    length: int


@dataclass
class Feature:
    modality: str
    data: dict | None
    mm_position: PlaceholderRange


@dataclass
class EncoderCudaGraphConfig:
    modalities: list[str]
    buffer_keys: list[str] = field(default_factory=list)


class Rotary:
    """A partial rotary embedding over half of a head, whose table has whole positions only."""

    def __init__(self, head):
        self.rotary_dim, self.base = head // 2, 10000

    def _compute_inv_freq(self, base):
        return 1.0 / base ** (torch.arange(0, self.rotary_dim, 2).float() / self.rotary_dim)


class Tower:
    def __init__(self, tower):
        self.tower, config = tower, tower.config
        self.spatial_merge_size, self.num_grid_per_side = config.spatial_merge_size, tower.num_grid_per_side
        self.pos_embed, self.rotary_pos_emb = tower.pos_embed, Rotary(config.hidden_size // config.num_heads)
        self.device, self.dtype = tower.pos_embed.weight.device, tower.pos_embed.weight.dtype

    def prepare_encoder_metadata(self, grid_thw_list):
        lengths = np.array([t * h * w for t, h, w in grid_thw_list])
        count, width = int(lengths.sum()), self.pos_embed.weight.shape[1]
        nowhere = torch.full((count, self.rotary_pos_emb.rotary_dim), torch.nan, dtype=self.dtype)
        return {
            "pos_embeds": torch.full((count, width), torch.nan, dtype=self.dtype),
            "rotary_pos_emb_cos": nowhere,
            "rotary_pos_emb_sin": nowhere,
            "cu_seqlens": torch.from_numpy(np.concatenate([[0], lengths.cumsum()])).int(),
            "max_seqlen": torch.tensor(int(lengths.max())),
            "sequence_lengths": None,
        }

    def __call__(self, x, grid_thw, *, encoder_metadata=None):
        given, tower = encoder_metadata, self.tower
        hidden = tower.patch_embed(x.to(self.dtype)) + given["pos_embeds"]
        turned = [torch.cat([given[f"rotary_pos_emb_{one}"]] * 2, -1) for one in ("cos", "sin")]
        further = []
        for index, block in enumerate(tower.blocks):
            hidden = block(hidden, cu_seqlens=given["cu_seqlens"], position_embeddings=tuple(turned))
            if index in tower.deepstack_visual_indexes:
                further.append(tower.deepstack_merger_list[len(further)](hidden))
        return torch.cat([tower.merger(hidden), *further], 1)


class Qwen3VLForConditionalGeneration:
    def __init__(self, *, vllm_config, prefix="model"):
        self.config, self.visual = vllm_config.model_config.hf_config, vllm_config.tower

    def get_encoder_cudagraph_config(self):
        return EncoderCudaGraphConfig(["image", "video"], ["pixel_values"])

    def _process_image_input(self, image_input):
        return ("stock",)

    @staticmethod
    def _iter_mm_grid_hw(
        input_tokens, mm_features, video_token_id, vision_start_token_id, vision_end_token_id, spatial_merge_size
    ):
        for feature in mm_features:
            t, h, w = feature.data[f"{feature.modality}_grid_thw"].data.tolist()
            rows, columns, first = h // spatial_merge_size, w // spatial_merge_size, feature.mm_position.offset
            for _ in range(t):
                if feature.modality == "video":
                    first = input_tokens.index(video_token_id, first)
                yield first, rows, columns, rows * columns
                first += rows * columns

    def get_mrope_input_positions(self, input_tokens, mm_features):
        return torch.arange(len(input_tokens)).expand(3, -1), 0


MODULES = {
    "vllm": {"ModelRegistry": ModelRegistry},
    "vllm.model_executor": {},
    "vllm.model_executor.models": {},
    "vllm.model_executor.models.qwen3_vl": {
        "Qwen3VLDummyInputsBuilder": Qwen3VLDummyInputsBuilder,
        "Qwen3VLForConditionalGeneration": Qwen3VLForConditionalGeneration,
        "Qwen3VLMultiModalProcessor": Qwen3VLMultiModalProcessor,
        "Qwen3VLProcessingInfo": Qwen3VLProcessingInfo,
    },
    "vllm.multimodal": {"MULTIMODAL_REGISTRY": Registry()},
    "vllm.multimodal.parse": {"ImageProcessorItems": ImageProcessorItems},
}
