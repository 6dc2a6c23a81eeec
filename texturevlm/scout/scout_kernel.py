"""The scout's kernels (scout_page.cu, scout_question.cu, scout_spots.cu, scout.cu): everything but convolutions.

PyTorch would launch about fifty small kernels per page between the convolutions, each slower to launch than to run. The
specification is the PyTorch code in texturevlm/scout. Questions are float32, maps have the network's dtype.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from texturevlm.cuda.launch import THREADS, launch, scalar_bits
from texturevlm.cuda.struct import Layout, constants

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
