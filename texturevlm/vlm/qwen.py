"""What Qwen2.5-VL and Qwen3-VL have in common: chosen patches in, at their true positions, through public arguments.

The rows of `pixel_values` carry their own geometry: behind the pixels of a patch come its row, its column, the extent
of its grid, whether it begins an attention segment, and the weight of its token. A hook before the vision tower removes
these columns and passes them as the precomputed positions that transformers accepts since 5.10. So there is no state
between preparing and running: rows may be repeated for beams, concatenated by a collator or cast to another dtype. Rows
without these columns are ordinary input and pass unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.check import check_choice
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.adapter import Adapter
from texturevlm.vlm.places import COORDINATES, PIECES, Places, frame, from_columns, grid_for, places, to_columns
from texturevlm.vlm.prompts import Picture, Prompt, filled, pair, worded
from texturevlm.vlm.tokens import Tokens
from texturevlm.vlm.views import LEVELS, View, rectangles, still_views, to_tokens, video_view

NUMBERS = 5  # behind the pixels of each row: row, column, rows, columns, begins


class QwenAdapter(Adapter):
    """One model with its processor, its vision tower hooked until `restore`."""

    def __init__(self, model: Any, processor: Any = None) -> None:
        super().__init__(model, processor)
        self.tower = model.model.visual
        vision = model.config.vision_config
        self.merge, self.moments = vision.spatial_merge_size, vision.temporal_patch_size
        self.side = vision.patch_size * self.merge
        self.row_width = vision.in_channels * self.moments * vision.patch_size**2
        self._weight: Tensor | None = None  # of the rows that the tower is processing
        self._hooks += [
            self.tower.register_forward_pre_hook(self._before_tower, with_kwargs=True),
            self.tower.register_forward_hook(self._after_tower),
        ]

    def encode(
        self, texture: Texture, allocation: Allocation, *, levels: str = "joint", coordinates: str = "fine"
    ) -> Tokens:
        """The vision tower on the chosen patches alone.

        texture, allocation: B images of one size, K footprints each
        levels, coordinates: as for `prepare`
        returns              Tokens with embeds (B, K, D), in the allocation's slots
        """
        self._check_options("encode", levels, coordinates)
        views = still_views("encode", Picture(texture, allocation), self.side, levels=levels)
        pixels = torch.cat([self._rows(view, coordinates) for view in views])
        out = self.tower(pixels.to(self.tower.device, self.tower.dtype), grid_thw=self._pseudo_grids(views))
        columns = [out.pooler_output, *getattr(out, "deepstack_features", [])]
        return to_tokens(allocation, views, [[column] for column in columns])

    def prepare(
        self,
        prompts: Any,
        textures: Any,
        allocations: Any,
        *,
        levels: str = "joint",
        coordinates: str = "fine",
        fps: float = 2.0,
        weights: Any = None,
    ) -> dict[str, Tensor]:
        """Everything that `model(**inputs)` or `model.generate(**inputs)` needs, batches padded on the left.

        prompts:     a question, a conversation (messages), text with placeholders, or a list of prompts
        textures:    for one prompt: a Texture or a list of them. Several images of one size may share a Texture whose
                     allocation has as many; a Texture of frames whose allocation has one sample is a video, `source`
                     being the frame. For a list of prompts: one such entry each, or one Texture with an image each
        allocations: likewise; upright footprints of this model's token side
        levels:      joint: tokens of all scales attend to one another in the vision tower; apart: each scale by itself
        coordinates: fine: a coarse token sits where its area lies on the finest grid; native: on the grid of its own
                     scale; crops: every rectangle of one scale is an ordinary image by itself, at stock positions
        fps:         frames per second of the videos
        weights:     (B, K) per allocation: factors of the embeddings of each token, differentiable; 1 by default
        """
        self._check_options("prepare", levels, coordinates, "crops")
        ids: list[list[int]] = []
        views: list[list[View]] = []
        for prompt, pictures in pair("prepare", prompts, textures, allocations, weights):
            groups: list[list[View]] = []
            for picture in pictures:
                groups += self._groups(picture, levels=levels, crops=coordinates == "crops")
            ids.append(self.spell(prompt, pictures, [self._filling(group, fps) for group in groups]))
            views.append([view for group in groups for view in group])
        return self.assemble(ids, views, coordinates=coordinates, fps=fps)

    def generate(self, prompts: Any, textures: Any, allocations: Any, **options: Any) -> Tensor:
        """The ids of the answers, (B, N). Options of `prepare`, and all that `model.generate` takes."""
        own = {name: options.pop(name) for name in ("levels", "coordinates", "fps", "weights") if name in options}
        inputs = self.prepare(prompts, textures, allocations, **own)
        found: Tensor = self.model.generate(**inputs, **options)
        return found[:, inputs["input_ids"].shape[1] :]

    def spell(self, prompt: Prompt, pictures: Sequence[Picture], fillings: Sequence[str]) -> list[int]:
        """The ids of a prompt whose placeholders are filled."""
        marks = [*self._marks(), *(self._wrapped(mark) for mark in self._marks())]
        text = worded("prepare", self.processor, prompt, pictures, self._marks())
        ids: list[int] = self.tokenizer(filled("prepare", text, marks, fillings))["input_ids"]
        return ids

    def image_filling(self, tokens: int) -> str:
        """The placeholders of an image."""
        return self._wrapped(self._marks()[0] * tokens)

    def assemble(
        self,
        ids: Sequence[Sequence[int]],
        views: Sequence[Sequence[View]],
        *,
        coordinates: str = "fine",
        fps: float = 2.0,
    ) -> dict[str, Tensor]:
        """Inputs from token ids (per sample, one placeholder per visual token) and the views that they stand for."""
        device = self.model.device
        length = max(len(one) for one in ids)
        pad = getattr(self.tokenizer, "pad_token_id", None) or 0
        input_ids = torch.full((len(ids), length), pad)
        mask = torch.zeros_like(input_ids)
        positions = torch.zeros(4, len(ids), length)
        for sample, (own, shown) in enumerate(zip(ids, views)):
            start = length - len(own)
            input_ids[sample, start:] = torch.as_tensor(own)
            mask[sample, start:] = 1
            positions[:, sample, start:] = self._language_positions(own, shown, fps)
        if torch.equal(positions, positions.round()):
            positions = positions.long()
        config = self.model.config
        kinds = (input_ids == config.image_token_id).int() + 2 * (input_ids == config.video_token_id).int()
        inputs = {
            "input_ids": input_ids,
            "attention_mask": mask,
            "mm_token_type_ids": kinds,
            "position_ids": positions,
        }
        flat = [view for shown in views for view in shown]
        for video, names in (
            (False, ("pixel_values", "image_grid_thw")),
            (True, ("pixel_values_videos", "video_grid_thw")),
        ):
            if some := [view for view in flat if view.video == video]:
                rows = torch.cat([self._rows(view, coordinates) for view in some])
                inputs |= {names[0]: rows, names[1]: self._pseudo_grids(some)}
        # `generate` with a cache of its own counts on from here
        self.model.model.rope_deltas = (positions[1, :, -1:] - positions[0, :, -1:]).to(device)
        return {name: value.to(device) for name, value in inputs.items()}

    def tower_arguments(self, patch: Tensor, extent: Tensor, begins: Tensor) -> dict[str, Tensor]:
        """Precomputed arguments of the tower.

        patch, extent: (N, 2), rows and columns of every patch, and of the grid that they count on
        begins:        (N,), whether a patch begins a segment
        """
        first = begins.nonzero()[:, 0]
        ends = torch.cat([first, first.new_full((1,), len(begins))])
        return {"position_ids": patch, "cu_seqlens": ends.int()}

    def places(self, view: View, coordinates: str) -> Places:
        """Where the tokens of a view lie."""
        lie = frame(view.size, self.grid_for(view.size)).to(view.centre)
        return places(
            view.centre.detach(), view.step.detach(), lie, side=self.side, merge=self.merge, coordinates=coordinates
        )

    def grid_for(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tokens that the unmodified model would use for an image of this size."""
        images = getattr(self.processor, "image_processor", None)
        if images is None or not getattr(images, "do_resize", True):
            return grid_for(size, self.side)
        return grid_for(size, self.side, least=images.size["shortest_edge"], most=images.size["longest_edge"])

    def patch_rows(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (n, T, 3, P, P) → rows (n · M², 3 · T · p · p), a token's patches row by row."""
        count, _, channels = pixels.shape[:3]
        pixels = pixels.expand(-1, self.moments, -1, -1, -1)
        inner = self.side // self.merge
        cut = pixels.reshape(count, self.moments, channels, self.merge, inner, self.merge, inner)
        return cut.permute(0, 3, 5, 2, 1, 4, 6).reshape(count * self.merge**2, self.row_width)

    def _rows(self, view: View, coordinates: str) -> Tensor:
        rows = self.patch_rows(self.normalised(view.pixels))
        if view.grid is not None:
            return rows
        where = self.places(view, coordinates)
        begins = torch.zeros_like(where.patch[..., :1])
        begins[view.begins, 0] = 1
        numbers = torch.cat([where.patch, where.extent, begins], -1).flatten(0, 1)
        weight = view.weight[:, None].expand(-1, self.merge**2).reshape(-1, 1)
        return torch.cat([rows, to_columns(numbers), weight.to(rows)], -1)

    def _before_tower(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rows = args[0] if args else kwargs["hidden_states"]
        self._weight = None
        if rows.shape[-1] != self.row_width + NUMBERS * PIECES + 1:
            return None
        pixels, columns, weight = rows.split([self.row_width, NUMBERS * PIECES, 1], -1)
        self._weight = weight[:: self.merge**2]
        numbers = from_columns(columns)
        added = self.tower_arguments(numbers[:, 0:2], numbers[:, 2:4], numbers[:, 4] > 0.5)
        kwargs = {name: value for name, value in kwargs.items() if name != "hidden_states"}
        return (pixels.contiguous(), *args[1:]), kwargs | added

    def _after_tower(self, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if self._weight is not None:
            out.pooler_output = out.pooler_output * self._weight
            if getattr(out, "deepstack_features", None) is not None:
                out.deepstack_features = [one * self._weight for one in out.deepstack_features]
        self._weight = None

    def _pseudo_grids(self, views: Sequence[View]) -> Tensor:
        """A grid with as many patches as each view has; their true positions are passed separately."""
        grids = [view.grid or (1, len(view)) for view in views]
        table = [[1, rows * self.merge, columns * self.merge] for rows, columns in grids]
        return torch.tensor(table, device=self.model.device)

    def _language_positions(self, ids: Sequence[int], views: Sequence[View], fps: float) -> Tensor:
        """(4, L): text counts upwards; a visual token is at its row and column from the start of its picture."""
        config = self.model.config
        visual = {config.image_token_id: False, config.video_token_id: True}
        parts: list[Tensor] = []
        index, at, waiting = 0, 0.0, list(views)
        while index < len(ids):
            if ids[index] not in visual:
                parts.append(torch.full((3, 1), at))
                index, at = index + 1, at + 1
                continue
            if not waiting or waiting[0].video != visual[ids[index]]:
                raise ValueError(f"assemble: ids must have placeholders for {len(views)} views, got others or more")
            view = waiting.pop(0)
            if any(one != ids[index] for one in ids[index : index + len(view)]) or index + len(view) >= len(ids):
                raise ValueError(
                    f"assemble: ids must have {len(view)} placeholders for a view, and text behind the last one"
                )
            if view.grid is not None:
                rows, columns = view.grid
                place = torch.cartesian_prod(torch.arange(rows).float(), torch.arange(columns).float()).view(-1, 2)
            else:
                rows, columns = self.grid_for(view.size)
                place = self.places(view, "fine").token.float().cpu()
            parts.append(torch.cat([self._moment(view, fps)[None].cpu(), place.T]) + at)
            index, at = index + len(view), at + max(rows, columns)
        if waiting:
            raise ValueError(f"assemble: ids must have placeholders for {len(views)} views, got {len(waiting)} fewer")
        return torch.cat([torch.arange(len(ids)).float()[None], torch.cat(parts, 1)])

    def _moment(self, view: View, fps: float) -> Tensor:
        """(n,): position in time of each token, from the start of its picture."""
        return torch.zeros(len(view))

    def _groups(self, picture: Picture, *, levels: str, crops: bool) -> list[list[View]]:
        """One group of views per placeholder."""
        if crops and picture.weight is not None:
            raise ValueError("prepare: coordinates='crops' is the model's own input, which has no weights")
        if not picture.is_video:
            views = still_views("prepare", picture, self.side, levels=levels)
            return [rectangles("prepare", view, self.side) if crops else [view] for view in views]
        if crops:
            raise ValueError("prepare: coordinates='crops' is for images, got a video")
        return [self._video(picture, levels)]

    def _video(self, picture: Picture, levels: str) -> list[View]:
        return [video_view("prepare", picture, self.side, levels=levels, moments=self.moments)]

    def _filling(self, group: Sequence[View], fps: float) -> str:
        marks = self._marks()
        return "".join(self._wrapped(marks[view.video] * len(view)) for view in group)

    def _marks(self) -> tuple[str, str]:
        config = self.model.config
        image, video = self.tokenizer.convert_ids_to_tokens([config.image_token_id, config.video_token_id])
        return image, video

    def _wrapped(self, mark: str) -> str:
        config = self.model.config
        ends = self.tokenizer.convert_ids_to_tokens([config.vision_start_token_id, config.vision_end_token_id])
        return f"{ends[0]}{mark}{ends[1]}"

    @staticmethod
    def _check_options(function: str, levels: str, coordinates: str, *more: str) -> None:
        check_choice(function, "levels", levels, LEVELS)
        check_choice(function, "coordinates", coordinates, (*COORDINATES, *more))
