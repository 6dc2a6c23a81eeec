"""Which pages stay in the pool: a budget of bytes, recency, priority, and no thrashing."""

import torch

from texturevlm.virtual.pages import PagePool

PAGE = 4
BYTES = 3 * PAGE * PAGE


def pool_of(slots, pages=20):
    return PagePool(pages, PAGE, slots * BYTES, torch.device("cpu"))


def bring(pool, wanted):
    admitted = pool.admitted(wanted)
    for page in admitted:
        pool.put(page, torch.full((PAGE, PAGE, 3), page, dtype=torch.uint8))
    return admitted


def test_the_table_says_where_each_page_is():
    pool = pool_of(3)
    assert bring(pool, {7: 1.0, 2: 3.0}) == [2, 7]  # the higher priority first
    assert int((pool.table >= 0).sum()) == 2
    for page in (2, 7):
        assert (pool.texels[pool.table[page]] == page).all()


def test_never_more_bytes_than_the_budget():
    pool = pool_of(3)
    for start in range(15):
        bring(pool, dict.fromkeys(range(start, start + 5), 1.0))
        assert len(pool.slots) <= 3 and int((pool.table >= 0).sum()) == len(pool.slots)
    assert pool.texels.numel() == 3 * BYTES


def test_the_least_recently_used_leaves_first():
    pool = pool_of(2)
    bring(pool, {0: 1.0, 1: 1.0})
    bring(pool, {0: 1.0})
    assert bring(pool, {2: 1.0}) == [2]
    assert 0 in pool and 1 not in pool and pool.table[1] == -1


def test_a_relevant_page_stays_longer():
    pool = pool_of(2)
    bring(pool, {0: 1.0, 1: 0.1})
    bring(pool, {2: 1.0})
    assert 0 in pool and 1 not in pool


def test_pages_of_nearly_equal_worth_do_not_replace_each_other():
    pool = pool_of(1)
    bring(pool, {0: 1.0})
    for _ in range(5):
        assert bring(pool, {0: 1.0, 1: 1.0}) == []  # used in the same round, equally wanted
    assert bring(pool, {0: 1.0, 1: 1.3}) == [1]  # clearly more


def test_what_is_old_leaves_for_the_least_that_is_wanted():
    pool = pool_of(2)
    bring(pool, {0: 1.0, 1: 1.0})
    came = [bring(pool, {0: 1.0, 2: 0.001}) for _ in range(4)]
    assert came[0] == [] and [2] in came and 1 not in pool and 0 in pool
