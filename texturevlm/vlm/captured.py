"""A fixed budget: vision tower, prefill and decoding are captured once and replayed for images of any size.

The kernels for a few hundred tokens finish before Python has launched the next ones, so fewer tokens alone save no
time. With a fixed number of tokens no shape depends on the image, and all parts become CUDA graphs; the prefill has
one per length of prompt, rounded up. Nothing is read back from the device before the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from texturevlm.check import check_count
from texturevlm.cuda import Compiled, KeptReplays, Replay
from texturevlm.sampling import sample
from texturevlm.types import COLOURS, Allocation, Patches, Texture
from texturevlm.vlm.captured_decode import CapturedDecode
from texturevlm.vlm.captured_generate import PrefillOutput, generate_behind
from texturevlm.vlm.loops import prefill_loop, text_step, tower_loop, vision_step
from texturevlm.vlm.modules import addresses
from texturevlm.vlm.places import frame, places
from texturevlm.vlm.prompts import pair
from texturevlm.vlm.views import as_read, check_readable

GRAPHS = 16  # lengths of prompt that stay captured; each graph has its own memory
BUCKET = 32  # prompts are padded to a multiple of it


@dataclass(frozen=True, eq=False)
class TowerOutput:
    """Output of the vision tower for B images, tokens in reading order. The next call overwrites it.

    place:  (B, K, 2), row and column of each token
    used:   (B, K), whether the slot of a token is used
    embeds: each (B, K, D): the tokens, then those for DeepStack
    sizes:  (height, width) of each image
    """

    place: Tensor
    used: Tensor
    embeds: tuple[Tensor, ...]
    sizes: Sequence[tuple[int, int]]


class CapturedPrefill:
    """A Qwen model with a fixed number of tokens per image and one image per prompt.

    adapter:     of a Qwen model, which must stay on its device and in its dtype; `stale` says whether it did not
    budget:      tokens per image, the K of every allocation
    batch:       images (and prompts) per call
    masked:      whether allocations may have unused slots; if not, attention runs without a mask
    compiled:    whether the layers go through torch.compile; by default on a GPU
    levels, coordinates: those of the checkpoint
    `tower`, `prefills` (by length, the oldest is dropped first) and `decode` are captured when they are first needed.
    """

    def __init__(
        self, adapter: Any, budget: int, *, batch: int = 1, masked: bool = False, compiled: bool | None = None
    ) -> None:
        self.adapter, self.masked = adapter, masked
        self.budget = check_count("CapturedPrefill", "budget", budget, 1)
        self.batch = check_count("CapturedPrefill", "batch", batch, 1)
        self.levels, self.coordinates = adapter.trained.levels, adapter.trained.coordinates
        self.device = adapter.model.device
        spread = sorted({str(weight.device) for weight in adapter.model.parameters()})
        if len(spread) > 1:
            raise ValueError(f"CapturedPrefill: model must be on one device, got parts on {' and '.join(spread)}")
        if "sliding_attention" in getattr(adapter.model.config.get_text_config(), "layer_types", ()):
            raise ValueError("CapturedPrefill: model must attend to its whole prompt, got one with sliding windows")
        self._statistics = adapter.statistics(self.device)
        compiled = self.device.type == "cuda" if compiled is None else compiled
        # Prompts come in many lengths, images in one number of tokens.
        self._vision_step = Compiled(vision_step) if compiled else vision_step
        self._text_step = Compiled(text_step, dynamic=None) if compiled else text_step
        self.tower: Replay | None = None
        self.prefills = KeptReplays(GRAPHS)
        self.decode = CapturedDecode(adapter)
        self._frames: dict[tuple[int, int], Tensor] = {}
        self._weights = addresses(adapter.model)

    @property
    def reasons(self) -> list[str]:
        """Why parts are not compiled or not replayed from a graph; empty if all are."""
        parts = [self.tower, *self.prefills.values(), self.decode.replay, self._vision_step, self._text_step]
        return sorted({part.reason for part in parts if isinstance(part, (Replay, Compiled)) and part.reason})

    @property
    def stale(self) -> bool:
        """Whether the model was moved, cast or given other weights or LoRA adapters, which a graph does not notice."""
        return self._weights != addresses(self.adapter.model)

    def encode(self, texture: Texture, allocation: Allocation) -> TowerOutput:
        """Sample the footprints and run the vision tower on them.

        allocation: upright footprints; only `generate` takes rotated ones, so that nothing here waits
        """
        self._check_slots("encode", allocation)
        return self.encode_patches(self._sampled("encode", texture, allocation))

    def _sampled(self, function: str, texture: Texture, allocation: Allocation) -> Patches:
        self._check(function, texture, allocation)
        patches = sample(texture, allocation)
        if texture.names == COLOURS:
            return patches
        colours = [texture.names.index(name) for name in COLOURS]
        return replace(patches, pixels=patches.pixels[:, :, colours])

    def encode_patches(self, patches: Patches) -> TowerOutput:
        """Run the vision tower on patches of red, green and blue, such as those that `texturevlm.compile` gives."""
        allocation = patches.allocation
        self._check_slots("encode_patches", allocation)
        if (channels := patches.pixels.shape[2]) != len(COLOURS):
            raise ValueError(f"encode_patches: patches must be {', '.join(COLOURS)}, got {channels} channels")
        return self.encode_tokens(*_columns(patches), [allocation.size] * self.batch)

    def encode_tokens(
        self, pixels: Tensor, centre: Tensor, step: Tensor, valid: Tensor, sizes: Sequence[tuple[int, int]]
    ) -> TowerOutput:
        """The same, for columns as they are; nothing is checked.

        pixels:       (B, K, 3, P, P), red, green and blue
        centre, step: (B, K, 2), of upright footprints: the middle, and pixels per sample along x and along y
        valid:        (B, K), which slots are used
        sizes:        (height, width) of each image
        """
        frames = torch.stack([self._frame(size) for size in sizes])
        inputs = [pixels.float(), centre, step, frames, valid]
        if self.tower is None:
            self.tower = Replay(self._run_tower, inputs)
        place, used, *embeds = self.tower(*inputs)
        return TowerOutput(place, used, tuple(embeds), sizes)

    def prefill(self, ids: Sequence[Sequence[int]], tower: TowerOutput) -> PrefillOutput:
        """Run the language model on prompts, each with `budget` image placeholders in a row."""
        inputs = self._laid_out(ids, tower.sizes)
        length = inputs[0].shape[1]
        given = [*inputs, tower.place, tower.used, *tower.embeds]
        logits, position, live, *caches = self.prefills.find(length, self._run_prefill, given)(*given)
        longest = max(len(prompt) for prompt in ids)
        prompt = {"input_ids": inputs[0], "attention_mask": live, "position_ids": position}
        return PrefillOutput(logits, tuple(caches), {name: value[..., :longest] for name, value in prompt.items()})

    def generate(self, prompts: Any, texture: Texture, allocation: Allocation, **options: Any) -> Any:
        """The ids of the answers, (B, N): what `model.generate` makes of logits that come from graphs.

        Beams go through the adapter's own `generate`.
        """
        seen = self.encode_readable(texture, allocation, options)  # a GPU runs the tower while the prompt is spelled
        return self.answer(self.spelled("generate", prompts, texture, allocation), seen, **options)

    def generate_each(
        self, prompts: Sequence[Any], textures: Sequence[Texture], allocations: Sequence[Allocation], **options: Any
    ) -> Any:
        """`generate` for images of several sizes: for each prompt one image in a texture of its own."""
        if len(textures) != self.batch:
            raise ValueError(f"generate_each: textures must be {self.batch}, got {len(textures)}")
        for chosen in allocations:
            self._check_slots("generate_each", chosen, batch=1)
        each = [self._readable(texture, chosen, options) for texture, chosen in zip(textures, allocations, strict=True)]
        pixels, centre, step, valid = (torch.cat(column) for column in zip(*map(_columns, each)))
        seen = self.encode_tokens(pixels, centre, step, valid, [patches.allocation.size for patches in each])
        spelled = [self.spelled("generate", *parts) for parts in zip(prompts, textures, allocations, strict=True)]
        return self.answer([ids for (ids,) in spelled], seen, **options)

    def encode_readable(self, texture: Texture, allocation: Allocation, options: dict[str, Any]) -> TowerOutput:
        """`encode` after all checks. options: of `generate`"""
        self._check_slots("generate", allocation)
        return self.encode_patches(self._readable(texture, allocation, options))

    def _readable(self, texture: Texture, allocation: Allocation, options: dict[str, Any]) -> Patches:
        if (beams := options.get("num_beams") or 1) > 1:
            raise ValueError(
                f"generate: num_beams must be 1 under a fixed budget, got {beams}; use the adapter's generate"
            )
        check_readable("generate", texture, allocation, self.adapter.side)
        return replace(self._sampled("generate", texture, allocation), allocation=as_read("generate", allocation))

    def answer(self, ids: Sequence[Sequence[int]], seen: TowerOutput, **options: Any) -> Any:
        """What `generate` returns, for prompts that are spelled and images that are encoded."""
        read = self.prefill(ids, seen)
        return generate_behind(self.adapter.model, read, [len(prompt) for prompt in ids], self.decode, options)

    def _run_tower(
        self, pixels: Tensor, centre: Tensor, step: Tensor, frames: Tensor, valid: Tensor
    ) -> tuple[Tensor, ...]:
        adapter = self.adapter
        scale = step.amin(-1).log2().round()
        order = self._reading_order(centre, scale, valid)
        pixels = torch.take_along_dim(pixels, order[..., None, None, None], 1)
        centre, step = (torch.take_along_dim(column, order[..., None], 1) for column in (centre, step))
        used, scale = (torch.take_along_dim(column, order, 1) for column in (valid, scale))
        if self.masked:  # what lies in unused slots must be finite, since 0 · NaN is NaN
            centre, step = centre.where(used[..., None], 0.0), step.where(used[..., None], 1.0)
        lie = places(centre, step, frames, side=adapter.side, merge=adapter.merge, coordinates=self.coordinates)
        mean, deviation = self._statistics
        rows = adapter.patch_rows(((pixels.float() - mean) / deviation).flatten(0, 1).unsqueeze(1))
        if self.masked:
            rows = rows.view(*used.shape, -1).where(used[..., None], 0.0)
        windows = adapter.windows(lie.patch)
        if windows is not None:
            windows = self._of_patches(windows)
        embeds = tower_loop(
            adapter,
            rows.view(self.batch, self.budget * adapter.merge**2, -1),
            lie.patch.flatten(1, 2),
            lie.extent.flatten(1, 2),
            used=self._of_patches(used) if self.masked else None,
            segments=None if self.levels == "joint" else self._of_patches(-scale),
            causal=self.levels == "causal",
            windows=windows,
            step=self._vision_step,
        )
        return lie.token, used, *embeds

    def _reading_order(self, centre: Tensor, scale: Tensor, valid: Tensor) -> Tensor:
        """(B, K): row by row, coarse before fine unless levels are joint, unused slots last."""
        order = centre[..., 0].argsort(stable=True)
        coarse_first = () if self.levels == "joint" else (-scale,)
        for key in (centre[..., 1], *coarse_first, (~valid).to(centre.dtype)):
            order = order.gather(1, key.gather(1, order).argsort(stable=True))
        return order

    def _of_patches(self, column: Tensor) -> Tensor:
        """(B, K, ...) → (B, K · merge², ...): each token's value for its patches."""
        return column.repeat_interleave(self.adapter.merge**2, 1)

    def _run_prefill(
        self,
        ids: Tensor,
        text: Tensor,
        where: Tensor,
        start: Tensor,
        last: Tensor,
        place: Tensor,
        used: Tensor,
        *embeds: Tensor,
    ) -> tuple[Tensor, ...]:
        moment = start[:, None] + torch.zeros_like(place[..., 0])
        axes = (moment, start[:, None] + place[..., 0], start[:, None] + place[..., 1])
        position = torch.stack([text.scatter(1, where, axis) for axis in axes])
        index = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        live = (index <= last[:, None]).scatter(1, where, used)
        logits, *caches = prefill_loop(
            self.adapter,
            ids,
            position,
            where,
            last,
            *embeds,
            live=live if self.masked else None,
            step=self._text_step,
        )
        counted = torch.cat([index[None].to(position.dtype), position])
        return logits, counted, live.long(), *caches

    def _laid_out(self, ids: Sequence[Sequence[int]], sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
        """ids, text positions (B, L), positions of the placeholders (B, K), start of each picture, last id."""
        if len(ids) != self.batch:
            raise ValueError(f"prefill: ids must be of {self.batch} prompts, got {len(ids)}")
        mark, pad = self.adapter.model.config.image_token_id, getattr(self.adapter.tokenizer, "pad_token_id", None)
        extent = torch.tensor([[max(self.adapter.grid_for(size))] for size in sizes])
        length = -(-max(len(prompt) for prompt in ids) // BUCKET) * BUCKET
        table = torch.full((self.batch, length), pad or 0)
        first = []
        for row, prompt in enumerate(ids):
            table[row, : len(prompt)] = torch.as_tensor(prompt)
            marked = [index for index, token in enumerate(prompt) if token == mark]
            if not marked or marked != list(range(marked[0], marked[0] + self.budget)):
                raise ValueError(
                    f"prefill: ids must have {self.budget} image placeholders in a row in each prompt, "
                    f"got {len(marked)} in prompt {row}"
                )
            if marked[-1] == len(prompt) - 1:
                raise ValueError(f"prefill: ids must have text behind each image, got none in prompt {row}")
            first.append(marked[0])
        start = torch.tensor(first)
        where = start[:, None] + torch.arange(self.budget)
        index = torch.arange(length).expand(self.batch, -1)
        text = torch.where(index < start[:, None], index, index - self.budget + extent).float()
        last = torch.tensor([len(prompt) - 1 for prompt in ids])
        return [part.to(self.device, non_blocking=True) for part in (table, text, where, start.float(), last)]

    def _frame(self, size: tuple[int, int]) -> Tensor:
        if size not in self._frames:
            self._frames[size] = frame(size, self.adapter.grid_for(size)).to(self.device)
        return self._frames[size]

    def spelled(self, function: str, prompts: Any, texture: Texture, allocation: Allocation) -> list[list[int]]:
        filling = self.adapter.image_filling(self.budget)
        pairs = pair(function, prompts, texture, allocation)
        return [self.adapter.spell(prompt, pictures, [filling]) for prompt, pictures in pairs]

    def _check(self, function: str, texture: Texture, allocation: Allocation) -> None:
        """Check names and devices only, because values are on the device."""
        if not set(COLOURS) <= set(texture.names):
            raise ValueError(f"{function}: texture must have {', '.join(COLOURS)}, got {', '.join(texture.names)}")
        if texture.device != self.device:
            raise ValueError(f"{function}: texture must be on {self.device} like the model, got {texture.device}")

    def _check_slots(self, function: str, allocation: Allocation, *, batch: int | None = None) -> None:
        wanted, got = (batch or self.batch, self.budget), (allocation.batch, allocation.budget)
        if wanted != got:
            raise ValueError(f"{function}: allocation must be (B, K) = {wanted}, got {got}")
        if allocation.patch != self.adapter.side:
            raise ValueError(
                f"{function}: allocation must have patches of {self.adapter.side} for this model, "
                f"got {allocation.patch}"
            )
        if (device := allocation.centre.device) != self.device:
            raise ValueError(f"{function}: allocation must be on {self.device} like the model, got {device}")


def _columns(patches: Patches) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pixels, centres, steps along x and y, and which slots are used."""
    chosen = patches.allocation
    step = torch.stack([chosen.ddx[..., 0], chosen.ddy[..., 1]], -1)
    return patches.pixels, chosen.centre, step, chosen.valid
