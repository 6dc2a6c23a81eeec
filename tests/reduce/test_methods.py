"""What every method must do, over the registry; and one case per method whose answer is obvious."""

from dataclasses import replace

import pytest
import torch

from tests.reduce.contexts import permuted, plain_context, random_context
from texturevlm_lab.rivals import METHODS, ReduceStep, Reduction
from texturevlm_lab.rivals.hooks.captured import no_captured_reduction_because
from texturevlm_lab.rivals.sparsevlm import cluster_count, raters

STAGES = {stage.reduce.__name__: stage for one in METHODS.values() for stage in one.stages}  # each function once


def stage(name, index=0):
    return METHODS[name].stages[index]


@pytest.fixture(params=list(STAGES))
def any_stage(request):
    return STAGES[request.param]


def groups(reduction):
    """{kept token: all tokens in it}"""
    found = {int(one): set() for one in reduction.kept}
    for token, slot in enumerate(reduction.into.tolist()):
        if slot >= 0:
            found[int(reduction.kept[slot])].add(token)
    return found


@pytest.mark.parametrize("count", [1, 7, 60])
def test_everything_is_kept_at_100_percent(any_stage, count):
    found = any_stage(random_context(count, images=1), count)
    assert groups(found) == {token: {token} for token in range(count)}


@pytest.mark.parametrize("frames", [1, 6])
@pytest.mark.parametrize("keep", [1, 2, 3, 8, 31, 59])
def test_the_budget_is_kept_exactly(any_stage, keep, frames):
    found = any_stage(random_context(frames=frames), keep)
    assert len(found.kept) == keep
    assert (found.kept.diff() > 0).all()  # ascending, none twice
    assert all(token in own for token, own in groups(found).items())


def test_the_budget_is_kept_for_tokens_that_are_all_alike(any_stage):
    same = random_context(30)
    ones = {name: torch.ones_like(getattr(same, name)) for name in ("features", "keys", "pixels")}
    same = replace(same, **ones)
    assert len(any_stage(same, 7).kept) == 7


@pytest.mark.parametrize("frames", [1, 6])
@pytest.mark.parametrize("keep", [5, 20, 45])
def test_permuting_tokens_permutes_the_result(any_stage, keep, frames):
    """All of them: what counts tokens off counts in raster order, which positions give."""
    context = random_context(frames=frames)
    order = torch.randperm(len(context), generator=torch.Generator().manual_seed(3))
    straight, mixed = any_stage(context, keep), any_stage(permuted(context, order), keep)
    back = {frozenset(order[list(own)].tolist()) for own in groups(mixed).values()}
    assert back == {frozenset(own) for own in groups(straight).values()}
    assert set(order[mixed.kept].tolist()) == set(straight.kept.tolist())


@pytest.mark.parametrize("keep", [0, -1, 61])
def test_an_impossible_budget_is_refused(any_stage, keep):
    with pytest.raises(ValueError, match="keep must be between 1 and 60"):
        any_stage(random_context(), keep)


def test_what_is_needed_is_read(any_stage):
    """A need that is declared and missing is named; without the declared ones the method runs on nothing else."""
    context = random_context(frames=2)
    for name in any_stage.needs:
        with pytest.raises(ValueError, match=f"needs {name}"):
            any_stage(replace(context, **{name: None}), 10)
    every = {"keys", "queries", "received", "shallow", "asked", "question", "pixels"}
    less = replace(context, **dict.fromkeys(every - set(any_stage.needs)))
    assert torch.equal(any_stage(less, 10).kept, any_stage(context, 10).kept)


# One obvious case each.

E1, E2, E3 = torch.eye(3)


def test_stride():
    assert stage("stride")(plain_context(torch.randn(8, 3)), 4).kept.tolist() == [1, 3, 5, 7]


def test_random_is_the_same_twice_and_not_the_first_ones():
    context = random_context()
    found = stage("random")(context, 10).kept
    assert torch.equal(found, stage("random")(context, 10).kept)
    assert found.tolist() != list(range(10))


def test_tome_merges_the_pair_that_is_alike():
    keys = torch.stack([E1, E2, E3, E3])[None]
    found = stage("tome")(plain_context(torch.randn(4, 3), keys=keys), 3)
    assert groups(found) == {0: {0}, 1: {1}, 3: {2, 3}}


