"""The one file that names every stage: image → information, salience, query → relevance → allocation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from texturevlm.allocate import ALLOCATORS
from texturevlm.channels.embedding import DenseEncoder, Projection
from texturevlm.check import check_choice, check_count
from texturevlm.relevance import Balance, Relevance
from texturevlm.relevance.maps import cell_level
from texturevlm.relevance.query import attention_query, embedding_query, resolve_way, scout_query, words_query
from texturevlm.relevance.reader import Page, read_page
from texturevlm.relevance.salience import cell_maps, colour_levels
from texturevlm.scout import Question, Spots, load_scout
from texturevlm.types import Allocation, Texture

Allocator = Callable[..., Allocation]
BALANCE = Balance()


@dataclass(frozen=True, eq=False)
class ImageMaps:
    """What an image says by itself, made once for any number of questions (see `relevance.Relevance` for the maps)."""

    legible_scale: Tensor
    ink: Tensor
    photograph: Tensor
    salience: Tensor


def choose_tokens(
    texture: Texture,
    question: str | Question = "",
    *,
    budget: int = 273,
    patch: int = 32,
    allocator: str | Allocator = "auto",
    relevance: str | Relevance = "auto",
    balance: Balance = BALANCE,
    maps: ImageMaps | None = None,
    page: Page | Spots | None = None,
    attention: Tensor | None = None,
    encoder: DenseEncoder | None = None,
    projection: Projection | None = None,
    **options: Any,
) -> Allocation:
    """Decide where a budget of tokens goes.

    texture:   one image, or a batch of one size (one question for all of it)
    question:  any text; "" for none; or what `scout.encode` made of one, for relevance "scout"
    allocator: a name of `texturevlm.allocate.ALLOCATORS`, or a function like those
    relevance: auto, words, scout, embedding, attention or none (see `texturevlm.relevance.query`), or a Relevance
    maps:      `image_maps` of this texture and patch, so that several questions are asked of one look
    page:      the image's words from `read_page`, or what the scout saw, `load_scout().look(texture)`: so that several
               questions are asked of one reading
    attention: (B, h, w), for relevance "attention"
    encoder, projection: for relevance "embedding"
    options:   the allocator's own
    returns    an Allocation of `budget` slots
    """
    check_count("choose_tokens", "budget", budget, 1)
    check_count("choose_tokens", "patch", patch, 1)
    if isinstance(allocator, str):
        check_choice("choose_tokens", "allocator", allocator, tuple(ALLOCATORS))
        allocator = ALLOCATORS[allocator]
    if not isinstance(relevance, Relevance):
        relevance = relevance_of(
            texture,
            question,
            patch=patch,
            way=relevance,
            balance=balance,
            maps=maps,
            page=page,
            attention=attention,
            encoder=encoder,
            projection=projection,
        )
    return allocator(texture, relevance, budget=budget, patch=patch, **options)


def relevance_of(
    texture: Texture,
    question: str | Question = "",
    *,
    patch: int = 32,
    way: str = "auto",
    balance: Balance = BALANCE,
    maps: ImageMaps | None = None,
    page: Page | Spots | None = None,
    attention: Tensor | None = None,
    encoder: DenseEncoder | None = None,
    projection: Projection | None = None,
) -> Relevance:
    """How much each spot of an image matters for a question; arguments as in `choose_tokens`."""
    if isinstance(question, Question):
        if way not in ("auto", "scout"):
            raise ValueError(f"choose_tokens: question must be text for relevance {way!r}, got an encoded one")
        way = "scout"
    elif not isinstance(question, str):
        raise TypeError(f"choose_tokens: question must be text, got {type(question).__name__}")
    elif way == "auto" and isinstance(page, Spots):
        way = "scout"
    else:
        way = resolve_way(way, question, attention=attention, encoder=encoder)
    maps = maps or image_maps(texture, patch=patch)
    legible_scale, ink = maps.legible_scale, maps.ink
    grid = (legible_scale.shape[1], legible_scale.shape[2])
    query: Tensor | None = None
    if way == "words":
        assert isinstance(question, str)
        query, legible_scale, ink = _words(texture, question, page, legible_scale, ink)
    elif way == "scout":
        spots = page if isinstance(page, Spots) else load_scout(device=legible_scale.device).look(texture)
        query = scout_query(spots, question, legible_scale, ink, texture.size)
    elif way == "embedding":
        assert encoder is not None and isinstance(question, str)
        if projection is None:
            raise ValueError("choose_tokens: relevance 'embedding' needs projection=Projection.load(file), got None")
        query = embedding_query(texture, question, encoder, projection, grid)
    elif way == "attention":
        assert attention is not None
        query = attention_query(attention.to(legible_scale.device), texture.batch, grid)
    return balance.weigh(query, maps.salience, legible_scale, ink, texture.size, way, maps.photograph)


def image_maps(texture: Texture, *, patch: int = 32) -> ImageMaps:
    """What can be known of an image before there is a question, on the grid of cells for tokens of `patch` pixels."""
    if texture.levels[0].shape[2:] != texture.size:
        raise ValueError(f"choose_tokens: texture must start at the image's size {texture.size}, got a coarser base")
    texture = texture.mipmapped()
    cell = min(cell_level(texture.size, patch), len(texture.levels) - 1)
    standing, legible_scale, ink, photograph = cell_maps(texture, cell)
    return ImageMaps(legible_scale, ink, photograph, standing)


def _words(
    texture: Texture, question: str, page: Page | Spots | None, legible_scale: Tensor, ink: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if isinstance(page, Spots):
        raise ValueError("choose_tokens: page must be of read_page for relevance 'words', got what the scout saw")
    if page is not None and (texture.batch != 1 or page.size != texture.size):
        raise ValueError(
            f"choose_tokens: page must be of the one image of {texture.size}, got one of {page.size} for "
            f"{texture.batch} images"
        )
    found = []
    colour = colour_levels(texture)[0]
    for index in range(texture.batch):
        one = slice(index, index + 1)
        read = page if page is not None else read_page(colour[one])
        found.append(words_query(read, question, legible_scale[one], ink[one]))
    query, finer, marked = (torch.cat(parts) for parts in zip(*found))
    return query, finer, marked
