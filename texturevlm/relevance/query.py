"""Query: where a question points. One function a way of finding out, chosen by name or by what is at hand.

scout       the page read coarsely by a small network that comes with the package, milliseconds
words       the page's text, read by RapidOCR and matched to the question (extra `ocr`; nothing is downloaded)
embedding   the cosine of the embedding channels with the question's own embedding (CLIP or SigLIP)
attention   a map that the caller has: any model's cross-attention
none        nothing: salience and information alone
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.channels.embedding import DenseEncoder, Projection, embed
from texturevlm.channels.registry import EMBEDDING
from texturevlm.check import check_choice
from texturevlm.relevance.reader import Page
from texturevlm.relevance.words import words_map
from texturevlm.scout.question import Question
from texturevlm.scout.scout import load_scout
from texturevlm.scout.spotter import SPOT, Spots, seen_size
from texturevlm.types import Texture

WAYS = ("auto", "words", "scout", "embedding", "attention", "none")
WORD_HEIGHT = 5.5  # samples: a word that high, as RapidOCR boxes it, is read half of the time
SHARPNESS = 10.0  # of the softmax that makes a map of cosines


def resolve_way(way: str, question: str, *, attention: Tensor | None, encoder: DenseEncoder | None) -> str:
    """The way that `auto` stands for, or the one asked for, if what it needs is there."""
    check_choice("choose_tokens", "relevance", way, WAYS)
    if way == "attention" and attention is None:
        raise ValueError("choose_tokens: relevance 'attention' needs attention=, a map (B, h, w); got None")
    if way == "embedding" and encoder is None:
        raise ValueError(
            "choose_tokens: relevance 'embedding' needs encoder=DenseEncoder.load(model) and "
            "projection=Projection.load(file); got None"
        )
    if way != "auto":
        return way
    if attention is not None:
        return "attention"
    if encoder is not None and question.strip():
        return "embedding"
    if not question.strip():
        return "none"
    return "words" if find_spec("rapidocr") is not None else "scout"


def words_query(page: Page, question: str, legible_scale: Tensor, ink: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where a page's words answer a question, and how fine those words are.

    half, ink: (1, h, w), from `information`
    returns    query (1, h, w), and half and ink with what the page's words say: their height, and that they are there
    """
    grid = legible_scale.shape[1:]
    query = words_map(page, question, grid)[None].to(legible_scale)
    finer, marked = legible_scale[0].cpu().numpy().copy(), ink[0].cpu().numpy().copy()
    down, across = page.size[0] / grid[0], page.size[1] / grid[1]
    for word in page.words:
        x0, y0, x1, y1 = word.box
        cells = np.s_[int(y0 / down) : int(np.ceil(y1 / down)), int(x0 / across) : int(np.ceil(x1 / across))]
        finer[cells] = max((y1 - y0) / WORD_HEIGHT, 0.5)
        marked[cells] = True
    return query, torch.from_numpy(finer)[None].to(legible_scale), torch.from_numpy(marked)[None].to(ink.device)


def scout_query(
    spots: Spots, question: str | Question, legible_scale: Tensor, ink: Tensor, size: tuple[int, int]
) -> Tensor:
    """Where the scout expects the answer, on the grid of `half` and `ink`: (B, h, w), summing to at most 1.

    spots: from `Scout.look`, of images of `size`
    """
    _, rows, columns = spots.text.shape
    wanted = (legible_scale.shape[0], *(side // SPOT for side in seen_size(size)))
    if spots.text.shape != wanted:
        raise ValueError(
            f"choose_tokens: page must be what the scout saw of these images, {wanted} spots, got "
            f"{tuple(spots.text.shape)}"
        )
    chance = load_scout(device=spots.text.device).where(spots, question)
    grid = legible_scale.shape[1:]
    wide = chance[:, None]
    if grid[0] < rows or grid[1] < columns:  # a long page: several spots in a cell, none is lost
        wide = functional.interpolate(wide, (min(rows, grid[0]), min(columns, grid[1])), mode="area")
    # A spot's chance is shared by the cells in it; a cell that is blank takes nothing.
    wide = functional.interpolate(wide, grid, mode="nearest-exact")[:, 0] * ink
    return wide * (chance.sum((1, 2)) / wide.sum((1, 2)).clamp(min=1e-30))[:, None, None]


def embedding_query(
    texture: Texture, question: str, encoder: DenseEncoder, projection: Projection, grid: tuple[int, int]
) -> Tensor:
    """The cosine of each spot's embedding with the question's, sharpened: (B, h, w), summing to 1.

    The texture's embedding channels are used if it has them, else they are made.
    """
    if set(EMBEDDING) <= set(texture.names):
        layers = [texture.names.index(name) for name in EMBEDDING]
        spots = functional.interpolate(texture.levels[0][:, layers].float(), grid, mode="area")
    else:
        spots = embed(texture.levels[0][:, :3], encoder, projection, size=grid)
    cosine = projection.similarity(spots, encoder.text(question).to(spots.device))
    return (SHARPNESS * cosine).flatten(1).softmax(1).view_as(cosine)


def attention_query(attention: Tensor, batch: int, grid: tuple[int, int]) -> Tensor:
    """A caller's map (B, h', w'), at least 0, on this grid, summing to 1 (all zero where it is)."""
    if attention.dim() != 3 or attention.shape[0] != batch:
        raise ValueError(f"choose_tokens: attention must be ({batch}, h, w), got {tuple(attention.shape)}")
    resized = functional.interpolate(attention.float()[:, None], grid, mode="bilinear", antialias=True)[:, 0].clamp(
        min=0
    )
    return resized / resized.sum((1, 2), keepdim=True).clamp(min=1e-30)