def test_tome_weighs_by_size():
    keys = torch.stack([E1, E1, E2, E2])[None]
    context = plain_context([[0.0], [3.0], [0.0], [9.0]], keys=keys, size=torch.tensor([1.0, 2.0, 2.0, 1.0]))
    found = stage("tome")(context, 2)
    assert found.mean(context.features, context.size).tolist() == [[2.0], [3.0]]
    assert found.sizes(context.size).tolist() == [3.0, 3.0]


def test_tome_goes_on_until_one_is_left():
    found = stage("tome")(random_context(), 1)
    assert [len(own) for own in groups(found).values()] == [60]


def test_visionzip():
    keys = torch.stack([E1, E1, E1, E2, E2, E2])[None]
    received = torch.tensor([0.1, 0.1, 9.0, 0.1, 0.1, 8.0])
    found = stage("visionzip")(plain_context(torch.randn(6, 3), keys=keys, received=received), 3)
    # 2 and 5 are dominant; of 0 1 3 4 the middle one is the target of all
    assert groups(found) == {2: {2}, 5: {5}, 3: {0, 1, 3, 4}}
    many = torch.cat([keys, keys], 1)
    received = torch.tensor([0.0] * 6 + [1.0] * 6)
    found = stage("visionzip")(plain_context(torch.randn(12, 3), keys=many, received=received), 7)
    assert groups(found)[3] == set(range(6))


def test_visionzip_merges_by_key():
    keys = torch.stack([E1, E1, E2, E2, E3])[None].repeat(1, 3, 1)
    received = torch.tensor([0.0, 0, 0, 0, 5] * 3) + torch.tensor([0.0] * 5 + [9.0] * 10)
    found = stage("visionzip")(plain_context(torch.randn(15, 3), keys=keys, received=received), 13)
    assert groups(found)[1] == {0, 1}
    assert groups(found)[3] == {2, 3}


def test_divprune_takes_one_of_each_kind():
    features = [[1, 0, 0], [1, 0.01, 0], [0, 1, 0], [0, 1, 0.01], [0, 0, 1]]
    kept = stage("divprune")(plain_context(features), 3).kept.tolist()
    assert 4 in kept  # it is the loneliest
    assert len({0, 1} & set(kept)) == 1
    assert len({2, 3} & set(kept)) == 1


@pytest.mark.parametrize("name", ["fastv", "pyramiddrop"])
def test_the_last_token_decides(name):
    asked = torch.tensor([[0.9, 0.05, 0.05, 0.0], [0.0, 0.5, 0.1, 0.4]])
    assert stage(name)(plain_context(torch.randn(4, 3), asked=asked), 2).kept.tolist() == [1, 3]


def test_sparsevlm_lets_relevant_words_decide():
    features = torch.stack([E1] * 4)
    question = torch.stack([9 * E1, E2])  # the second word is about nothing that is seen
    asked = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.97, 0.01, 0.01, 0.01]])
    context = plain_context(features, question=question, asked=asked)
    assert raters(context).tolist() == [True, False]
    assert stage("sparsevlm")(context, 2).kept.tolist() == [2, 3]


def test_sparsevlm_recycles_as_many_as_published():
    # 576 → 66: 3% of the dropped 526 come back as clusters, 16 of 66
    assert cluster_count(576, 66) == 16
    context = random_context(576, images=1)
    found = stage("sparsevlm")(context, 66)
    sizes = found.sizes(context.size)
    assert int((sizes > 1).sum()) <= 16
    assert int(sizes.sum()) == 50 + round(0.3 * 526)


def test_hired_gives_tiles_their_budget_and_ranks_inside():
    position = torch.tensor([[0, y, x] for y in range(4) for x in range(4)]).float()
    corner = (position[:, 1] < 2) & (position[:, 2] < 2)
    shallow = torch.where(corner, 1.0, 0.0)
    received = torch.arange(16.0)  # highest outside of the corner
    context = plain_context(torch.randn(16, 3), position=position, shallow=shallow, received=received)
    assert stage("hired")(context, 2).kept.tolist() == [4, 5]


