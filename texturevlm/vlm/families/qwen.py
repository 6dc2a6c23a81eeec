"""What the Qwen-VL families and GLM-V have in common: a tower over flat rows of patches, and M-RoPE.

The `forward` of the vision tower is wrapped: it takes the geometry out of packed rows and passes it as the precomputed
positions that transformers accepts since 5.10. `get_rope_index` is wrapped, so that the positions of the language model
come from the same rows. Rows without geometry pass unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from texturevlm.vlm.adapter import Adapter
from texturevlm.vlm.loops import tower_loop
from texturevlm.vlm.modules import Override, ignored_argument
from texturevlm.vlm.places import COORDINATES, FINER, PICTURE, Geometry, grid_for, is_packed, mrope_positions, unpack
from texturevlm.vlm.prompts import PromptImage
from texturevlm.vlm.views import LEVELS, View, joined_views, rectangles, video_view

INPUTS = {False: ("pixel_values", "image_grid_thw"), True: ("pixel_values_videos", "video_grid_thw")}


class QwenAdapter(Adapter):
    captured = True
    grows = True
    videos = True
    levels: ClassVar[Sequence[str]] = LEVELS[:2]
    coordinates = (*COORDINATES, "crops")

    def __init__(self, config: Any, processor: Any = None) -> None:
        super().__init__(config, processor)
        vision = config.vision_config
        self.merge, self.moments = vision.spatial_merge_size, vision.temporal_patch_size
        self.side = vision.patch_size * self.merge

    @property
    def tower(self) -> Any:
        """The vision tower of the bound model."""
        return self.model.model.visual

    @property
    def tower_blocks(self) -> Any:
        """The blocks of that tower."""
        return self.tower.blocks

    @property
    def row_width(self) -> int:
        width: int = super().row_width * self.moments
        return width

    @property
    def marks(self) -> list[str]:
        bare = [self.word(self.config.image_token_id), self.word(self.config.video_token_id)]
        return [*bare, *(self._wrapped(mark) for mark in bare)]

    @property
    def visual_ids(self) -> list[int]:
        return [self.config.image_token_id, self.config.video_token_id]

    @property
    def wrapper_ids(self) -> tuple[int, int]:
        """The ids that stand before and behind a picture."""
        return self.config.vision_start_token_id, self.config.vision_end_token_id

    def image_filling(self, tokens: int) -> str:
        return self._wrapped(self.placeholders(tokens))

    def filling(self, group: Sequence[View], fps: float) -> str:
        return "".join(self._wrapped(self.word(self.visual_ids[view.video]) * len(view)) for view in group)

    def id_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """The kind of each token: 0 text, 1 image, 2 video."""
        image, video = self.visual_ids
        return {"mm_token_type_ids": (ids == image).int() + 2 * (ids == video).int()}

    def grid_for(self, size: tuple[int, int]) -> tuple[int, int]:
        images = getattr(self.processor, "image_processor", None)
        if images is None or not getattr(images, "do_resize", True):
            return grid_for(size, self.side)
        return grid_for(size, self.side, least=images.size["shortest_edge"], most=images.size["longest_edge"])

    def patch_rows(self, pixels: Tensor) -> Tensor:
        return super().patch_rows(pixels.expand(-1, self.moments, -1, -1, -1))

    def pixel_inputs(self, views: Sequence[View], *, coordinates: str | None = None) -> dict[str, Tensor]:
        inputs: dict[str, Tensor] = {}
        for video, (rows, grids) in INPUTS.items():
            if some := [view for view in views if view.video == video]:
                inputs[rows] = torch.cat([self._rows(view, coordinates) for view in some])
                inputs[grids] = self._pseudo_grids(some)
        return inputs

    def embed(self, views: Sequence[View], *, coordinates: str | None = None) -> list[list[Tensor]]:
        rows = torch.cat([self._rows(view, coordinates) for view in views])
        out = self.tower(rows.to(self.device, self.tower.dtype), grid_thw=self._pseudo_grids(views).to(self.device))
        counts = [len(view) for view in views]
        further = out.deepstack_features if self.deepstack_mergers else ()
        return [list(part.split(counts)) for part in (out.pooler_output, *further)]

    def hooks(self, model: Any) -> Iterator[Any]:
        self._forward = Override(self.tower, "forward", self._tower_forward)
        yield self._forward
        yield model.model.register_forward_pre_hook(self._before_model, with_kwargs=True)
        self._rope = Override(model.model, "get_rope_index", self._rope_index)
        yield self._rope

    def replaced_tower(self, features: Sequence[Sequence[Tensor]]) -> Iterator[Any]:
        pooled, *further = [torch.cat([*part]).to(self.tower.dtype) for part in features]

        def stored(rows: Tensor, *args: Any, **kwargs: Any) -> Any:
            if len(rows) != len(pooled) * self.merge**2:
                raise ValueError(
                    f"StoredFeatures: features must have {len(rows) // self.merge**2} tokens, got {len(pooled)}"
                )
            return SimpleNamespace(pooler_output=pooled, deepstack_features=further)

        yield Override(self.tower, "forward", stored)

    def positions(self, inputs: dict[str, Tensor]) -> Tensor:
        found = self._packed_positions(inputs["input_ids"], inputs)
        if found is None:
            raise ValueError(f"positions: inputs must hold packed rows, got {', '.join(inputs)}")
        return found[0]

    def tower_arguments(self, patch: Tensor, extent: Tensor, begins: Tensor) -> dict[str, Tensor]:
        """Precomputed arguments of the tower.

        patch, extent: (N, 2), rows and columns of every patch, and of the grid that they count on
        begins:        (N,), whether a patch begins a segment
        """
        first = begins.nonzero()[:, 0]
        ends = torch.cat([first, first.new_full((1,), len(begins))])
        return {"position_ids": patch, "cu_seqlens": ends.int()}

    def probe(self) -> None:
        super().probe()
        if (ignored := ignored_argument(self)) is not None:
            self.refuse(f"its argument {ignored}")

    # Where the towers of the families differ.

    @property
    def whole_blocks(self) -> Collection[int]:
        """The blocks of the tower that attend to all patches, not within windows."""
        return range(len(self.tower.blocks))

    @property
    def deepstack_mergers(self) -> dict[int, Any]:
        """Block → the merger of its output for DeepStack."""
        return {}

    def learned_positions(self, patch: Tensor, extent: Tensor) -> Tensor | None:
        """(N, D), read from the tower's table for patches (N, 2) on grids (N, 2); None: it has no table."""
        return None

    def windows(self, patch: Tensor) -> Tensor | None:
        """(..., M², 2) rows and columns of a token's patches → (..., 2), its window, for a tower that has windows."""
        return None

    def groups(
        self, picture: PromptImage, *, levels: str | None = None, coordinates: str | None = None
    ) -> list[list[View]]:
        crops = coordinates == "crops"
        if crops and picture.weight is not None:
            raise ValueError("prepare: coordinates='crops' is the model's own input, which has no weights")
        if picture.is_video and self.videos:
            if crops:
                raise ValueError("prepare: coordinates='crops' is for images, got a video")
            return [self.video_views(picture, levels or self.trained.levels)]
        found = super().groups(picture, levels=levels)
        return [rectangles("prepare", view, self.side) for (view,) in found] if crops else found

    def video_views(self, picture: PromptImage, levels: str) -> list[View]:
        """The views of a video: one, unless each moment has its own place in the prompt."""
        return [video_view("prepare", picture, self.side, levels=levels, moments=self.moments)]

    def clip_groups(self, moments: Sequence[View]) -> list[list[View]]:
        return [[joined_views(moments)]] if self.videos else super().clip_groups(moments)

    def _rows(self, view: View, coordinates: str | None) -> Tensor:
        if view.grid is not None:
            return self.patch_rows(self.normalised(view.pixels))
        return self.packed_rows(view, coordinates)

    def _pseudo_grids(self, views: Sequence[View]) -> Tensor:
        """A grid with as many patches as each view has; their true positions are in the rows."""
        grids = [view.grid or (1, len(view)) for view in views]
        return torch.tensor([[1, rows * self.merge, columns * self.merge] for rows, columns in grids])

    def _tower_forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the tower; nothing is kept between calls, because several threads may run one model."""
        if not is_packed(hidden_states, self.row_width):
            return self._forward.original(hidden_states, *args, **kwargs)
        pixels, geometry, weight = unpack(hidden_states, self.row_width)
        if "causal" in self.levels and bool((geometry.begins == FINER).any()):
            out = self._causal_tower(pixels, geometry)
        else:
            added = self.tower_arguments(geometry.patch, geometry.extent, geometry.begins[:, 0] > 0.5)
            out = self._forward.original(pixels, *args, **kwargs | added)
        weight = weight[:: self.merge**2]
        out.pooler_output = out.pooler_output * weight
        if self.deepstack_mergers:
            out.deepstack_features = [layer * weight for layer in out.deepstack_features]
        return out

    def _causal_tower(self, pixels: Tensor, geometry: Geometry) -> Any:
        """The tower with attention from finer segments to coarser ones: lengths of segments cannot say that."""
        first = (geometry.begins[:, 0] >= PICTURE).nonzero()[:, 0].tolist()
        found = []
        for begin, end in zip(first, [*first[1:], len(pixels)]):
            own = [part[None, begin:end] for part in (pixels, geometry.patch, geometry.extent)]
            segment = (geometry.begins[None, begin:end, 0] > 0.5).cumsum(1)
            found.append(tower_loop(self, *own, segments=segment, causal=True))
        pooled, *further = [torch.cat([part[0] for part in parts]) for parts in zip(*found)]
        return SimpleNamespace(pooler_output=pooled, deepstack_features=further)

    def _before_model(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give a plain forward pass its positions: transformers calls `get_rope_index` there without the rows."""
        ids = args[0] if args else kwargs.get("input_ids")
        past = kwargs.get("past_key_values")
        if ids is None or kwargs.get("position_ids") is not None or (past is not None and past.get_seq_length() > 0):
            return None
        found = self._packed_positions(ids, kwargs)
        if found is None:
            return None
        position, module.rope_deltas = found
        return args, kwargs | {"position_ids": position}

    def _rope_index(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        found = self._packed_positions(input_ids, kwargs)
        if found is None:
            stock: tuple[Tensor, Tensor] = self._rope.original(input_ids, *args, **kwargs)
            return stock
        return found

    def _packed_positions(self, ids: Tensor, inputs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
        """Positions for ids with packed rows among the inputs; None if there are none."""
        tokens, ordinary = {}, []
        for mark, (name, _) in zip(self.visual_ids, INPUTS.values()):
            rows = inputs.get(name)
            if rows is not None and is_packed(rows, self.row_width):
                tokens[mark] = unpack(rows, self.row_width)[1].of_tokens(self.merge)
            elif rows is not None:
                ordinary.append(name)
        if tokens and ordinary:
            raise ValueError(f"forward: images and videos must both be of chosen tokens, or neither, got {ordinary[0]}")
        return mrope_positions(ids, inputs.get("attention_mask"), tokens) if tokens else None

    def _wrapped(self, mark: str) -> str:
        start, end = map(self.word, self.wrapper_ids)
        return f"{start}{mark}{end}"
