"""LLaVA-1.5 and LLaVA-OneVision: a CLIP or SigLIP tower, a projector, a language model that counts tokens.

The language model has no rows and columns: only the order of the tokens matters, and they come row by row. The prompt
is passed as embeddings, which work with `generate`, beams, padding and training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from texturevlm.types import Allocation, Texture
from texturevlm.vlm.adapter import CENTRED, CLIP, Adapter
from texturevlm.vlm.prompts import Picture, filled, pair, worded
from texturevlm.vlm.tokens import Tokens
from texturevlm.vlm.views import View, still_views, to_tokens
from texturevlm.vlm.vit import VisionTransformer, by_count


class Llava(Adapter):
    """LLaVA-1.5."""

    normalisation = CLIP

    def __init__(self, model: Any, processor: Any = None) -> None:
        super().__init__(model, processor)
        self.tower = VisionTransformer(model.model.vision_tower)
        self.side = self.tower.side

    def encode(self, texture: Texture, allocation: Allocation) -> Tokens:
        """The chosen patches as the language model gets them: embeds (B, K, D), in the allocation's slots."""
        views = still_views("encode", Picture(texture, allocation), self.side)
        return to_tokens(allocation, views, [self._projected(views)])

    def prepare(self, prompts: Any, textures: Any, allocations: Any, *, weights: Any = None) -> dict[str, Tensor]:
        """Everything that `model(**inputs)` or `model.generate(**inputs)` needs, batches padded on the left.

        prompts:     a question, a conversation (messages), text with placeholders, or a list of prompts
        textures:    for one prompt: a Texture or a list of them; for a list of prompts: one such entry each
        allocations: likewise; upright footprints of this model's token side
        weights:     (B, K) per allocation: factors of the embeddings of each token, differentiable; 1 by default
        """
        (mark,) = self.tokenizer.convert_ids_to_tokens([self.model.config.image_token_id])
        ids: list[list[int]] = []
        views: list[View] = []
        for prompt, pictures in pair("prepare", prompts, textures, allocations, weights):
            if any(picture.is_video for picture in pictures):
                raise ValueError("prepare: textures must be images for LLaVA, got a video: give its frames as images")
            own = [view for picture in pictures for view in still_views("prepare", picture, self.side)]
            text = worded("prepare", self.processor, prompt, pictures, [mark])
            text = filled("prepare", text, [mark], [mark * self.tokens_for(len(view)) for view in own])
            ids.append(self.tokenizer(text)["input_ids"])
            views += own
        return self.assemble(ids, views)

    def assemble(self, ids: Sequence[Sequence[int]], views: Sequence[View]) -> dict[str, Tensor]:
        """Inputs from token ids (per sample, one placeholder per visual token) and the views of all samples."""
        length = max(len(one) for one in ids)
        input_ids = torch.full((len(ids), length), getattr(self.tokenizer, "pad_token_id", None) or 0)
        mask = torch.zeros_like(input_ids)
        for sample, own in enumerate(ids):
            input_ids[sample, length - len(own) :] = torch.as_tensor(own)
            mask[sample, length - len(own) :] = 1
        input_ids, mask = input_ids.to(self.model.device), mask.to(self.model.device)
        embeds = self.model.get_input_embeddings()(input_ids)
        visual = torch.cat([self.arranged(one) for one in self._projected(views, weighted=True)])
        where = (input_ids == self.model.config.image_token_id).unsqueeze(-1)
        if int(where.sum()) != len(visual):
            raise ValueError(f"assemble: ids must have {len(visual)} placeholders, got {int(where.sum())}")
        return {"inputs_embeds": embeds.masked_scatter(where, visual.to(embeds)), "attention_mask": mask}

    def generate(self, prompts: Any, textures: Any, allocations: Any, *, weights: Any = None, **options: Any) -> Tensor:
        """The ids of the answers, (B, N). All options that `model.generate` takes."""
        inputs = self.prepare(prompts, textures, allocations, weights=weights)
        found: Tensor = self.model.generate(**inputs, **options)
        return found

    def grid_for(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tokens that the tower was trained with, whatever the image's size."""
        side = int(len(self.tower.embeddings.position_embedding.weight) ** 0.5)
        return side, side

    def tokens_for(self, chosen: int) -> int:
        """How many placeholders an image of so many chosen tokens needs."""
        return chosen

    def arranged(self, tokens: Tensor) -> Tensor:
        """An image's tokens (K, D) as they stand in the prompt."""
        return tokens

    def _projected(self, views: Sequence[View], *, weighted: bool = False) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        config = self.model.config
        layers = config.vision_feature_layer
        layers = [layers] if isinstance(layers, int) else layers
        front = self.tower.in_front if config.vision_feature_select_strategy == "default" else 0
        if self.tower.in_front and not front:
            raise ValueError(f"model keeps its tower's class token, which {type(self).__name__} does not")
        for group in by_count(views):
            members = [views[index] for index in group]
            pixels = self.normalised(torch.stack([view.pixels[:, 0] for view in members]))
            out = self.tower.run(
                self.tower.tower, pixels.to(self.model.device), members, output_hidden_states=True, return_dict=True
            )
            chosen = torch.cat([out.hidden_states[layer][:, front:] for layer in layers], -1)
            found |= dict(zip(group, self.model.model.multi_modal_projector(chosen)))
        tokens = [found[index] for index in range(len(views))]
        if not weighted:
            return tokens
        return [one * view.weight[:, None].to(one) for one, view in zip(tokens, views)]


class LlavaOnevision(Llava):
    """LLaVA-OneVision, whose images end with a token for a new line."""

    normalisation = CENTRED

    def tokens_for(self, chosen: int) -> int:
        return chosen + 1

    def arranged(self, tokens: Tensor) -> Tensor:
        return torch.cat([tokens, self.model.model.image_newline[None].to(tokens)])