def test_cdpruner_wants_relevance_and_diversity():
    features = torch.tensor([[1.0, 0.2, 0], [1.0, 0.21, 0], [0.2, 1.0, 0], [0, 0, 1.0]])
    context = plain_context(features, question=torch.tensor([[1.0, 0.8, 0.0]]))
    kept = stage("cdpruner")(context, 2).kept.tolist()
    assert 2 in kept
    assert len({0, 1} & set(kept)) == 1


def test_greedy_map_is_that_of_determinants():
    from texturevlm_lab.rivals.cdpruner import greedy_map

    vectors = torch.randn(9, 6, generator=torch.Generator().manual_seed(2))
    gram, chosen = (vectors @ vectors.mT).double(), []
    for _ in range(5):
        left = [one for one in range(9) if one not in chosen]
        chosen.append(max(left, key=lambda one: float(gram[[*chosen, one]][:, [*chosen, one]].det())))
    assert greedy_map(vectors, 5).tolist() == chosen


def test_vispruner_drops_copies():
    features = torch.stack([E1, E2, E2, E3, E1 + E2 + E3, E3])
    received = torch.tensor([5.0, 0, 0, 0, 4.0, 0])
    kept = stage("vispruner")(plain_context(features, received=received), 4).kept.tolist()
    assert {0, 4} <= set(kept)
    assert len({1, 2} & set(kept)) == 1
    assert len({3, 5} & set(kept)) == 1


def test_holov_forgets_no_part():
    """All attention is in the first half, and the other crops still get some."""
    received = torch.cat([torch.full((32,), 1.0), torch.full((32,), 0.3)])
    context = plain_context(torch.ones(64, 3), received=received)
    kept = stage("holov")(context, 24).kept
    assert int((kept < 32).sum()) == 16
    assert int((kept >= 32).sum()) == 8


def test_holov_prefers_crops_that_vary():
    features = torch.cat([torch.stack([E1, E1, E1, E1] * 8), torch.stack([E1, E2, E1, E1 + E3] * 8)])
    kept = stage("holov")(plain_context(features, received=torch.ones(64)), 24).kept
    assert int((kept >= 32).sum()) > 12


def test_mmtok_covers_the_question_first_then_the_image():
    features = torch.stack([E1] * 5 + [E2] * 2 + [E3])
    context = plain_context(features, question=E3[None])
    assert 7 in stage("mmtok")(context, 1).kept.tolist()
    kept = stage("mmtok")(context, 3).kept.tolist()
    assert len({0, 1, 2, 3, 4} & set(kept)) == 1
    assert len({5, 6} & set(kept)) == 1


def test_vscan_has_a_global_and_a_local_half():
    position = torch.tensor([[0, y, x] for y in range(4) for x in range(4)]).float()
    received = torch.zeros(16)
    received[:2] = 1
    shallow = torch.ones(16)
    keys = torch.randn(1, 16, 4, generator=torch.Generator().manual_seed(1))
    context = plain_context(torch.randn(16, 3), position=position, received=received, shallow=shallow, keys=keys)
    found = stage("vscan")(context, 4)
    assert {0, 1} <= set(found.kept.tolist())
    assert sum(len(own) for own in groups(found).values()) == 16  # the rest is merged, not dropped


def test_vscan_takes_the_best_of_each_window_beside_what_is_attended_to():
    """Sixteen windows of four tokens: deep attention is at the first of each, shallow attention at the last."""
    position = torch.tensor([[0, y, x] for y in range(8) for x in range(8)]).float()
    odd = position[:, 1:] % 2
    received, shallow = (odd.sum(-1) == 0).float(), (odd.sum(-1) == 2).float()
    more = {"received": received, "shallow": shallow, "keys": torch.ones(1, 64, 4)}
    kept = stage("vscan")(plain_context(torch.randn(64, 3), position=position, **more), 32).kept
    assert kept.tolist() == (received + shallow).nonzero()[:, 0].tolist()


def test_aim_ranks_by_what_others_attend_to():
    """Everyone attends to token 2, which attends to token 0."""
    keys = torch.tensor([[[0.0, 1], [0, 0], [1, 0], [0, 0]]])
    queries = torch.tensor([[[1.0, 0], [1, 0], [0, 1], [1, 0]]])
    context = plain_context(torch.randn(4, 3), keys=keys, queries=queries)
    assert stage("aim", 1)(context, 2).kept.tolist() == [0, 2]


