"""Hierarchical attention: dense at fine=1, near to it where attention is peaked, and what it reads and does not."""

import math
import os
from importlib.util import find_spec

import numpy
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.conftest import poison, worst
from texturevlm_lab.attention.block_layout import FINE, UNSEEN, WHOLE, BlockLayout
from texturevlm_lab.attention.hierarchical import hierarchical_attention
from texturevlm_lab.attention.hierarchical_reference import attend, attend_one, latent_summaries, mean_summaries
from texturevlm_lab.attention.hierarchical_triton import no_triton_because
from texturevlm_lab.attention.key_value_texture import KeyValueTexture, block_means
from texturevlm_lab.attention.quadtree import quadtree_order

GPU = torch.cuda.is_available()
# The interpreter of Triton 3.6 turns arrays of one number into numbers, which NumPy 2.4 refuses.
RUNS = find_spec("triton") is not None and (GPU or tuple(map(int, numpy.__version__.split(".")[:2])) < (2, 4))
SMALL = {"block": 16, "group": 16}


def tensors(batch=1, heads=4, shared=2, length=150, width=16, *, queries=None, dtype=torch.float64, device="cpu"):
    shapes = [(heads, queries or length), (shared, length), (shared, length)]
    return [torch.randn(batch, one, size, width, dtype=dtype, device=device) for one, size in shapes]


def dense(q, k, v, mask=None, **options):
    return scaled_dot_product_attention(q, k, v, mask, enable_gqa=True, **options)


