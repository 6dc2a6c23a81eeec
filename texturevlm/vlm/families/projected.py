"""Families with a ViT, a projector, and a language model that counts visual tokens like text: LLaVA and its kin.

`pixel_values` are packed rows, (images, patches, row), padded to the image with most patches. `get_image_features` of
the model is wrapped: packed rows go through its own tower and projector at their true positions, other pixels pass
unchanged. In Gemma 3, InternVL and SmolVLM a token is a square of patches (pooling, pixel shuffle), between markers in
the prompt: each token's own square goes through the model's pooling or shuffle by itself.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from texturevlm.vlm.adapter import CENTRED, CLIP, IMAGENET, Adapter
from texturevlm.vlm.families.vit import VisionTransformer, by_count, tower_for
from texturevlm.vlm.modules import Override
from texturevlm.vlm.places import Geometry, is_packed, unpack
from texturevlm.vlm.views import View


class ProjectedAdapter(Adapter):
    """A subclass says which outputs of the tower count, and how patches become tokens."""

    def __init__(self, config: Any, processor: Any = None) -> None:
        super().__init__(config, processor)
        self.merge = self.patches_across(config)
        self.side = square_side(config.vision_config.patch_size) * self.merge

    def patches_across(self, config: Any) -> int:
        """Rows, and columns, of patches in a token."""
        return 1

    def tower_of(self, model: Any) -> Any:
        """The vision tower of a model of this family."""
        return model.model.vision_tower

    @abstractmethod
    def project(self, hidden: Tensor) -> Tensor:
        """(B, K · merge², D) patches, those of a token together → (B, K, D') for the language model."""

    def hidden(self, pixels: Tensor, patch: Tensor) -> Tensor:
        """Run the tower: the output that counts, (B, N, D), without tokens of its own; arguments as for its `run`."""
        out = self.tower.run(self.tower.tower, pixels, patch, return_dict=True)
        last: Tensor = out.last_hidden_state
        return last[:, self.tower.in_front :]

    def arranged(self, tokens: Tensor) -> Tensor:
        """An image's tokens (K, D) as they stand in the prompt."""
        return tokens

    def returned(self, images: list[Tensor]) -> Any:
        """The tokens of all images as the model's forward takes them from `get_image_features`."""
        return images

    def grid_for(self, size: tuple[int, int]) -> tuple[int, int]:
        """The grid that the tower was trained with, whatever the image's size."""
        vision = self.config.vision_config
        side = square_side(vision.image_size) // self.side
        return side, side

    def pixel_inputs(self, views: Sequence[View], *, coordinates: str | None = None) -> dict[str, Tensor]:
        rows = [self.packed_rows(view, coordinates) for view in views]
        return {"pixel_values": pad_sequence(rows, batch_first=True)}

    @property
    def tower(self) -> VisionTransformer:
        """The vision tower of the bound model."""
        return tower_for(self.tower_of(self.model))

    @property
    def tower_blocks(self) -> Any:
        """The blocks of that tower."""
        return self.tower.layers

    def hooks(self, model: Any) -> Iterator[Any]:
        self._features = Override(model.model, "get_image_features", self._get_image_features)
        yield self._features
        self._expansion = Override(model, "_expand_inputs_for_generation", self._expanded)
        yield self._expansion

    def embed(self, views: Sequence[View], *, coordinates: str | None = None) -> list[list[Tensor]]:
        rows = self.pixel_inputs(views)["pixel_values"].to(self.device)
        return [self._embedded(rows, weighted=False)]

    def replaced_tower(self, features: Sequence[Sequence[Tensor]]) -> Iterator[Any]:
        (tokens,) = features

        def stored(packed: Tensor, *, weighted: bool) -> list[Tensor]:
            counts = _counts(unpack(packed.flatten(0, -3), self.row_width)[1])
            wanted, got = [count // self.merge**2 for count in counts if count], [len(image) for image in tokens]
            if wanted != got:
                raise ValueError(f"StoredFeatures: features must have {wanted} tokens, got {got}")
            return [image.to(self.model.dtype) for image in tokens]

        yield Override(self, "_embedded", stored)

    def _get_image_features(self, pixel_values: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not is_packed(pixel_values, self.row_width):
            return self._features.original(pixel_values, *args, **kwargs)
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        images = [self.arranged(tokens) for tokens in self._embedded(pixel_values, weighted=True)]
        return BaseModelOutputWithPooling(pooler_output=self.returned(images))

    def _embedded(self, packed: Tensor, *, weighted: bool) -> list[Tensor]:
        """(images, patches, row) → the tokens (K, D) of each image."""
        inner, found = self.side // self.merge, {}
        pixels, geometry, weights = unpack(packed.flatten(0, -3), self.row_width)
        pixels, counts = pixels.unflatten(-1, (3, inner, inner)), _counts(geometry)
        for group in by_count(counts):
            count = counts[group[0]]
            if count == 0:
                continue  # images of padding
            with self.lock:  # the tower is changed while it runs
                hidden = self.hidden(pixels[group, :count], geometry.patch[group, :count])
            for index, tokens in zip(group, self.project(hidden)):
                weight = weights[index, : count : self.merge**2].to(tokens)
                found[index] = tokens * weight if weighted else tokens
        return [found[index] for index in sorted(found)]

    def _expanded(self, expand_size: int = 1, *, input_ids: Any = None, **inputs: Any) -> tuple[Any, dict[str, Any]]:
        """Repeat the inputs of `generate` for beams, the images of a prompt together: A B A B.

        Older transformers (seen in 5.10 and 5.17) repeats them one by one, A A B B: prompts get the wrong images.
        """
        rows = inputs.get("pixel_values")
        if input_ids is None or rows is None or not is_packed(rows, self.row_width):
            expanded: tuple[Any, dict[str, Any]] = self._expansion.original(
                expand_size=expand_size, input_ids=input_ids, **inputs
            )
            return expanded
        del inputs["pixel_values"]
        ends = (input_ids == self.config.image_token_id).sum(1).cumsum(0)
        counts = torch.tensor(_counts(unpack(rows, self.row_width)[1])) // self.merge**2
        behind = torch.tensor([self.length(int(count)) for count in counts]).cumsum(0)
        prompt = torch.searchsorted(ends.cpu(), behind)
        input_ids, inputs = self._expansion.original(expand_size=expand_size, input_ids=input_ids, **inputs)
        parts = [rows[prompt.to(rows.device) == number] for number in range(len(ends)) for _ in range(expand_size)]
        return input_ids, inputs | {"pixel_values": torch.cat(parts)}


def _counts(geometry: Geometry) -> list[int]:
    """Patches of each image, without padding."""
    counts: list[int] = (geometry.extent[..., 0] > 0).sum(-1).tolist()
    return counts


def square_side(length: int | Sequence[int]) -> int:
    """The side of a square that a config gives as one number or as (height, width)."""
    sides = {length} if isinstance(length, int) else set(length)
    if len(sides) != 1:
        raise ValueError(f"adapt: images and patches of the vision tower must be square, got {length}")
    return sides.pop()


class GroupedAdapter(ProjectedAdapter):
    """A subclass says what surrounds an image in the prompt, and how a square of patches becomes a token."""

    @property
    @abstractmethod
    def wrapper(self) -> tuple[str, str]:
        """The texts before and behind the placeholders of an image."""

    @abstractmethod
    def project_squares(self, squares: Tensor) -> Tensor:
        """(n, merge², D), the patches of each token row by row → (n, D')."""

    def placeholders(self, tokens: int) -> str:
        before, behind = self.wrapper
        return f"{before}{super().placeholders(tokens)}{behind}"

    def project(self, hidden: Tensor) -> Tensor:
        squares = hidden.unflatten(1, (-1, self.merge**2))
        tokens = self.project_squares(squares.flatten(0, 1))
        return tokens.view(len(hidden), -1, tokens.shape[-1])

    def returned(self, images: list[Tensor]) -> Any:
        """(all tokens, 1, D): every token is a block by itself, so that prompts may have any number of them."""
        return torch.cat(images)[:, None]


class Llava(ProjectedAdapter):
    """LLaVA-1.5: the outputs of the tower's layers that its config names, and a projector."""

    architecture = "LlavaForConditionalGeneration"
    normalisation = CLIP

    def hidden(self, pixels: Tensor, patch: Tensor) -> Tensor:
        """The layers that the config names, without the class token."""
        config, front = self.config, self.tower.in_front
        layers = config.vision_feature_layer
        if front and config.vision_feature_select_strategy != "default":
            raise ValueError(
                f"adapt: vision_feature_select_strategy must be 'default', without the tower's class token, "
                f"got {config.vision_feature_select_strategy!r}"
            )
        layers = [layers] if isinstance(layers, int) else layers
        return torch.cat([layer[:, front:] for layer in self.tower.run_layers(pixels, patch, layers)], -1)

    @property
    def tower_depth(self) -> int:
        layers = self.config.vision_feature_layer
        last = layers if isinstance(layers, int) else layers[-1]
        return last if last > 0 else super().tower_depth + 1 + last

    def project(self, hidden: Tensor) -> Tensor:
        projected: Tensor = self.model.model.multi_modal_projector(hidden)
        return projected


class LlavaOnevision(Llava):
    """LLaVA-OneVision, whose images end with a token for a new line."""

    architecture = "LlavaOnevisionForConditionalGeneration"
    normalisation = CENTRED

    def length(self, tokens: int) -> int:
        return tokens + 1

    def arranged(self, tokens: Tensor) -> Tensor:
        return torch.cat([tokens, self.model.model.image_newline[None].to(tokens)])


class Gemma3(GroupedAdapter):
    architecture = "Gemma3ForConditionalGeneration"
    normalisation = CENTRED
    two_looks = False  # layers have rotary embeddings of two kinds

    def patches_across(self, config: Any) -> int:
        vision = config.vision_config
        patches = square_side(vision.image_size) // square_side(vision.patch_size)
        return patches // math.isqrt(config.mm_tokens_per_image)

    @property
    def mark_id(self) -> int:
        """The stock processor puts the whole image in the place of its first token."""
        return int(self.config.boi_token_id)

    @property
    def wrapper(self) -> tuple[str, str]:
        begin, end = self.word(self.config.boi_token_id), self.word(self.config.eoi_token_id)
        return f"\n\n{begin}", f"{end}\n\n"

    def id_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """Where the image tokens are: they attend in both directions."""
        return {"token_type_ids": (ids == self.config.image_token_id).long()}

    def project_squares(self, squares: Tensor) -> Tensor:
        """The steps of the model's projector, which itself takes whole images only."""
        projector = self.model.model.multi_modal_projector
        square = squares.transpose(1, 2).unflatten(2, (self.merge, self.merge))
        pooled = projector.mm_soft_emb_norm(projector.avg_pool(square).flatten(1))
        return torch.matmul(pooled, projector.mm_input_projection_weight).type_as(squares)


class InternVL(GroupedAdapter):
    architecture = "InternVLForConditionalGeneration"
    normalisation = IMAGENET

    def __init__(self, config: Any, processor: Any = None) -> None:
        super().__init__(config, processor)
        layer, strategy = config.vision_feature_layer, config.vision_feature_select_strategy
        if (layer, strategy) != (-1, "default"):
            raise ValueError(
                f"adapt: InternVL must use the last layer of its tower without the class token, "
                f"got vision_feature_layer={layer} and vision_feature_select_strategy={strategy!r}"
            )

    def patches_across(self, config: Any) -> int:
        return int(1 / config.downsample_ratio)

    @property
    def wrapper(self) -> tuple[str, str]:
        return self.tokenizer.start_image_token, self.tokenizer.end_image_token

    def project_squares(self, squares: Tensor) -> Tensor:
        network = self.model.model
        square = squares.unflatten(1, (self.merge, self.merge))
        shuffled = network.pixel_shuffle(square, scale_factor=self.config.downsample_ratio)
        projected: Tensor = network.multi_modal_projector(shuffled.flatten(1))
        return projected


AROUND, GLOBAL = "<fake_token_around_image>", "<global-img>"  # as the stock processor spells them


class SmolVLM(GroupedAdapter):
    architecture = "SmolVLMForConditionalGeneration"
    normalisation = CENTRED

    def patches_across(self, config: Any) -> int:
        return int(config.scale_factor)

    @property
    def wrapper(self) -> tuple[str, str]:
        return f"{AROUND}{GLOBAL}", AROUND

    def tower_of(self, model: Any) -> Any:
        return model.model.vision_model

    def language_of(self, model: Any) -> Any:
        return model.model.text_model

    def project_squares(self, squares: Tensor) -> Tensor:
        projected: Tensor = self.model.model.connector(squares)
        return projected[:, 0]