def test_prunevid_merges_what_stands_still():
    """Two places, three frames: the first stands still, the second changes; all frames are one segment."""
    still, moving = 9 * E1, torch.stack([E2, E3, -E2])
    features = torch.cat([torch.stack([still, one]) for one in moving])
    position = torch.tensor([[t, 0, x] for t in range(3) for x in range(2)]).float()
    found = stage("prunevid")(plain_context(features, position=position), 4)
    assert groups(found) == {0: {0, 2, 4}, 1: {1}, 3: {3}, 5: {5}}


def test_prunevid_does_not_merge_across_a_cut():
    features = torch.stack([E1, E1, E2, E2])
    position = torch.tensor([[t, 0, 0] for t in range(4)]).float()
    found = stage("prunevid")(plain_context(features, position=position), 2)
    assert groups(found) == {0: {0, 1}, 2: {2, 3}}


def grid_of_pixels(values, side=4):
    """One token per value, which all its samples have, on a square grid."""
    values = torch.as_tensor(values, dtype=torch.float32)
    rows, columns = values.shape
    position = torch.tensor([[0, y, x] for y in range(rows) for x in range(columns)]).float()
    pixels = values.reshape(-1, 1, 1, 1).expand(-1, 3, side, side).clone()
    return plain_context(pixels.flatten(1), position=position, pixels=pixels)


def test_pixelprune_drops_what_its_neighbours_predict():
    """A ramp down and across is predicted by left + above − corner; the odd token is not, nor what is next to it."""
    ramp = torch.arange(5.0)[:, None] + 2 * torch.arange(5.0)
    flat = stage("pixelprune")(grid_of_pixels(torch.zeros(3, 3)), 1)
    assert flat.kept.tolist() == [0]  # it has no neighbours before it
    ramp[2, 2] += 50
    assert stage("pixelprune")(grid_of_pixels(ramp), 4).kept.tolist() == [0, 12, 13, 17]


def test_the_predictor_of_loco_i():
    from texturevlm_lab.rivals.pixelprune import median_edge

    west, north, corner = torch.tensor([[3.0, 9.0, 5.0], [7.0, 2.0, 6.0], [9.0, 1.0, 5.0]])
    # corner above both: the smaller; corner below both: the larger; else west + north − corner
    assert median_edge(west, north, corner).tolist() == [3.0, 9.0, 6.0]


