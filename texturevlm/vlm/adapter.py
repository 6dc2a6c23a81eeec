"""The contract of a model family: what a processor must know of it, and how its model takes packed rows.

An adapter is made from a model's config and its processor alone, so that tokens can be chosen in another process than
the model's. `bind` hooks a model, and `restore` removes the hooks. A family is one subclass and one line in `FAMILIES`.

A token is `side` × `side` samples: `merge` × `merge` patches of the vision tower, which the model's own merger, pooling
or pixel shuffle turns into one embedding. Each patch has a position of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor, nn

from texturevlm.check import check_choice
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.modules import input_device, moves
from texturevlm.vlm.places import COORDINATES, FINER, PICTURE, SEGMENT, Geometry, Places, frame, pack, places
from texturevlm.vlm.prompts import Prompt, PromptImage, filled, pair, worded
from texturevlm.vlm.tokens import Tokens, to_tokens
from texturevlm.vlm.trained import trained_as
from texturevlm.vlm.views import LEVELS, View, still_views

ATTRIBUTE = "texturevlm_adapter"  # of a model that has an adapter
HOOKED: WeakSet[nn.Module] = WeakSet()  # such models of this process
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CENTRED = ([0.5, 0.5, 0.5], [0.5, 0.5, 0.5])


class Adapter(ABC):
    """One family of models.

    config:    of the model
    processor: of the model, or its tokenizer, or None: then prompts are token ids
    model:     once `bind` has hooked it
    lock:      held while the model runs in a thread: hooks and graphs serve one run at a time
    trained:   how the checkpoint was trained to read chosen tokens
    """

    architecture: ClassVar[str]  # of the model: the name of its class in transformers, or "package.module:name"
    captured: ClassVar[bool] = False  # whether CapturedPrefill can capture it
    videos: ClassVar[bool] = False
    grows: ClassVar[bool] = False  # whether tokens can be appended to its cache (`GrowingPrompt`)
    two_looks: ClassVar[bool] = True  # whether `ask` can read the attention of its language model
    levels: ClassVar[Sequence[str]] = LEVELS[:1]
    coordinates: ClassVar[Sequence[str]] = COORDINATES[:1]
    normalisation: tuple[Sequence[float], Sequence[float]]  # mean and standard deviation, if no processor gives them
    side: int
    merge: int = 1
    moments: int = 1  # frames that a token of a video shows

    def __init__(self, config: Any, processor: Any = None) -> None:
        self.config, self.processor = config, processor
        self.tokenizer = getattr(processor, "tokenizer", processor)
        self.model: Any = None
        self.lock = RLock()
        self.trained = trained_as(config, self.levels, self.coordinates)
        self._undo: list[Any] = []

    # What a processor needs.

    @property
    def row_width(self) -> int:
        """Numbers of a patch in `pixel_values`."""
        return 3 * (self.side // self.merge) ** 2

    @property
    def mark_id(self) -> int:
        """The token that stands for an image in a prompt, before it is replaced by placeholders."""
        return int(self.config.image_token_id)

    @property
    def mark(self) -> str:
        """The text of that token."""
        return self.word(self.mark_id)

    def word(self, index: int) -> str:
        """The text of a token id."""
        return str(self.tokenizer.convert_ids_to_tokens([index])[0])

    def placeholders(self, tokens: int) -> str:
        """What an image of so many chosen tokens puts in the place of `mark`."""
        return self.word(self.config.image_token_id) * self.length(tokens)

    def length(self, tokens: int) -> int:
        """Placeholders of an image with so many chosen tokens: more where a model adds tokens of its own."""
        return tokens

    @abstractmethod
    def grid_for(self, size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tokens that the unmodified model would use for an image (height, width)."""

    @abstractmethod
    def pixel_inputs(self, views: Sequence[View], *, coordinates: str | None = None) -> dict[str, Tensor]:
        """The inputs of the model that hold packed rows."""

    def id_inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """Further inputs of the model that follow from the ids (B, L)."""
        return {}

    # What a model needs.

    @abstractmethod
    def hooks(self, model: Any) -> Iterator[Any]:
        """Hook a model so that it takes packed rows; yields what has `remove`, one after another."""

    @abstractmethod
    def embed(self, views: Sequence[View], *, coordinates: str | None = None) -> list[list[Tensor]]:
        """Run the vision tower of the bound model: embeddings (n, D) per view; further lists for DeepStack."""

    @abstractmethod
    def replaced_tower(self, features: Sequence[Sequence[Tensor]]) -> Iterator[Any]:
        """Hook the bound model so that it gets features, as `embed` returns them, instead of running its tower."""

    @property
    def tower_depth(self) -> int:
        """Blocks of the tower whose output counts."""
        vision = self.config.vision_config
        return int(vision.depth if hasattr(vision, "depth") else vision.num_hidden_layers)

    @property
    def tower_blocks(self) -> Any:
        """The blocks of the bound model's tower."""
        raise NotImplementedError(f"tower_blocks: not for {self.config.model_type}")

    def language_of(self, model: Any) -> Any:
        """The language model, whose `layers` attend."""
        return model.model.language_model

    @property
    def normed_heads(self) -> bool:
        """Whether that normalises queries and keys: Qwen3 does, whichever family it is the language model of."""
        return "q_norm" in dict(self.language_of(self.model).layers[0].self_attn.named_children())

    def positions(self, inputs: dict[str, Tensor]) -> Tensor:
        """Positions of the language model for prepared inputs, as its rotary embedding takes them."""
        mask = inputs["attention_mask"]
        return (mask.long().cumsum(-1) - 1).clamp(min=0)

    # The rest is the same for every family.

    def bind(self, model: nn.Module) -> Adapter:
        """Hook a model in the place of the adapter that it has. If anything fails the model is as before."""
        earlier: Adapter | None = getattr(model, ATTRIBUTE, None)
        if earlier is not None:
            earlier.restore()
        try:
            self._hook(model)
            if self.device.type != "meta":
                self.probe()
        except BaseException:
            self.restore()
            if earlier is not None:
                earlier._hook(model)
            raise
        return self

    def _hook(self, model: nn.Module) -> None:
        self.model = model
        for undo in self.hooks(model):
            self._undo.append(undo)
        setattr(model, ATTRIBUTE, self)
        HOOKED.add(model)

    def also(self, hooks: Iterator[Any]) -> None:
        """Further hooks of the bound model, which `restore` removes; if one of them fails all are removed."""
        before = len(self._undo)
        try:
            for undo in hooks:
                self._undo.append(undo)
        except BaseException:
            while len(self._undo) > before:
                self._undo.pop().remove()
            raise

    def beside(self, processor: Any) -> Adapter:
        """An adapter of the same model for another processor; this one keeps the hooks."""
        other = type(self)(self.config, processor)
        other.model, other.lock = self.model, self.lock
        return other

    def restore(self) -> Any:
        """Remove the hooks and return the model."""
        while self._undo:
            self._undo.pop().remove()
        if getattr(self.model, ATTRIBUTE, None) is self:
            delattr(self.model, ATTRIBUTE)
            HOOKED.discard(self.model)
        return self.model

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = RLock()

    @property
    def device(self) -> torch.device:
        """Of the model; the CPU while there is none."""
        return torch.device("cpu") if self.model is None else input_device(self.model)

    def normalised(self, pixels: Tensor) -> Tensor:
        """Pixels (..., 3, P, P) from 0 to 1, normalised as in the training of the model, float32."""
        mean, deviation = self.statistics(pixels.device)
        normalised: Tensor = (pixels.float() - mean) / deviation
        return normalised

    def statistics(self, device: torch.device) -> Tensor:
        """(2, 3, 1, 1): the mean and the standard deviation of that normalisation."""
        images = getattr(self.processor, "image_processor", None)
        found = self.normalisation if images is None else (images.image_mean, images.image_std)
        return torch.tensor(found, device=device)[..., None, None]

    def decode(self, ids: Tensor) -> list[str]:
        """The texts of answers, (B, N) ids, without special tokens."""
        texts: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return texts

    @property
    def unreadable_id(self) -> int | None:
        """The token that the answer begins with if the model cannot read; None: it has no such answer."""
        said = self.trained.unreadable
        return None if said is None else self.tokenizer(said, add_special_tokens=False)["input_ids"][0]

    def encode(
        self, texture: Texture, allocation: Allocation, *, levels: str | None = None, coordinates: str | None = None
    ) -> Tokens:
        """The vision tower on the chosen patches alone: embeds (B, K, D), in the allocation's slots.

        texture, allocation: B images of one size, K upright footprints each
        levels, coordinates: as for `prepare`
        """
        levels, coordinates = self.checked_layout("encode", levels, coordinates, COORDINATES)
        views = still_views("encode", PromptImage(texture, allocation), self.side, levels=levels)
        return to_tokens(allocation, views, self.embed(views, coordinates=coordinates))

    def prepare(
        self,
        prompts: Any,
        textures: Any,
        allocations: Any,
        *,
        levels: str | None = None,
        coordinates: str | None = None,
        fps: float = 2.0,
        weights: Any = None,
        pixels: Any = None,
    ) -> dict[str, Tensor]:
        """Everything that `model(**inputs)` or `model.generate(**inputs)` needs, batches padded on the left.

        prompts:     a question, a conversation (messages), text with placeholders, or a list of prompts
        textures:    for one prompt: a Texture or a list of them. Several images of one size may share a Texture whose
                     allocation has as many; a Texture of frames whose allocation has one sample is a video, `source`
                     being the frame. For a list of prompts: one such entry each, or one Texture with an image each
        allocations: likewise; upright footprints of this model's token side
        levels:      joint: tokens of all scales attend to one another in the vision tower; apart: each scale by itself;
                     causal: finer tokens attend to coarser ones, never the reverse
        coordinates: fine: a coarse token sits where its area lies on the finest grid; native: on the grid of its own
                     scale; crops: every rectangle of one scale is an ordinary image by itself, at stock positions
        fps:         frames per second of the videos
        weights:     (B, K) per allocation: factors of the embeddings of each token, differentiable; 1 by default
        pixels:      (B, K, 3, P, P) per allocation of images: what tokens show in the place of the texture's own
                     samples, differentiable
        Levels and coordinates are by default those that the checkpoint was trained with: joint and fine unless its
        config says otherwise. Others, and videos, are for families that have them.
        """
        levels, coordinates = self.checked_layout("prepare", levels, coordinates, self.coordinates)
        ids: list[list[int]] = []
        views: list[View] = []
        for prompt, pictures in pair("prepare", prompts, textures, allocations, weights, pixels):
            groups: list[list[View]] = []
            for picture in pictures:
                groups += self.groups(picture, levels=levels, coordinates=coordinates)
            ids.append(self.spell(prompt, pictures, [self.filling(group, fps) for group in groups]))
            views += [replace(view, fps=fps) for group in groups for view in group]
        return self.assemble(ids, views, coordinates=coordinates)

    def generate(self, prompts: Any, textures: Any, allocations: Any, **options: Any) -> Any:
        """The ids of the answers, (B, N). Options of `prepare`, and all that `model.generate` takes."""
        names = ("levels", "coordinates", "fps", "weights", "pixels")
        own = {name: options.pop(name) for name in names if name in options}
        inputs = self.prepare(prompts, textures, allocations, **own)
        return answer_ids(self.model.generate(**inputs, **options), inputs["input_ids"].shape[1])

    def groups(
        self, picture: PromptImage, *, levels: str | None = None, coordinates: str | None = None
    ) -> list[list[View]]:
        """The views of a picture, one group per placeholder."""
        if picture.is_video:
            raise ValueError(
                f"prepare: textures must be images for {type(self).__name__}, got a video: give its frames as images"
            )
        return [[view] for view in still_views("prepare", picture, self.side, levels=levels or self.trained.levels)]

    def clip_groups(self, moments: Sequence[View]) -> list[list[View]]:
        """The views of a video's moments, one group per placeholder; images one after another without videos."""
        return [[replace(view, pixels=view.pixels[:, :1], video=False)] for view in moments]

    def filling(self, group: Sequence[View], fps: float) -> str:
        """What a group of views puts in the place of its mark."""
        return self.image_filling(len(group[0]))

    def image_filling(self, tokens: int) -> str:
        """What an image puts in the place of its mark: of the longest of `marks` that stands there."""
        return self.placeholders(tokens)

    @property
    def marks(self) -> list[str]:
        """All texts that stand for a picture in a prompt."""
        return [self.mark]

    def spell(self, prompt: Prompt, pictures: Sequence[PromptImage], fillings: Sequence[str]) -> list[int]:
        """The ids of a prompt whose placeholders are filled."""
        text = worded("prepare", self.processor, prompt, pictures, self.marks)
        ids: list[int] = self.tokenizer(filled("prepare", text, self.marks, fillings))["input_ids"]
        longest = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        if longest is not None and len(ids) > longest:
            got = f"{len(ids)}, {sum(index in self.visual_ids for index in ids)} of them visual"
            raise ValueError(f"prepare: prompt must fit into the model's context of {longest} tokens, got {got}")
        return ids

    def assemble(
        self, ids: Sequence[Sequence[int]], views: Sequence[View], *, coordinates: str | None = None
    ) -> dict[str, Tensor]:
        """Inputs from token ids (per sample, one placeholder per visual token) and the views that they stand for."""
        inputs = self.text_inputs(ids)
        self.check_placeholders(inputs["input_ids"], views)
        inputs |= self.pixel_inputs(views, coordinates=coordinates)
        return {name: value.to(self.device) for name, value in inputs.items()}

    def text_inputs(self, ids: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """The inputs that follow from token ids, padded on the left, on the CPU."""
        length = max(len(prompt) for prompt in ids)
        input_ids = torch.full((len(ids), length), getattr(self.tokenizer, "pad_token_id", None) or 0)
        mask = torch.zeros_like(input_ids)
        for sample, own in enumerate(ids):
            input_ids[sample, length - len(own) :] = torch.as_tensor(own)
            mask[sample, length - len(own) :] = 1
        return {"input_ids": input_ids, "attention_mask": mask, **self.id_inputs(input_ids)}

    def check_placeholders(self, ids: Tensor, views: Sequence[View]) -> None:
        """The ids must have one placeholder per visual token."""
        wanted = sum(self.length(len(view)) for view in views)
        got = int(torch.isin(ids, torch.tensor(self.visual_ids)).sum())
        if wanted != got:
            raise ValueError(f"assemble: ids must have {wanted} placeholders, one per visual token, got {got}")

    @property
    def visual_ids(self) -> list[int]:
        """The ids that stand for visual tokens."""
        return [self.config.image_token_id]

    def places(self, view: View, coordinates: str | None = None) -> Places:
        """Where the tokens of a view lie."""
        lie = frame(view.size, self.grid_for(view.size)).to(view.centre)
        return places(
            view.centre.detach(),
            view.step.detach(),
            lie,
            side=self.side,
            merge=self.merge,
            coordinates=coordinates or self.trained.coordinates,
        )

    def patch_rows(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (n, T, 3, P, P) → rows (n · merge², row_width), a token's patches row by row."""
        count, moments, channels = pixels.shape[:3]
        inner = self.side // self.merge
        cut = pixels.reshape(count, moments, channels, self.merge, inner, self.merge, inner)
        return cut.permute(0, 3, 5, 2, 1, 4, 6).reshape(count * self.merge**2, -1)

    def packed_rows(self, view: View, coordinates: str | None = None) -> Tensor:
        """The tokens of a view as packed rows."""
        rows = self.patch_rows(self.normalised(view.pixels))
        where, patches = self.places(view, coordinates), self.merge**2
        begins = torch.zeros_like(where.patch[..., :1])
        begins[view.begins, 0] = FINER if view.causal else SEGMENT
        begins[0, 0] = PICTURE
        grid = torch.tensor(self.grid_for(view.size)).to(where.patch)

        def of_patches(column: Tensor) -> Tensor:
            return column.reshape(len(view), 1, -1).expand(-1, patches, -1).flatten(0, 1)

        geometry = Geometry(
            patch=where.patch.flatten(0, 1),
            extent=where.extent.flatten(0, 1),
            token=of_patches(where.token),
            grid=grid.expand(len(rows), 2),
            moment=of_patches(self.moment(view).to(where.patch)),
            begins=begins.flatten(0, 1),
        )
        return pack(rows, geometry, of_patches(view.weight))

    def moment(self, view: View) -> Tensor:
        """(n,): position in time of each token, from the start of its picture."""
        return torch.zeros(len(view))

    def probe(self) -> None:
        """Refuse a version of transformers that ignores our positions, which would otherwise go unnoticed."""
        size = (2 * self.side, 8 * self.side)
        texture = Texture.open(torch.linspace(0, 1, 3 * size[0] * size[1]).view(1, 3, *size))
        corners = torch.tensor([[0.0, 0.0], [1.0, 0.0]]) * self.side
        allocation = Allocation.of_boxes(torch.cat([corners, corners + self.side], -1)[None], size, self.side)
        (near,) = still_views("adapt", PromptImage(texture, allocation), self.side)
        far = replace(near, centre=near.centre * torch.tensor([3.0, 1.0]))  # the same pixels elsewhere
        if not moves(self, lambda: self.embed([near])[0][0], lambda: self.embed([far])[0][0]):
            self.refuse("the positions of chosen patches")

    def refuse(self, ignored: str) -> None:
        """Raise the error of `probe`."""
        from transformers import __version__

        raise RuntimeError(
            f"adapt: the vision tower of {type(self.model).__name__} ignores {ignored} under transformers "
            f"{__version__}, so its answers would be wrong; install a version that texturevlm supports"
        )

    def checked_layout(
        self, function: str, levels: str | None, coordinates: str | None, allowed: Sequence[str]
    ) -> tuple[str, str]:
        """Checked levels and coordinates; those of the checkpoint where none are given."""
        levels = self.trained.levels if levels is None else levels
        coordinates = self.trained.coordinates if coordinates is None else coordinates
        known = [name for name in allowed if name in self.coordinates]
        check_choice(function, "levels", levels, self.levels)
        return levels, check_choice(function, "coordinates", coordinates, known)


def answer_ids(found: Any, length: int) -> Any:
    """What `generate` returned, without the prompt of this length: ids, or an output with `sequences`."""
    if isinstance(found, Tensor):
        return found[:, length:]
    found.sequences = found.sequences[:, length:]
    return found
