"""The kernels of hierarchical attention, in Triton. `hierarchical_triton.py` launches them.

Pointers are to contiguous tensors unless strides are given. Scores are in base 2, which the hardware exponentiates.
NOTHING is a finite start of a running maximum, so that rows that have seen only hidden keys hold no NaN.
"""

import triton
import triton.language as tl

NOTHING = tl.constexpr(-1e20)


@triton.jit
def mean_kernel(
    rows, table, means, arranged,
    heads, slots, stride_batch, stride_head, stride_row,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, ARRANGE: tl.constexpr,
):  # fmt: skip
    """The mean of the rows of each block of a table, and a copy of the rows in its order if ARRANGE."""
    block, own = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = own // heads, own % heads
    slot, column = tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    index = tl.load(table + batch * slots + block * BLOCK + slot)
    there = (index >= 0)[:, None]
    source = rows + batch * stride_batch + head * stride_head + index.to(tl.int64)[:, None] * stride_row
    found = tl.load(source + column[None], mask=there, other=0.0)
    if ARRANGE:
        target = arranged + (own * slots + block * BLOCK + slot.to(tl.int64))[:, None] * WIDTH + column[None]
        tl.store(target, found)
    count = tl.maximum(tl.sum((index >= 0).to(tl.float32), 0), 1.0)
    mean = tl.sum(found.to(tl.float32), 0) / count
    tl.store(means + (own * (slots // BLOCK) + block) * WIDTH + column, mean.to(means.dtype.element_ty))


@triton.jit
def score_kernel(
    queries, keys, scores, rows, blocks, scale,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores (heads of the keys, rows, blocks) of mean queries and mean keys, in float32."""
    own = tl.program_id(2).to(tl.int64)
    row, block = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    column = tl.arange(0, WIDTH)
    asking = tl.load(queries + (own * rows + row)[:, None] * WIDTH + column[None], mask=row[:, None] < rows, other=0.0)
    key = tl.load(
        keys + (own * blocks + block)[:, None] * WIDTH + column[None], mask=block[:, None] < blocks, other=0.0
    )
    found = tl.dot(asking, tl.trans(key), input_precision=PRECISION) * scale
    inside = (row < rows)[:, None] & (block < blocks)[None]
    tl.store(scores + (own * rows + row)[:, None] * blocks + block[None], found, mask=inside)


@triton.jit
def select_kernel(
    scores, state, allowed, count, chosen, chosen_count, bias, heads, groups, blocks, total, most,
    REPEAT: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """The blocks with most attention, summed over REPEAT heads, and what the scores of the others' summaries get.

    The least attention that is chosen is found bit by bit: numbers from 0 on are ordered as their bits are.
    """
    group, own = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch = own // heads
    block = tl.arange(0, BLOCKS)
    inside = block < blocks
    whole = tl.load(state + (batch * groups + group) * total + block, mask=inside, other=0) == 1
    size = tl.log2(tl.maximum(tl.load(count + batch * blocks + block, mask=inside, other=1), 1).to(tl.float32))
    mass = tl.zeros([BLOCKS], tl.float32)
    for head in range(REPEAT):
        at = scores + ((own * REPEAT + head) * groups + group) * blocks + block
        score = tl.load(at, mask=inside, other=0.0) + size
        score = tl.where(whole, score, -1e30)
        share = tl.exp2(score - tl.max(score, 0))
        mass += tl.where(whole, share / tl.sum(share, 0), 0.0)
    wanted = tl.load(allowed + batch * groups + group)
    bits = tl.where(whole, mass.to(tl.int32, bitcast=True) + 1, 0)
    least = tl.zeros([], tl.int32)
    for step in range(31):
        trial = least + (1 << (30 - step))
        least = tl.where(tl.sum((bits >= trial).to(tl.int32), 0) >= wanted, trial, least)
    above, equal = bits > least, (bits == least) & whole
    room = wanted - tl.sum(above.to(tl.int32), 0)
    take = above | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= room))
    take = take & whole & (wanted > 0)
    place = tl.cumsum(take.to(tl.int32), 0) - 1
    tl.store(chosen + (own * groups + group) * most + place, block, mask=take)
    taken = tl.sum(take.to(tl.int32), 0)
    tl.store(chosen + (own * groups + group) * most + block, -1, mask=(block >= taken) & (block < most))
    tl.store(chosen_count + own * groups + group, taken)
    rest = tl.where(whole & (take == 0), size, -float("inf"))
    tl.store(bias + (own * groups + group) * blocks + block, rest, mask=inside)


@triton.jit
def add_tile(asking, key, value, bias, best, total, found, scale, PRECISION: tl.constexpr):
    """One tile of keys into a running softmax: its bias is (columns) or (rows, columns)."""
    score = tl.dot(asking, tl.trans(key), input_precision=PRECISION) * scale + bias
    higher = tl.maximum(best, tl.max(score, 1))
    share = tl.exp2(score - higher[:, None])
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(share, 1)
    found = tl.dot(share.to(value.dtype), value, found * shrink[:, None], input_precision=PRECISION)
    return higher, total, found


@triton.jit
def attend_kernel(
    query, key, value, mean_key, mean_value, bias, slots, queries, chosen, chosen_count, always, always_count, limit,
    out, heads, repeat, groups, blocks, total, most, most_always, asked, offset, scale,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    GROUP: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
    CAUSAL: tl.constexpr, SUMMARIES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attention of one group of queries in HEADS heads that share keys: rows are heads times queries.

    key, value: in the order of the table, so that a block is BLOCK rows that follow one another
    slots:      (B, T · BLOCK), the place of each of them in the sequence, -1 for none
    """
    tile, own = tl.program_id(0), tl.program_id(1).to(tl.int64)
    group, part = tile // (repeat // HEADS), tile % (repeat // HEADS)
    batch, head = own // heads, own % heads
    row, slot, column = tl.arange(0, GROUP * HEADS), tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    index = tl.load(queries + (batch * groups + group) * GROUP + row % GROUP)
    position = tl.where(index >= 0, index + offset, -1)
    asking_head = head * repeat + part * HEADS + row // GROUP
    source = query + batch * q_batch + asking_head[:, None] * q_head + index.to(tl.int64)[:, None] * q_row
    asking = tl.load(source + column[None], mask=(index >= 0)[:, None], other=0.0)
    key += batch * k_batch + head * k_head
    value += batch * v_batch + head * v_head
    within_key, within_value = slot[:, None] * k_row + column[None], slot[:, None] * v_row + column[None]
    best = tl.full([GROUP * HEADS], NOTHING, tl.float32)
    sums = tl.zeros([GROUP * HEADS], tl.float32)
    found = tl.zeros([GROUP * HEADS, WIDTH], tl.float32)

    count = tl.load(chosen_count + own * groups + group)
    for item in range(count):
        block = tl.load(chosen + (own * groups + group) * most + item).to(tl.int64)
        place = tl.load(slots + batch * total * BLOCK + block * BLOCK + slot)
        there = (place >= 0)[:, None]
        fine_key = tl.load(key + block * BLOCK * k_row + within_key, mask=there, other=0.0)
        fine_value = tl.load(value + block * BLOCK * v_row + within_value, mask=there, other=0.0)
        hidden = tl.where(place >= 0, 0.0, -float("inf"))[None]
        best, sums, found = add_tile(asking, fine_key, fine_value, hidden, best, sums, found, scale, PRECISION)
    count = tl.load(always_count + batch * groups + group)
    for item in range(count):
        block = tl.load(always + (batch * groups + group) * most_always + item).to(tl.int64)
        place = tl.load(slots + batch * total * BLOCK + block * BLOCK + slot)
        there = (place >= 0)[:, None]
        fine_key = tl.load(key + block * BLOCK * k_row + within_key, mask=there, other=0.0)
        fine_value = tl.load(value + block * BLOCK * v_row + within_value, mask=there, other=0.0)
        if CAUSAL:
            seen = (place >= 0)[None] & (place[None] <= position[:, None])
            hidden = tl.where(seen, 0.0, -float("inf"))
        else:
            hidden = tl.where(place >= 0, 0.0, -float("inf"))[None]
        best, sums, found = add_tile(asking, fine_key, fine_value, hidden, best, sums, found, scale, PRECISION)
    if SUMMARIES:
        mean_key += own * blocks * WIDTH
        mean_value += own * blocks * WIDTH
        count = tl.load(limit + batch * groups + group)
        for first in range(0, count, BLOCK):
            block = first + slot
            there = (block < blocks)[:, None]
            within = block[:, None] * WIDTH + column[None]
            coarse_key = tl.load(mean_key + within, mask=there, other=0.0)
            coarse_value = tl.load(mean_value + within, mask=there, other=0.0)
            at = bias + (own * groups + group) * blocks + block
            size = tl.load(at, mask=block < blocks, other=-float("inf"))[None]
            best, sums, found = add_tile(asking, coarse_key, coarse_value, size, best, sums, found, scale, PRECISION)
    found = found / tl.where(sums > 0, sums, 1.0)[:, None]
    target = out + ((batch * heads * repeat + asking_head) * asked + index.to(tl.int64))[:, None] * WIDTH + column[None]
    tl.store(target, found.to(out.dtype.element_ty), mask=(index >= 0)[:, None])


@triton.jit
def decode_kernel(
    query, key, value, mean_key, mean_value, bias, slots, chosen, chosen_count, always, always_count,
    partial, parts, heads, blocks, total, most, most_always, splits, tiles, scale,
    q_batch, q_head, k_batch, k_head, k_row, v_batch, v_head, v_row,
    REPEAT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One new token: the REPEAT heads that share keys are the rows; each program reads every SPLITS-th tile.

    The tiles are the chosen blocks, the blocks that are always read, and the summaries. Rows of keys are gathered by
    `slots`: a cache stays as it is.
    """
    split, own = tl.program_id(0), tl.program_id(1).to(tl.int64)
    batch, head = own // heads, own % heads
    row, slot, column = tl.arange(0, ROWS), tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    source = query + batch * q_batch + (head * REPEAT + row)[:, None] * q_head + column[None]
    asking = tl.load(source, mask=(row < REPEAT)[:, None], other=0.0)
    key += batch * k_batch + head * k_head
    value += batch * v_batch + head * v_head
    mean_key += own * blocks * WIDTH
    mean_value += own * blocks * WIDTH
    best = tl.full([ROWS], NOTHING, tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, WIDTH], tl.float32)
    count, near_count = tl.load(chosen_count + own), tl.load(always_count + batch)
    for item in range(split, count + near_count, splits):
        far = tl.load(chosen + own * most + item, mask=item < count, other=0)
        near = tl.load(always + batch * most_always + item - count, mask=item >= count, other=0)
        block = tl.where(item < count, far, near)
        place = tl.load(slots + batch * total * BLOCK + block * BLOCK + slot).to(tl.int64)
        there = (place >= 0)[:, None]
        fine_key = tl.load(key + place[:, None] * k_row + column[None], mask=there, other=0.0)
        fine_value = tl.load(value + place[:, None] * v_row + column[None], mask=there, other=0.0)
        hidden = tl.where(place >= 0, 0.0, -float("inf"))[None]
        best, sums, found = add_tile(asking, fine_key, fine_value, hidden, best, sums, found, scale, PRECISION)
    first = (split + splits - (count + near_count) % splits) % splits  # go on with the program that has read least
    for tile in range(first, tiles, splits):
        block = tile * BLOCK + slot
        there = (block < blocks)[:, None]
        within = block[:, None] * WIDTH + column[None]
        coarse_key = tl.load(mean_key + within, mask=there, other=0.0)
        coarse_value = tl.load(mean_value + within, mask=there, other=0.0)
        size = tl.load(bias + own * blocks + block, mask=block < blocks, other=-float("inf"))[None]
        best, sums, found = add_tile(asking, coarse_key, coarse_value, size, best, sums, found, scale, PRECISION)
    at = (own * splits + split) * REPEAT + row
    tl.store(partial + at[:, None] * WIDTH + column[None], found, mask=(row < REPEAT)[:, None])
    tl.store(parts + at * 2, best, mask=row < REPEAT)
    tl.store(parts + at * 2 + 1, sums, mask=row < REPEAT)


@triton.jit
def merge_kernel(partial, parts, out, splits, REPEAT: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    """The parts of one head into its output."""
    own = tl.program_id(0).to(tl.int64)
    group, row = own // REPEAT, own % REPEAT
    split, column = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    at = (group * splits + split) * REPEAT + row
    inside = split < splits
    best = tl.load(parts + at * 2, mask=inside, other=NOTHING)
    share = tl.exp2(best - tl.max(best, 0))
    sums = tl.sum(share * tl.load(parts + at * 2 + 1, mask=inside, other=0.0), 0)
    found = tl.load(partial + at[:, None] * WIDTH + column[None], mask=inside[:, None], other=0.0)
    found = tl.sum(found * share[:, None], 0) / tl.where(sums > 0, sums, 1.0)
    tl.store(out + own * WIDTH + column, found.to(out.dtype.element_ty))
