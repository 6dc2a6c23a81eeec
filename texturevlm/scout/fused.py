"""The scout on a GPU: the same networks, with our kernels for everything but the 3×3 convolutions.

Besides its convolutions a page takes about sixty small operations, each slower to launch than to run. Here they are a
dozen (scout_page.cu, scout_question.cu, scout_spots.cu, scout.cu). The weights are laid out for the kernels once, when
a scout is made. Spotter and Ranker are the specification. Questions are float32, maps have the network's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from texturevlm.cuda import THREADS, Layout, constants, launch, scalar_bits
from texturevlm.ops import backend
from texturevlm.scout.question import Question
from texturevlm.scout.ranker import INPUT_MAPS, RANKER_INPUTS, Ranker
from texturevlm.scout.spotter import SPOT, STEM, FoldedConv, Spots, Spotter, as_spots, widen

_STEM, ACROSS, DOWN = constants("scout_page.cu", "STEM", "ACROSS", "DOWN")
_EMBEDDING, _WORDS, _MAPS, MOST_ASKED = constants("scout_question.cu", "EMBEDDING", "WORDS", "MAPS", "MOST_ASKED")
_INPUT_MAPS, SPOT_CELLS, LINES = constants("scout_spots.cu", "INPUTS", "CELLS", "LINES")
PACK, SCORE_CELLS = constants("scout.cu", "PACK", "CELLS")
_PAGE, _ASKED = Layout("scout_page.cu", "PageInput"), Layout("scout_question.cu", "Asked")
_MAP, _SPOT_INPUTS = Layout("scout_spots.cu", "Map"), Layout("scout_spots.cu", "Inputs")
_FILM, _LIFT, _TAIL = (Layout("scout.cu", name) for name in ("Film", "Lift", "Tail"))


# Weights (inputs, outputs) and biases (outputs,) of the layers that a question goes through, float32: from a word's
# letters to its embedding; from its traits to its weight per map; from the kinds that are asked for and the mean of all
# words to factors and shifts of the maps.
QUESTION_LAYERS = (
    "inner", "inner_added", "embed", "embed_added", "weigh", "weigh_added", "worth_weight", "worth_added", "steer",
    "steer_added", "film", "film_added",
)  # fmt: skip


class Laid(NamedTuple):
    """Questions as the kernels take them.

    words: (Q, WORDS, EMBEDDING), of length 1; worth: (Q, WORDS, MAPS); both float32
    films: (Q, the outputs of `film`) float32, filled by `lay_films`
    job:   the parameters of that kernel; kept: every tensor that they point to
    """

    words: Tensor
    worth: Tensor
    films: Tensor
    job: bytes
    kept: tuple[Tensor, ...]


def prepare_cells(colours: Tensor, size: tuple[int, int], dtype: torch.dtype) -> Callable[..., Tensor]:
    """Prepare `pixel_unshuffle(1 − 2 · grey, STEM)` of images resized to `size`, in channels-last order.

    colours: (B, 3, H, W)
    size:    (height, width) of the spotter's input, multiples of DOWN
    returns  a function, so that its launch can follow the previous one at once; it returns (B, STEM · STEM, height /
             STEM, width / STEM) of `dtype`. early: start while `lay_question`, launched just before, still runs
    """
    assert size[0] % DOWN == 0 and size[1] % _STEM == 0, size
    colours = colours.float()
    if colours.stride(3) != 1:
        colours = colours.contiguous()
    batch = len(colours)
    cells = colours.new_empty((batch, size[0] // _STEM, size[1] // _STEM, _STEM * _STEM), dtype=dtype)
    image, channel, row, _ = colours.stride()
    job = _PAGE.pack(
        colours=colours, cells=cells, image=image, channel=channel, row=row, height=colours.shape[2],
        width=colours.shape[3], rows=size[0], columns=size[1],
    )  # fmt: skip
    blocks, scalar = (-(-size[1] // ACROSS) * (size[0] // DOWN), batch), scalar_bits(dtype)

    def start(*, early: bool = False) -> Tensor:
        launch("scout_page.cu", "scout_page", colours.device, blocks, job, early=early, SCALAR=scalar)
        return cells.permute(0, 3, 1, 2)

    return start


def lay_question(letters: Tensor, traits: Tensor, asked: Tensor, weights: dict[str, Tensor]) -> Laid:
    """The words of a question by one launch; it may lie in pinned memory.

    letters: (Q, WORDS, LONGEST) int64; traits: (Q, WORDS, TRAITS); asked: (Q, A), at most MOST_ASKED
    weights: by the names QUESTION_LAYERS
    """
    count, outputs = len(letters), len(weights["film_added"])
    assert letters.dtype == torch.int64 and letters.shape[1] == _WORDS and asked.shape[1] <= MOST_ASKED
    letters, traits, asked = letters.contiguous(), traits.float().contiguous(), asked.float().contiguous()
    shapes = ((_WORDS, _EMBEDDING), (_WORDS, _MAPS), (outputs,))
    words, worth, films = (weights["film_added"].new_empty((count, *shape)) for shape in shapes)
    tensors = (letters, traits, asked, *weights.values(), words, worth, films)
    job = _ASKED.pack(
        letters=letters, traits=traits, asked=asked, **weights, words=words, worth=worth, films=films,
        kinds=asked.shape[1], outputs=outputs,
    )  # fmt: skip
    launch("scout_question.cu", "scout_words", words.device, (_WORDS, count), job)
    return Laid(words, worth, films, job, tensors)


def lay_films(laid: Laid) -> None:
    """Fill `films`, the rest of a question, by one launch."""
    launch("scout_question.cu", "scout_films", laid.films.device, len(laid.films), laid.job)


def spot_inputs(
    spots: tuple[Tensor, Tensor, Tensor, Tensor], laid: Laid, weights: tuple[Tensor, Tensor, Tensor], *, pitch: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The inputs of the ranker's network from the spotter's output, and the films of the question: three launches.

    spots:   words (B, EMBEDDING, h, w), of any length, text (B, h, w), kinds (B, KINDS, h, w), height (B, h, w); h and
             w are even, strides are any
    laid:    for all pages, or one for each
    weights: of the ranker: steps (2, 2), seen (EMBEDDING + 1, SEEN), direct (2 + KINDS + 1,); float32, the bias
             comes last
    pitch:   how many maps there are; those after the inputs are zero. A multiple of 8
    returns  the maps (B, pitch, h / 2, w / 2), channels-last; the probability of text, and scores of spots, (B, h, w)
    """
    words, text, kinds, height = spots
    batch, rows, columns = text.shape
    assert rows % 2 == 0 and columns % 2 == 0 and pitch % 8 == 0 and pitch >= _INPUT_MAPS
    device, dtype = text.device, text.dtype
    inputs = text.new_empty((batch, rows // 2, columns // 2, pitch))
    shown, scores = text.new_empty((2, batch, rows, columns), dtype=torch.float32)
    steps, seen, direct = weights
    parameters = _SPOT_INPUTS.pack(
        words=_map(words), text=_map(text[:, None]), height=_map(height[:, None]), kinds=_map(kinds), sought=laid.words,
        worth=laid.worth, steps=steps, seen=seen, direct=direct, inputs=inputs, shown=shown, scores=scores, rows=rows,
        columns=columns, questions=len(laid.words), pitch=pitch,
    )  # fmt: skip
    blocks = -(-(rows * columns // 4) // SPOT_CELLS)
    lines = -(-((rows + columns) // 2) // LINES)
    scalar = scalar_bits(dtype)
    lay_films(laid)
    launch("scout_spots.cu", "scout_inputs", device, (blocks, batch), parameters, early=True, SCALAR=scalar)
    launch("scout_spots.cu", "scout_along", device, (lines, batch), parameters, early=True, SCALAR=scalar)
    return inputs.permute(0, 3, 1, 2), shown, scores


def film_(values: Tensor, films: Tensor, start: int) -> Tensor:
    """Steer maps in place: relu(shift + factor · value).

    values: (B, C, h, w), channels-last, C a multiple of PACK
    films:  (B or 1, …), from `start` on C factors and C shifts
    """
    batch, width, rows, columns = values.shape
    packs = rows * columns * width // PACK
    parameters = _FILM.pack(
        values=values, films=films.data_ptr() + 4 * start, packs=packs, width=width, next=films.shape[1],
        questions=len(films),
    )  # fmt: skip
    blocks = (-(-packs // THREADS), batch)
    launch("scout.cu", "scout_film", values.device, blocks, parameters, SCALAR=scalar_bits(values.dtype))
    return values


def lift_(values: Tensor, coarse: Tensor, weight: Tensor, added: Tensor) -> Tensor:
    """Add a coarser scale to a finer one, in place, through a 1×1 convolution and nearest-neighbour upsampling.

    values: (B, C, h, w), coarse: (B, D, ⌈h / 2⌉, ⌈w / 2⌉), both channels-last, C and D multiples of PACK
    weight: (D, C), added: (C,), of the same dtype
    """
    batch, width, rows, columns = values.shape
    parameters = _LIFT.pack(
        coarse=coarse, weight=weight, added=added, values=values, rows=rows, columns=columns, inputs=coarse.shape[1],
        width=width,
    )  # fmt: skip
    blocks = (-(-coarse.shape[2] * coarse.shape[3] * width // THREADS), batch)  # four threads for four maps
    launch("scout.cu", "scout_lift", values.device, blocks, parameters, SCALAR=scalar_bits(values.dtype))
    return values


def chances(values: Tensor, last: Tensor, added: Tensor, shown: Tensor, scores: Tensor) -> Tensor:
    """Maps to the chance of each spot: two launches.

    values: (B, C, h / 2, w / 2), channels-last, C a multiple of PACK
    last:   (4, C), added: (5,), the last convolution, and the score of "not on this page"; float32
    shown:  (B, h, w), a factor of the chance; scores: (B, h, w), added to the scores of the maps, in place
    """
    batch, rows, columns = scores.shape
    cells = rows * columns // 4
    blocks = -(-cells // SCORE_CELLS)
    parts, chance = scores.new_empty((batch, blocks, 2)), torch.empty_like(scores)
    parameters = _TAIL.pack(
        values=values, last=last, added=added, shown=shown, scores=scores, parts=parts, chance=chance, rows=rows,
        columns=columns, width=values.shape[1], blocks=blocks,
    )  # fmt: skip
    device, scalar = values.device, scalar_bits(values.dtype)
    launch("scout.cu", "scout_scores", device, (blocks, batch), parameters, SCALAR=scalar)
    spots = -(-rows * columns // THREADS)
    launch("scout.cu", "scout_chance", device, (spots, batch), parameters, early=True, SCALAR=scalar)
    return chance


def _map(values: Tensor) -> bytes:
    """`struct Map` of scout_spots.cu."""
    image, channel, row, column = values.stride()
    return _MAP.pack(first=values, image=image, row=row, column=column, channel=channel, unused=0)


ALIGNED = 8  # maps: libraries are fastest with multiples of it
# Pages whose convolutions run together. A layer of the finest maps has 7 MB per page, and the cache of an H200 50 MB:
# more pages at once go through memory between any two layers.
PAGES_AT_ONCE = 8


class Fused(nn.Module):
    """Spotter and ranker, folded and of one dtype; their layers are shared, not copied."""

    head: Tensor
    head_added: Tensor
    steps: Tensor
    seen: Tensor
    direct: Tensor
    last: Tensor
    last_added: Tensor

    def __init__(self, spotter: Spotter, ranker: Ranker) -> None:
        super().__init__()
        self.spotter, self.ranker, self.pages_at_once = spotter, ranker, PAGES_AT_ONCE
        self.widths = [len(_parts(layer)[1]) // 2 for layer in ranker.steer]
        for name, tensor in zip(QUESTION_LAYERS, _question_weights(spotter, ranker), strict=True):
            self._keep(f"question_{name}", tensor)
        for name, part in zip(("head", "head_added"), _parts(spotter.head)):
            self._keep(name, functional.pad(part, (0, -part.shape[-1] % ALIGNED)))
        self._keep("steps", ranker.steps.detach().float())
        seen, added = _parts(ranker.seen)
        self._keep("seen", torch.cat([seen, added[None]]).float())
        direct, added = _parts(ranker.direct)
        self._keep("direct", torch.cat([direct[:, 0], added]).float())
        for level, layer in enumerate(ranker.lift):
            for name, part in zip((f"lift_{level}", f"lift_{level}_added"), _parts(layer)):
                self._keep(name, part)
        last, added = _parts(ranker.last)
        self._keep("last", last.mT.float())
        self._keep("last_added", torch.cat([added, ranker.absent.detach()[None]]).float())
        self.enter = _entrance(ranker)

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor.clone(memory_format=torch.contiguous_format), persistent=False)

    def _kept(self, name: str) -> Tensor:
        return cast(Tensor, getattr(self, name))

    def can_run(self, tensor: Tensor) -> bool:
        """Whether the kernels can run on this tensor's device."""
        return backend.no_kernel_because(tensor) is None and not any(width % PACK for width in self.widths)

    def read(self, colours: Tensor, size: tuple[int, int]) -> Spots:
        """colours: (B, 3, H, W), resized to `size`; the returned words are not normalised"""
        return self._spots(prepare_cells(colours, size, self.head.dtype)())

    def read_and_ask(self, colours: Tensor, size: tuple[int, int], question: Question) -> tuple[Spots, Laid]:
        """`read` and `question` at the same time."""
        start = prepare_cells(colours, size, self.head.dtype)
        laid = self.question(question)
        return self._spots(start(early=True)), laid

    def _spots(self, cells: Tensor) -> Spots:
        batch, _, rows, columns = cells.shape
        spots = batch, rows * STEM // SPOT, columns * STEM // SPOT
        maps = self.head.new_empty(*spots, len(self.head_added))
        for some, to in zip(cells.split(self.pages_at_once), maps.split(self.pages_at_once)):
            values = self.spotter.features(some).permute(0, 2, 3, 1)
            # a 1×1 convolution with its bias
            torch.addmm(self.head_added, values.flatten(0, 2), self.head, out=to.flatten(0, 2))
        return as_spots(maps.permute(0, 3, 1, 2))

    def question(self, question: Question) -> Laid:
        """A question as the kernels take it."""
        return lay_question(*question, {name: self._kept(f"question_{name}") for name in QUESTION_LAYERS})

    def where(self, spots: Spots, laid: Laid) -> Tensor:
        """(B, h, w), the probability that the answer is in each spot; laid: one for all pages, or one per page."""
        like = Spots(*(part.to(self.head.dtype) for part in spots))
        weights = (self.steps, self.seen, self.direct)
        values, shown, scores = spot_inputs(like, laid, weights, pitch=self.enter.weight.shape[1])
        kept: list[Tensor] = []
        start = 0
        for level, (width, inner) in enumerate(zip(self.widths, self.ranker.inner)):
            enter = self.ranker.enter[level] if level else self.enter
            values = film_(_channels_last(enter(values)), laid.films, start)
            start += 2 * width
            for block in inner.children():
                values = block(values)
            kept.append(_channels_last(values))
        values = kept.pop()
        for level in (1, 0):
            lift = self._kept(f"lift_{level}"), self._kept(f"lift_{level}_added")
            values = _channels_last(self.ranker.merge[level](lift_(kept[level], values, *lift)))
        return chances(values, self.last, self.last_added, shown, scores)


def _question_weights(spotter: Spotter, ranker: Ranker) -> list[Tensor]:
    """In the order of QUESTION_LAYERS."""
    layers = (spotter.letters[0], spotter.letters[2], ranker.worth[0], ranker.worth[2], ranker.asked[0])
    laid = [part for layer in layers for part in _parts(layer)]
    steer = [_parts(layer) for layer in ranker.steer]
    film = torch.cat([weight for weight, _ in steer], 1)
    added = [part.float() + one for _, both in steer for part, one in zip(both.chunk(2), (1, 0))]  # factors are 1 + …
    return [part.float() for part in (*laid, film, torch.cat(added))]


def _entrance(ranker: Ranker) -> FoldedConv:
    """The ranker's first layer with zero weights for padding maps and for the inputs that the ranker leaves out."""
    first = ranker.enter[0]
    assert isinstance(first, FoldedConv)
    layer = widen(first, RANKER_INPUTS + -RANKER_INPUTS % ALIGNED)
    start = 0
    for name, count in INPUT_MAPS.items():
        if name in ranker.without:
            layer.weight[:, start : start + count] = 0
        start += count
    return layer


def _parts(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """The weights (inputs, outputs) and the bias (outputs,) of a linear layer or a 1×1 convolution."""
    assert isinstance(layer, (nn.Linear, nn.Conv2d)) and layer.bias is not None
    return layer.weight.detach().flatten(1).mT, layer.bias.detach()


def _channels_last(values: Tensor) -> Tensor:
    """No copy after cuDNN, whose results are channels-last already."""
    return values.contiguous(memory_format=torch.channels_last)