def peaked(length=512, width=32, *, dtype=torch.float64, device="cpu"):
    """Queries that attend to one of four blocks of 16 keys each, far from their own, and to nothing else."""
    q, k, v = tensors(1, 2, 1, length, width, dtype=torch.float64)
    blocks = length // 16
    k = torch.randn(1, 1, blocks, 1, width).double().expand(-1, -1, -1, 16, -1) + 0.05 * k.unflatten(2, (blocks, 16))
    k = k / k.norm(dim=-1, keepdim=True)
    wanted = (torch.arange(blocks) * 7 + blocks // 2) % 4 * (blocks // 4)
    q = 60 * k[:, :, wanted].expand(-1, 2, -1, -1, -1).flatten(2, 3)
    return [one.to(device, dtype) for one in (q, k.flatten(2, 3), v)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("visual", [None, 0, 100, 37])
def test_reading_everything_is_dense_attention(visual, causal):
    q, k, v = tensors(2)
    index = None if visual is None else torch.randperm(visual) + 9
    found = hierarchical_attention(q, k, v, visual=index, is_causal=causal, fine=1.0, **SMALL)
    assert worst(found, dense(q, k, v, is_causal=causal)) < 1e-13


@pytest.mark.parametrize("kind", ["hierarchical", "window", "linear", "latent"])
def test_later_keys_change_nothing(kind):
    """Also where a block holds keys from before and after a query: the order of blocks is not that of the sequence."""
    q, k, v = tensors()
    options = {"visual": torch.randperm(100) + 7, "is_causal": True, "fine": 0.2, "kind": kind, **SMALL}
    found = hierarchical_attention(q, k, v, **options)
    for first in (20, 77, 120):
        later = torch.arange(150)[:, None] >= first
        other = hierarchical_attention(q, k.masked_fill(later, 3.0), v.masked_fill(later, 3.0), **options)
        assert worst(other[:, :, :first], found[:, :, :first]) < 1e-12 < worst(other, found)


@pytest.mark.parametrize("kind", ["hierarchical", "window", "linear", "latent"])
def test_new_tokens_are_the_last_rows(kind):
    q, k, v = tensors(2)
    options = {"visual": torch.randperm(100) + 7, "is_causal": True, "fine": 0.2, "kind": kind, "block": 16}
    whole = hierarchical_attention(q, k, v, group=1, **options)  # a larger group may choose other blocks
    assert worst(hierarchical_attention(q[:, :, -1:], k, v, group=1, **options), whole[:, :, -1:]) < 1e-12


@pytest.mark.parametrize("rows", [1, 150])
def test_masks(rows):
    q, k, v = tensors(2)
    mask = torch.rand(2, 1, rows, 150) > 0.3
    mask[..., 0] = True
    options = {"visual": torch.arange(20, 120), **SMALL}
    wanted = dense(q, k, v, mask.expand(-1, -1, 150, -1))
    assert worst(hierarchical_attention(q, k, v, mask, fine=1.0, **options), wanted) < 1e-13
    number = torch.zeros(mask.shape).masked_fill(~mask, -math.inf)
    assert worst(hierarchical_attention(q, k, v, number, fine=1.0, **options), wanted) < 1e-13
    if rows == 1:  # hidden keys leave the means: whatever they hold changes nothing
        found = hierarchical_attention(q, k, v, mask, fine=0.1, **options)
        other = k.masked_fill(~mask.mT, 9.0), v.masked_fill(~mask.mT, 9.0)
        assert worst(hierarchical_attention(q, *other, mask, fine=0.1, **options), found) < 1e-12
        assert worst(found, wanted) > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_numbers_are_added_to_scores(causal):
    q, k, v = tensors(2)
    number = torch.randn(2, 1, 150, 150).double()
    options = {"visual": torch.arange(20, 120), "is_causal": causal, **SMALL}
    wanted = number.masked_fill(~torch.ones(150, 150).tril().bool(), -math.inf) if causal else number
    assert worst(hierarchical_attention(q, k, v, number, fine=1.0, **options), dense(q, k, v, wanted)) < 1e-13
    assert worst(hierarchical_attention(q, k, v, number, fine=0.0, **options), dense(q, k, v, wanted)) < 1e-13
    # The same number everywhere changes no share, whatever is read.
    alone = hierarchical_attention(q, k, v, torch.full((1, 1, 150, 150), -3.0), fine=1.0, **options)
    assert worst(alone, dense(q, k, v, is_causal=causal)) < 1e-12


def test_peaked_attention_needs_few_blocks():
    q, k, v = peaked()
    wanted = dense(q, k, v)

    def error(**options):
        found = hierarchical_attention(q, k, v, neighbours=0, **SMALL, **options)
        return float((found - wanted).norm() / wanted.norm())

    assert error(fine=0.1) < 0.02 < 0.2 < error(kind="window")
    assert error(kind="linear") > 10 * error(fine=0.1)


def test_the_relatives_are_in_their_order():
    """On keys that vary within a block: few directions are better than a mean, a mean is better than nothing."""
    q, k, v = tensors(1, length=256)
    options = {"fine": 0.1, "neighbours": 0, **SMALL}
    errors = {}
    for kind in ("latent", "hierarchical", "linear", "window"):
        errors[kind] = float((hierarchical_attention(q, k, v, kind=kind, **options) - dense(q, k, v)).norm())
    assert list(errors) == sorted(errors, key=lambda kind: errors[kind])
    full = hierarchical_attention(q, k, v, kind="latent", rank=16, **options)
    assert worst(full, dense(q, k, v)) < 1e-9


def test_a_summary_stands_for_all_its_tokens():
    """Equal keys and values in a block: its mean with + log n is the block itself."""
    q, k, v = tensors(length=128)
    k, v = (one[:, :, ::16].repeat_interleave(16, 2) for one in (k, v))
    found = hierarchical_attention(q, k, v, kind="linear", **SMALL)
    assert worst(found, dense(q, k, v)) < 1e-13


def test_gradients_are_those_of_dense_attention_at_full_detail():
    given = [one.requires_grad_() for one in tensors(1, length=70)]
    weight = torch.randn(1, 4, 70, 16, dtype=torch.float64)
    options = {"visual": torch.randperm(50) + 4, "is_causal": True, **SMALL}
    found = torch.autograd.grad((hierarchical_attention(*given, fine=1.0, **options) * weight).sum(), given)
    wanted = torch.autograd.grad((dense(*given, is_causal=True) * weight).sum(), given)
    assert all(worst(one, other) < 1e-12 for one, other in zip(found, wanted))


@pytest.mark.parametrize("kind", ["hierarchical", "linear"])
def test_gradients_through_summaries(kind):
    given = [one.requires_grad_() for one in tensors(1, 2, 1, 24, 2)]
    options = {"kind": kind, "visual": torch.randperm(20) + 3, "block": 4, "group": 4, "fine": 0.3, "neighbours": 0}
    chosen = hierarchical_attention(*given, **options, return_chosen=True)[1]  # a step must not choose anew
    assert torch.autograd.gradcheck(lambda *own: hierarchical_attention(*own, **options, chosen=chosen), given)


def test_another_layer_may_have_chosen():
    q, k, v = tensors()
    found, chosen = hierarchical_attention(q, k, v, fine=0.2, return_chosen=True, **SMALL)
    assert chosen.shape == (1, 2, 10, 2) and int(chosen.min()) >= 0
    assert torch.equal(hierarchical_attention(q, k, v, chosen=chosen, **SMALL), found)
    other = (chosen + 1) % 10
    assert worst(hierarchical_attention(q, k, v, chosen=other, **SMALL), found) > 1e-3


@pytest.mark.parametrize("first", [101, 112, 130])
def test_the_layout_of_a_next_token_is_that_of_its_prompt(first):
    """Samples of which one has keys that nobody attends to, more new tokens than a block has room for."""
    q, k, v = tensors(2)
    index, live = torch.randperm(100), torch.ones(2, 150, dtype=torch.bool)
    live[1, [3, 70, 100]] = False
    layout = None
    for length in range(first, 150):
        given = q[:, :, length - 1 : length], k[:, :, :length], v[:, :, :length]
        wanted = BlockLayout.of(2, 1, length, visual=index, live=live[:, :length], causal=True, **SMALL)
        layout = wanted if layout is None else layout.next_token()
        assert worst(*(hierarchical_attention(*given, layout=one, fine=0.3) for one in (layout, wanted))) < 1e-13
    with pytest.raises(ValueError, match="layout must be of one query, got 10 groups"):
        BlockLayout.of(1, 150, 150, **SMALL).next_token()


def test_a_layout_serves_all_layers():
    q, k, v = tensors(2)
    index = torch.stack([torch.randperm(100) + 7, torch.cat([torch.arange(60), torch.full((40,), -1)])])
    layout = BlockLayout.of(2, 150, 150, visual=index, causal=True, **SMALL)
    found = hierarchical_attention(q, k, v, layout=layout, fine=0.3)
    for sample, own in enumerate((index[0], index[1, :60])):
        part = [one[sample : sample + 1] for one in (q, k, v)]
        wanted = hierarchical_attention(*part, visual=own, is_causal=True, fine=0.3, **SMALL)
        if sample == 0:
            assert worst(found[:1], wanted) < 1e-13
    dense_of = dense(q, k, v, is_causal=True)
    assert worst(hierarchical_attention(q, k, v, layout=layout, fine=1.0), dense_of) < 1e-13


def test_what_a_causal_group_sees_of_a_block():
    layout = BlockLayout.of(1, 64, 64, causal=True, neighbours=0, **SMALL)
    assert layout.state[0].tolist() == [
        [FINE, UNSEEN, UNSEEN, UNSEEN],
        [WHOLE, FINE, UNSEEN, UNSEEN],
        [WHOLE, WHOLE, FINE, UNSEEN],
        [WHOLE, WHOLE, WHOLE, FINE],
    ]
    backwards = BlockLayout.of(1, 64, 64, visual=torch.arange(64).flip(0), causal=True, neighbours=None, **SMALL)
    assert backwards.state[0, 0].tolist() == [FINE, WHOLE, WHOLE, WHOLE]  # the last tokens come first


def test_text_is_always_read_and_neighbours_too():
    layout = BlockLayout.of(1, 1, 100, visual=torch.arange(80), neighbours=1, **SMALL)
    assert layout.visual == 5 and layout.state[0, 0].tolist() == [WHOLE] * 5 + [FINE] * 2
    own = BlockLayout.of(1, 100, 100, visual=torch.arange(80), neighbours=1, **SMALL)
    assert own.state[0, 2].tolist() == [WHOLE, FINE, FINE, FINE, WHOLE, FINE, FINE]


def test_quadtree_order():
    row, column = torch.meshgrid(torch.arange(4.0), torch.arange(4.0), indexing="ij")
    order = quadtree_order(torch.stack([row, column], -1).reshape(16, 2))
    assert order.tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    place = torch.tensor([[2.0, 0.5], [0.3, 3.0], [1.0, 1.0], [3.0, 1.0]])  # the last covers 2 × 2 from (2, 0)
    assert quadtree_order(place, torch.tensor([0.0, 0.0, 0.0, 1.0])).tolist() == [2, 1, 3, 0]
    picture = torch.tensor([0, 1, 1, 0])
    assert quadtree_order(place, picture=picture).tolist() == [0, 3, 2, 1]
    crop = torch.tensor([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [2.0, 1.0], [-0.3, 0.0]])  # the root is the image's corner
    assert quadtree_order(crop).tolist() == [4, 0, 1, 2, 3]


def test_the_levels_of_keys_and_values():
    _, k, v = tensors(2, length=300)
    texture = KeyValueTexture.of(k, v, block=16)
    assert [level.count.shape[1] for level in texture.levels] == [19, 5, 2, 1]
    assert worst(texture.levels[-1].key, k.mean(2, keepdim=True)) < 1e-14
    assert worst(texture.levels[1].value[:, :, 4:], v[:, :, 256:].mean(2, keepdim=True)) < 1e-14
    assert texture.levels[0].count[0, -1] == 300 % 16
    k, v = (torch.zeros(1, 8, 65536, 128, dtype=torch.bfloat16, device="meta") for _ in range(2))
    assert KeyValueTexture.of(k, v).bytes < 0.05 * 2 * k.numel() * 2


def test_known_summaries_are_used():
    q, k, v = tensors()
    texture = KeyValueTexture.of(k, v, block=16)
    wanted = hierarchical_attention(q, k, v, fine=0.1, **SMALL)
    assert torch.equal(hierarchical_attention(q, k, v, texture=texture, fine=0.1, **SMALL), wanted)
    other = KeyValueTexture.of(k, v + 1, block=16)
    assert worst(hierarchical_attention(q, k, v, texture=other, fine=0.1, **SMALL), wanted) > 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fine": 1.5}, "hierarchical_attention: fine must be between 0 and 1, got 1.5"),
        ({"fine": -0.1}, "fine must be between 0 and 1"),
        ({"block": 48}, "block must be a power of two, got 48"),
        ({"kind": "sparse"}, "kind must be one of hierarchical, window, linear, latent, got 'sparse'"),
        ({"mask": torch.ones(1, 4, 20, 20, dtype=torch.bool)}, r"mask must be \(1 or 1, 1, 20 or 1, 20\), got \(1, 4,"),
        ({"mask": torch.ones(1, 1, 20, 21, dtype=torch.bool)}, r"mask must be .* got \(1, 1, 20, 21\)"),
        ({"visual": torch.tensor([0, 20])}, "visual must be indices of 20 keys, or -1, got 0 to 20"),
        ({"visual": torch.ones(20, dtype=torch.bool)}, r"visual must be indices \(n,\) or \(B, n\), got torch.bool"),
        ({"visual": torch.tensor([3, 7, 3])}, "visual must name each key once, got one that is named again"),
        ({"block": 0}, "hierarchical_attention: block must be at least 1, got 0"),
        ({"kind": "latent", "rank": 65}, "rank must be between 1 and 64, got 65"),
        ({"backend": "cuda"}, "backend must be one of auto, reference, triton"),
        ({"neighbours": -1}, "neighbours must be at least 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        hierarchical_attention(*tensors(length=20), **options)


def test_bad_tensors():
    q, k, v = tensors(length=20)
    with pytest.raises(ValueError, match="q must have a multiple of the 2 heads of k, got 3"):
        hierarchical_attention(q[:, :3], k, v)
    with pytest.raises(ValueError, match="q must be the last of the 10 tokens of k, got 20"):
        hierarchical_attention(q, k[:, :, :10], v[:, :, :10])
    layout = BlockLayout.of(1, 20, 20, **SMALL)
    with pytest.raises(ValueError, match="layout must be for 20 keys, 1 samples and 3 queries, got one for 20 keys"):
        hierarchical_attention(q[:, :, -3:], k, v, layout=layout)
    with pytest.raises(ValueError, match="layout must be for 20 keys, 2 samples"):
        hierarchical_attention(*tensors(2, length=20), layout=layout)
    with pytest.raises(ValueError, match=r"chosen must be \(1, 2, 2, C\), got \(1, 2, 3, 1\)"):
        hierarchical_attention(q, k, v, layout=layout, chosen=torch.zeros(1, 2, 3, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"texture must be \(1, 2, 2, 16\), got \(1, 2, 1, 16\)"):
        hierarchical_attention(q, k, v, layout=layout, texture=KeyValueTexture.of(k, v))
    with pytest.raises(TypeError, match=r"k must be floating point, got torch\.int64"):
        hierarchical_attention(q, k.long(), v)
    with pytest.raises(TypeError, match=r"mask must be floating point, got torch\.int64"):
        hierarchical_attention(q, k, v, torch.ones(1, 1, 20, 20).long())
    with pytest.raises(TypeError, match=r"visual must be a tensor \(n,\) or \(B, n\), got list"):
        hierarchical_attention(q, k, v, visual=[1, 2])
    with pytest.raises(TypeError, match="hierarchical_attention: fine must be a number, got 'a tenth'"):
        hierarchical_attention(q, k, v, fine="a tenth")
    with pytest.raises(TypeError, match="hierarchical_attention: fine must be a number, got True"):
        hierarchical_attention(q, k, v, fine=True)
    with pytest.raises(ValueError, match="backend 'triton' cannot run here: the tensors are on cpu"):
        hierarchical_attention(q, k, v, backend="triton")


@pytest.mark.parametrize("kind", ["hierarchical", "window", "latent"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_one_query_is_the_same_by_sdpa(kind, dtype):
    """With padding, text before and behind, a block that is named twice, and blocks that the rule would not choose."""
    q, k, v = tensors(2, queries=1, dtype=dtype)
    live = torch.ones(2, 150, dtype=torch.bool)
    live[1, :40] = False
    layout = BlockLayout.of(2, 1, 150, visual=torch.randperm(100) + 9, live=live, causal=True, **SMALL)
    level = block_means(k, v, layout.table, layout.block)
    chosen = torch.tensor([[5, 2, -1], [0, 0, 6]], dtype=torch.int32).view(1, 2, 1, 3).expand(2, -1, -1, -1)
    made = {"hierarchical": lambda: mean_summaries(level), "latent": lambda: latent_summaries(k, v, layout, 2)}
    summaries = made.get(kind, lambda: None)()
    found = attend_one(q, k, v, layout, chosen, summaries, scale=0.3)
    wanted = attend(q, k, v, layout, chosen, summaries, scale=0.3).to(dtype)
    assert found.dtype == dtype and worst(found, wanted) < (1e-6 if dtype == torch.float64 else 1e-2)
    other = attend(q, k, v, layout, chosen * 0, summaries, scale=0.3)
    assert worst(found, other) > 1e-2


# The kernels: on a GPU; without one in Triton's interpreter, where that is installed.


@pytest.fixture
def device(monkeypatch):
    if not RUNS:
        pytest.skip("needs Triton, and NumPy before 2.4 where there is no GPU")
    if not GPU:
        monkeypatch.setitem(os.environ, "TRITON_INTERPRET", "1")
    return "cuda" if GPU else "cpu"


CLOSE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2.5e-2}
KERNEL_CASES = [  # batch, heads, shared heads, length, visual tokens, text in front
    (1, 2, 1, 100, 100, 0),
    (2, 4, 2, 150, 100, 7),
    (1, 4, 1, 77, 40, 37),
]


GPU_CASES = [  # Triton compiles for each: a few that differ in all respects
    ((2, 8, 2, 1500, 1463, 0), True, "hierarchical", torch.bfloat16),
    ((2, 8, 2, 1500, 1463, 37), False, "hierarchical", torch.float16),
    ((1, 4, 4, 1037, 1000, 37), True, "hierarchical", torch.float32),
    ((1, 4, 4, 1037, 1000, 0), False, "linear", torch.bfloat16),
    ((2, 32, 8, 777, 777, 0), False, "hierarchical", torch.bfloat16),
    ((2, 32, 8, 777, 777, 0), True, "window", torch.float16),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "causal", "kind", "dtype"), GPU_CASES)
def test_the_kernels_on_a_gpu(device, case, causal, kind, dtype):
    compare(device, case, causal, kind, dtype, width=128, block=64, group=64)


@pytest.mark.parametrize("kind", ["hierarchical", "window", "linear"])
@pytest.mark.parametrize(("case", "causal"), list(zip(KERNEL_CASES, (True, True, False))))
def test_the_kernels(device, case, causal, kind):
    compare(device, case, causal, kind, torch.float32, width=16, **SMALL)


@pytest.mark.parametrize("kind", ["hierarchical", "window"])
def test_heads_of_other_widths_are_filled_up(device, kind):
    """72 and 80 are those of vision towers."""
    compare(device, KERNEL_CASES[1], False, kind, torch.float32, width=20, **SMALL)


def test_layers_that_share_a_choice_by_the_kernels(device):
    """A choice of the last call is taken as it is, an earlier one is prepared again: both give the same."""
    first, other = (tensors(2, queries=1, dtype=torch.float32, device=device) for _ in range(2))
    layout = BlockLayout.of(2, 1, 150, visual=torch.randperm(100) + 9, causal=True, device=device, **SMALL)
    options = {"layout": layout, "fine": 0.3, "backend": "triton", "return_chosen": True}
    _, chosen = hierarchical_attention(*first, **options)
    last, again = hierarchical_attention(*other, **options, chosen=chosen)
    assert torch.equal(again, chosen)
    copied = hierarchical_attention(*other, **options, chosen=chosen.clone())[0]
    wanted = hierarchical_attention(*other, **options | {"backend": "reference"}, chosen=chosen)[0]
    assert worst(last, wanted) < 2e-5 and worst(copied, wanted) < 2e-5
    kept = chosen.clone()
    hierarchical_attention(*other, **options)
    assert torch.equal(chosen, kept)  # it is the caller's
    assert worst(hierarchical_attention(*other, **options, chosen=chosen)[0], wanted) < 2e-5


def compare(device, case, causal, kind, dtype, *, width, **sizes):
    """Prefill and one new token against the reference in float64, with the blocks that the kernel chose."""
    batch, heads, shared, length, visual, front = case
    q, k, v = tensors(batch, heads, shared, length, width, dtype=dtype, device=device)
    index = None if visual == length else torch.randperm(visual, device=device) + front
    options = {"visual": index, "is_causal": causal, "fine": 0.25, "kind": kind, "return_chosen": True, **sizes}
    for queries in (length, 1):
        given = q[:, :, -queries:], k, v
        if device == "cuda":
            poison()
        found, chosen = hierarchical_attention(*given, backend="triton", **options)
        exact = [one.double() for one in given]
        wanted, own = hierarchical_attention(*exact, backend="reference", **options)
        same = hierarchical_attention(*exact, backend="reference", **options | {"chosen": chosen})[0]
        assert worst(found, same) < CLOSE[dtype]
        again = hierarchical_attention(*given, backend="triton", **options | {"chosen": own})[0]
        assert worst(again, wanted) < CLOSE[dtype]
        agree = (chosen.sort(-1).values == own.sort(-1).values).double().mean() if chosen.numel() else 1.0
        assert agree > (0.999 if dtype == torch.float32 else 0.9)


def test_the_kernels_at_full_detail_and_their_gradients(device):
    given = [one.requires_grad_() for one in tensors(1, 4, 2, 70, dtype=torch.float32, device=device)]
    options = {"visual": torch.randperm(50, device=device) + 4, "is_causal": True, "backend": "triton", **SMALL}
    found = hierarchical_attention(*given, fine=1.0, **options)
    wanted = dense(*given, is_causal=True)
    assert worst(found, wanted) < 2e-5
    weight = torch.randn_like(found)
    pairs = zip(torch.autograd.grad((found * weight).sum(), given), torch.autograd.grad((wanted * weight).sum(), given))
    assert all(worst(one, other) < 1e-4 for one, other in pairs)


def test_gradients_of_the_kernels_go_through_known_summaries(device):
    """As in a model that keeps them with its cache."""
    given = [one.requires_grad_() for one in tensors(1, 4, 2, 70, dtype=torch.float32, device=device)]
    options = {"fine": 0.3, "neighbours": 0, "return_chosen": True, **SMALL}
    chosen = hierarchical_attention(*given, backend="triton", **options)[1]
    weight, found = torch.randn(1, 4, 70, 16, device=device), []
    for backend, known in (("triton", True), ("triton", False), ("reference", False)):
        level = block_means(*given[1:], BlockLayout.of(1, 70, 70, device=device, **SMALL).table, SMALL["block"])
        texture = KeyValueTexture(level, SMALL["block"]) if known else None
        out = hierarchical_attention(*given, backend=backend, texture=texture, **options | {"chosen": chosen})[0]
        found.append(torch.autograd.grad((out * weight).sum(), given))
    for one, other, wanted in zip(*found):
        assert worst(one, wanted) < 1e-4 and worst(other, wanted) < 1e-4


@pytest.mark.gpu
def test_peaked_attention_on_a_gpu(device):
    q, k, v = peaked(2048, 128, dtype=torch.bfloat16, device=device)
    wanted = dense(q, k, v).double()
    found = hierarchical_attention(q, k, v, fine=0.1, neighbours=0, backend="triton", **SMALL).double()
    assert float((found - wanted).norm() / wanted.norm()) < 0.02


@pytest.mark.gpu
def test_summaries_by_the_kernel():
    _, k, v = tensors(2, shared=3, length=300, width=64, dtype=torch.bfloat16, device="cuda")
    table = torch.full((2, 320), -1, dtype=torch.int32, device="cuda")
    table[0, :300], table[1, 3:250] = torch.randperm(300).int(), torch.randperm(300).int()[:247]
    found, wanted = KeyValueTexture.of(k, v, table=table).finest, block_means(k.double(), v.double(), table, 64)
    assert worst(found.key, wanted.key) < 2e-3 and worst(found.value, wanted.value) < 2e-3
    assert torch.equal(found.count, wanted.count)


def test_padding_asks_nothing(device):
    """Its output is zero, and the tokens behind it are as without it."""
    q, k, v = tensors(1, dtype=torch.float32, device=device)
    live = torch.arange(150, device=device)[None] >= 37
    visual = torch.randperm(80, device=device) + 50
    options = {"causal": True, "padded": True, "device": device, **SMALL}
    padded = BlockLayout.of(1, 150, 150, visual=visual, live=live, **options)
    alone = BlockLayout.of(1, 113, 113, visual=visual - 37, **options)
    for backend in ("reference", "triton"):
        found = hierarchical_attention(q, k, v, layout=padded, fine=0.2, backend=backend)
        wanted = hierarchical_attention(*(one[:, :, 37:] for one in (q, k, v)), layout=alone, fine=0.2, backend=backend)
        assert worst(found[:, :, 37:], wanted) < 2e-5 and not found[:, :, :37].any()


def test_why_the_kernels_do_not_run(device):
    q, k, v = tensors(dtype=torch.float32, device=device)
    layout = BlockLayout.of(1, 150, 150, device=device, **SMALL)
    assert no_triton_because(q, k, v, layout, "hierarchical", False) is None
    assert "latent" in no_triton_because(q, k, v, layout, "latent", False)
    assert "not float64" in no_triton_because(q.double(), k, v, layout, "hierarchical", False)
    assert "heads of" in no_triton_because(q[..., :10], k, v, layout, "hierarchical", False)
    small = BlockLayout.of(1, 150, 150, device=device, block=8)
    assert "not 8 and 64" in no_triton_because(q, k, v, small, "hierarchical", False)
