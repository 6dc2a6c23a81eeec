"""The ranker: a page scores the same however it comes, and only what it is given moves it."""

import re

import pytest
import torch
from torch.nn import functional

from tests.conftest import worst
from tests.scout.networks import lively, random_question, random_spots
from texturevlm.scout.ranker import BLOCK_DILATIONS, INPUT_MAPS, RANKER_INPUTS, Ranker
from texturevlm.scout.spotter import Spots, folded

WIDTHS = (8, 12, 16)


@pytest.fixture(params=[1, 2])
def ranker(request):
    return lively(Ranker(WIDTHS, blocks=request.param)).requires_grad_(False)


def test_shapes_and_that_the_last_is_absent(ranker):
    for rows, columns in ((2, 2), (10, 14), (6, 30)):
        scores = ranker(random_spots(3, rows, columns), *random_question(batch=3))
        assert scores.shape == (3, rows * columns + 1) and scores.isfinite().all() and scores.dtype == torch.float32
        assert (scores[:, -1] == ranker.absent).all()
    assert ranker.enter[0].convolution.in_channels == RANKER_INPUTS == sum(INPUT_MAPS.values())


def test_how_deep_it_is():
    """The deeper one has blocks more, and the same names for the rest."""
    reaches = {
        blocks: [[part.convolution.dilation[1] for part in block.children()] for block in ranker.inner[2]]
        for blocks, ranker in ((blocks, Ranker(WIDTHS, blocks=blocks)) for blocks in (1, 2))
    }
    assert reaches == {1: [[1, 2]], 2: [[1, 1], [1, 2]]} and len(BLOCK_DILATIONS) == 2
    deep, shallow = (set(Ranker(WIDTHS, **given).state_dict()) for given in ({"blocks": 2}, {}))
    assert deep - shallow == {name for name in deep if re.match(r"inner\.\d\.1\.", name)} and shallow < deep
    for blocks, message in ((0, "between 1 and 2, got 0"), (3, "between 1 and 2, got 3")):
        with pytest.raises(ValueError, match=rf"Ranker: blocks must be {message}"):
            Ranker(WIDTHS, blocks=blocks)


def test_each_block_counts(ranker):
    spots, question = random_spots(1, 10, 14), random_question()
    before = ranker(spots, *question)
    for scale in ranker.inner:
        for block in scale:
            kept = block.second.convolution.weight.clone()
            block.second.convolution.weight.zero_()
            assert worst(ranker(spots, *question), before) > 1e-5
            block.second.convolution.weight.copy_(kept)
    assert torch.equal(ranker(spots, *question), before)


def test_the_whole_as_extent_is_no_extent(ranker):
    spots, question = random_spots(2, 10, 14), random_question(batch=2)
    assert worst(ranker(spots, *question, torch.tensor([[10, 14]] * 2)), ranker(spots, *question)) < 1e-5


@pytest.mark.parametrize("extent", [(10, 14), (6, 6), (12, 10), (2, 2), (22, 26)])
def test_padding_does_not_change_a_pages_scores(ranker, extent):
    """Also at its edge, and where halves of it are odd."""
    rows, columns = extent
    spots, question = random_spots(1, rows, columns), random_question()
    alone = ranker(spots, *question)[0]
    large = random_spots(1, 24, 28)  # whatever is beyond
    for part, own in zip(large, spots):
        part[..., :rows, :columns] = own
    padded = ranker(large, *question, torch.tensor([extent]))[0]
    page = padded[:-1].view(24, 28)
    assert worst(page[:rows, :columns].flatten(), alone[:-1]) < 1e-4 and padded[-1] == alone[-1]
    beyond = torch.ones(24, 28, dtype=torch.bool)
    beyond[:rows, :columns] = False
    assert (page[beyond] == -torch.inf).all()


def test_pages_of_a_batch_do_not_feel_one_another(ranker):
    spots, question = random_spots(2, 12, 16), random_question(batch=2)
    extents = torch.tensor([[12, 10], [8, 16]])
    together = ranker(spots, *question, extents)
    for row in range(2):
        one = slice(row, row + 1)
        alone = ranker(Spots(*(part[one] for part in spots)), *(part[one] for part in question), extents[one])
        finite = alone.isfinite()
        assert torch.equal(finite, together[one].isfinite()) and worst(together[one][finite], alone[finite]) < 1e-4


def test_folded_it_is_the_same(ranker):
    spots, question = random_spots(1, 10, 14), random_question()
    before = ranker(spots, *question)
    assert worst(folded(ranker)(spots, *question), before) < 1e-4


def test_what_is_left_out_is_not_looked_at():
    spots, question = random_spots(1, 10, 14), random_question()
    higher = spots._replace(height=spots.height + 1)  # which is a part of "text" alone
    state = lively(Ranker(WIDTHS)).state_dict()
    made = {}
    for without in ((), *((name,) for name in INPUT_MAPS)):
        ranker = Ranker(WIDTHS, without=without).eval().requires_grad_(False)
        ranker.load_state_dict(state)
        made[without] = ranker(spots, *question)
        if without == ("text",):
            assert torch.equal(ranker(higher, *question), made[without])
        elif without == ():
            assert worst(ranker(higher, *question), made[without]) > 1e-4
    assert all(worst(made[(name,)], made[()]) > 1e-4 for name in INPUT_MAPS)
    with pytest.raises(ValueError, match=r"Ranker: without must be one of hits, kinds, along, .*, got 'colour'"):
        Ranker(without=("colour",))


def test_the_question_counts_and_its_missing_words_do_not(ranker):
    spots = random_spots(1, 10, 14)
    words, traits, asked = random_question()
    here = traits[..., :1]
    noise = torch.randn_like(words) * (1 - here)
    assert torch.equal(ranker(spots, words + noise, traits, asked), ranker(spots, words, traits, asked))
    other = functional.normalize(torch.randn_like(words), dim=2) * here
    assert worst(ranker(spots, other, traits, asked), ranker(spots, words, traits, asked)) > 1e-3
    assert worst(ranker(spots, words, traits, 1 - asked), ranker(spots, words, traits, asked)) > 1e-3
    nothing = ranker(spots, words * 0, traits * 0, asked * 0)
    assert nothing.isfinite().all()


def test_the_order_of_words_does_not_count(ranker):
    spots, (words, traits, asked) = random_spots(1, 6, 8), random_question()
    order = torch.randperm(words.shape[1])
    assert worst(ranker(spots, words[:, order], traits[:, order], asked), ranker(spots, words, traits, asked)) < 1e-4