def test_pace_shrinks_what_is_flat():
    """Of 4 × 4 tokens one quarter has detail inside; the three others become one token each."""
    context = grid_of_pixels(torch.zeros(4, 4))
    busy = torch.tensor([0, 1, 4, 5])
    context.pixels[busy] = torch.randn(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    found = groups(stage("pace")(context, 7))
    assert found == {0: {0}, 1: {1}, 4: {4}, 5: {5}, 2: {2, 3, 6, 7}, 8: {8, 9, 12, 13}, 10: {10, 11, 14, 15}}


def test_pace_shows_the_same_area_more_coarsely():
    from texturevlm_lab.rivals.token_squares import shown_pixels

    context = grid_of_pixels([[0.0, 1.0], [2.0, 3.0]])
    found = stage("pace")(context, 1)
    pixels, first, wide = shown_pixels(context, found)
    assert (first.tolist(), wide.tolist()) == ([[0.0, 0.0]], [2])
    quarters = torch.tensor([[0.0, 1.0], [2.0, 3.0]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    assert torch.equal(pixels[0], quarters.expand(3, 4, 4))


def test_pace_behind_the_tower_keeps_what_it_attends_to():
    received = torch.tensor([0.1, 0.9, 0.2, 0.8])
    assert stage("pace", 1)(plain_context(torch.randn(4, 3), received=received), 2).kept.tolist() == [1, 3]


def test_pvc_explains_what_the_first_pass_left_out():
    features = torch.stack([E1] * 3 + [E2] + [E1] * 4)
    found = groups(stage("pvc")(plain_context(features), 2))
    assert {3} in found.values()
    assert sum(len(own) for own in found.values()) == 8


def test_dtoma_gives_still_frames_little():
    """Three frames of two tokens; the second repeats the first."""
    features = torch.stack([E1, E2, E1, E2, E3, -E1])
    position = torch.tensor([[t, 0, x] for t in range(3) for x in range(2)]).float()
    kept = stage("dtoma")(plain_context(features, position=position), 4).kept.tolist()
    assert kept == [0, 1, 4, 5]


def test_dtoma_gives_frames_that_are_asked_about_more():
    position = torch.tensor([[t, 0, x] for t in range(2) for x in range(4)]).float()
    asked = torch.tensor([[0.02, 0.05, 0.01, 0.02, 0.3, 0.2, 0.2, 0.2]])
    kept = stage("dtoma", 1)(plain_context(torch.randn(8, 3), position=position, asked=asked), 4).kept.tolist()
    assert kept == [4, 5, 6, 7]


@pytest.mark.parametrize("spread_over", [1, 3, 7])
def test_dyrate_follows_how_far_attention_is_spread(spread_over):
    asked = torch.zeros(1, 8)
    asked[0, 1 : 1 + spread_over] = 0.1
    context, dyrate = plain_context(torch.randn(8, 3), asked=asked), stage("dyrate")
    assert dyrate.rate(context, 2) == max(2, spread_over)
    assert dyrate(context, spread_over).kept.tolist() == list(range(1, 1 + spread_over))


def test_statistics_of_attention_do_not_depend_on_the_order():
    from texturevlm_lab.rivals.dyrate import statistics

    even, one = torch.full((1, 100), 0.01), torch.zeros(1, 100)
    one[0, 7] = 1.0
    for asked, wanted in (
        (even, [1.0, 0.01, 0.4605, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5]),
        (one, [0, 1, 0.4605, *[1] * 6]),
    ):
        found = statistics(plain_context(torch.randn(100, 3), asked=asked))
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float32), atol=1e-4, rtol=1e-4)
    mixed = torch.rand(1, 100)
    again = statistics(plain_context(torch.randn(100, 3), asked=mixed.flip(1)))
    torch.testing.assert_close(statistics(plain_context(torch.randn(100, 3), asked=mixed)), again)


def test_two_reductions_in_a_row():
    first = Reduction.merging(torch.tensor([0, 2, 4]), torch.tensor([0, 0, 2, -1, 4]))
    then = first.then(Reduction.merging(torch.tensor([0, 1]), torch.tensor([0, 1, 0])))
    assert groups(then) == {0: {0, 1, 4}, 2: {2}}
    dropped = first.then(Reduction.keeping(torch.tensor([1, 2]), 3))
    assert groups(dropped) == {2: {2}, 4: {4}}


def test_what_is_not_merged_is_not_rounded():
    values = torch.randn(4, 8).bfloat16()
    found = Reduction.merging(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2, 2]))
    mean = found.mean(values, torch.full((4,), 3.0))
    assert torch.equal(mean[:2], values[:2])
    torch.testing.assert_close(mean[2], values[2:].float().mean(0).bfloat16())


def test_budgets_are_shared_out_in_proportion_and_within_room():
    from texturevlm_lab.rivals.select import shared_out

    assert shared_out(torch.tensor([3.0, 1.0]), torch.tensor([9, 9]), 8) == [6, 2]
    assert shared_out(torch.tensor([3.0, 1.0]), torch.tensor([4, 9]), 8) == [4, 4]
    assert shared_out(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1, 5, 1]), 7) == [1, 5, 1]


def test_column_sums_equal_those_of_the_whole_matrix():
    from texturevlm_lab.rivals.attention import column_sums

    query, key = torch.randn(2, 3, 50, 8, generator=torch.Generator().manual_seed(0))
    whole = (query @ key.mT * 0.5).softmax(-1)
    weights = torch.rand(50)
    torch.testing.assert_close(column_sums(query, key, scale=0.5, block=7), whole.mean(0).sum(0))
    squared = column_sums(query, key, scale=0.5, weights=weights, quadratic=True, block=7)
    torch.testing.assert_close(squared, weights @ whole.square().mean(0).sqrt())


@pytest.mark.parametrize("name", METHODS)
def test_what_is_captured_between_two_graphs_merges_nothing(name):
    """A merged token weighs more in the attention of the language model, which a captured prefill does not know."""
    if no_captured_reduction_because([ReduceStep(name, 9)]) is not None:
        pytest.skip("not captured")
    assert not stage(name)(random_context(), 9).merges
