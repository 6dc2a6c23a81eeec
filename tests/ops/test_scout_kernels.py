"""The scout's kernels, each against the PyTorch code that it stands in for, in float64."""

import pytest
import torch
from torch.nn import functional

from tests.conftest import TOLERANCE, poison, worst
from tests.scout.networks import lively, random_spots
from texturevlm.channels.structure import LUMA
from texturevlm.cuda.struct import definitions
from texturevlm.scout import fused as kernels
from texturevlm.scout import question, ranker, spotter
from texturevlm.scout.fused import Fused
from texturevlm.scout.question import encode
from texturevlm.scout.scout import _grey
from texturevlm.scout.spotter import folded
from texturevlm.text.strings import ASKED, KINDS

WIDTHS = (8, 12, 16)
QUESTIONS = ["What is the total amount of the invoice dated 14 March 1998?", "", "Who signed? ÄÖ#%x " + "w" * 40]
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ON_GPU = [pytest.param("cuda", dtype, marks=pytest.mark.gpu, id=f"gpu-{str(dtype)[6:]}") for dtype in DTYPES]
EVERYWHERE = pytest.mark.parametrize(("device", "dtype"), [pytest.param("cpu", torch.float32, id="cpu"), *ON_GPU])


def near(found, wanted, dtype=torch.float32, *, times=5):
    return worst(found, wanted) < times * TOLERANCE["cuda", dtype] * max(1.0, float(wanted.abs().max()))


@pytest.fixture(autouse=True)
def on_device(request):
    """On a CPU launches are emulated; on a GPU new memory is NaN."""
    if request.node.get_closest_marker("gpu"):
        poison()
    elif "device" in request.fixturenames:
        request.getfixturevalue("emulated")


def networks(device, dtype, **options):
    """Networks folded and rounded to `dtype`, laid out for the kernels; and the same numbers in float64."""
    made = folded(lively(spotter.Spotter())).to(dtype), folded(lively(ranker.Ranker(WIDTHS, **options))).to(dtype)
    for name in ("steps", "absent"):
        getattr(made[1], name).mul_(1.1)
    laid = Fused(*made).to(device)
    exact = folded(lively(spotter.Spotter())), folded(lively(ranker.Ranker(WIDTHS, **options)))
    for one, other in zip(exact, made):
        one.load_state_dict(other.state_dict())
    return laid, *(one.double() for one in exact)


def by_map(worth):
    """(B, MAPS, 2 K), half of it zero, as PyTorch multiplies by it → (B, MAPS, K)."""
    sure, vague = worth[:, : ranker.SURE], worth[:, ranker.SURE :]
    assert sure[..., question.WORDS :].eq(0).all() and vague[..., : question.WORDS].eq(0).all()
    return torch.cat([sure[..., : question.WORDS], vague[..., question.WORDS :]], 1)


def channels_last(values):
    return values.contiguous(memory_format=torch.channels_last)


@EVERYWHERE
@pytest.mark.parametrize(
    ("size", "seen"),
    [((44, 56), (48, 64)), ((1, 1), (16, 16)), ((100, 150), (48, 80)), ((300, 10), (16, 16)), ((33, 260), (32, 256))],
)
def test_what_is_seen(device, dtype, size, seen):
    wide = torch.rand(2, 4, *size, device=device)
    for colours in (wide[:, :3], wide[:, 1:2].expand(-1, 3, -1, -1), wide.mT.contiguous().mT[:, 1:]):
        found = kernels.prepare_cells(colours, seen, dtype)()
        wanted = functional.pixel_unshuffle(1 - 2 * _grey(colours.cpu().double(), seen), 4)
        assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)
        assert near(found, wanted, dtype)


def test_half_precision_images_are_seen_as_they_are(emulated):
    image = torch.rand(1, 3, 40, 40).half()
    found = kernels.prepare_cells(image, (32, 32), torch.float32)()
    assert near(found, functional.pixel_unshuffle(1 - 2 * _grey(image, (32, 32)), 4))


@EVERYWHERE
def test_a_question(device, dtype):
    laid, spots, ranks = networks(device, dtype)
    letters, traits, asked = encode(QUESTIONS)
    traits = traits * (torch.rand(len(QUESTIONS), question.WORDS, 1) + 0.5)  # a word may be there in part
    found = laid.question(question.Question(*(part.to(device) for part in (letters, traits, asked))))
    traits = traits.double()
    words = spots.question(letters, traits)
    wanted = ranks.question(words, traits, asked.double())
    kernels.lay_films(found)
    assert all(part.dtype == torch.float32 for part in found[:3])
    assert near(found.words, words)
    weights = found.worth.cpu().mT
    assert near(weights, by_map(wanted.worth))
    films = torch.cat([part.flatten(1) for film in wanted.films for part in film], 1)
    assert near(found.films, films)
    assert found.words[1].eq(0).all() and found.worth[1].eq(0).all() and not found.words[0].eq(0).all()


@EVERYWHERE
@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 18), (10, 14), (70, 6), (6, 74)])
@pytest.mark.parametrize("count", [1, 2])
def test_what_the_network_is_given(device, dtype, rows, columns, count):
    laid, _, ranks = networks(device, dtype)
    ranks.last.weight.zero_(), ranks.last.bias.zero_()  # what is left is what needs no network
    words = functional.normalize(torch.randn(count, question.WORDS, spotter.EMBEDDING), dim=2)
    traits, asked = torch.rand(count, question.WORDS, question.TRAITS), torch.rand(count, len(ASKED))
    spots = spotter.Spots(*(part.to(dtype) for part in random_spots(2, rows, columns)))
    spots.words[:, :, 0, 0] = words[:, 3].to(dtype)  # found, and no other by chance
    sought = ranks.question(words.double(), traits.double(), asked.double())
    exact = spotter.Spots(*(part.double() for part in spots))
    exact = exact._replace(words=functional.normalize(exact.words, dim=1))
    given = []
    ranks.enter[0].register_forward_pre_hook(lambda module, values: given.append(values[0]))
    sought = sought._replace(words=sought.words.expand(2, -1, -1), worth=sought.worth.expand(2, -1, -1))
    scores = ranks.rank(exact, sought)[:, :-1].view(2, rows, columns)

    worth = by_map(sought.worth)[:count].mT
    real = laid.question(question.Question(*(part.to(device) for part in encode(QUESTIONS[:count]))))
    kernels.lay_films(real)
    films = real.films.clone()
    real.films.fill_(torch.nan)
    words, worth = (part.float().to(device).contiguous() for part in (words, worth))
    packed = real._replace(words=words, worth=worth)
    head = channels_last(torch.cat([spots.words * 2, spots.text[:, None], spots.height[:, None], spots.kinds], 1))
    for form in (spots, spotter.as_spots(head)):
        given_to = tuple(part.to(device) for part in form)
        maps, shown, found = kernels.spot_inputs(given_to, packed, (laid.steps, laid.seen, laid.direct), pitch=80)
        assert torch.equal(real.films, films)
        assert maps.shape == (2, 80, rows // 2, columns // 2) and maps.is_contiguous(memory_format=torch.channels_last)
        assert near(maps[:, : ranker.RANKER_INPUTS], given[0], dtype) and maps[:, ranker.RANKER_INPUTS :].eq(0).all()
        assert near(shown, exact.text.sigmoid()) and near(found, scores)


@EVERYWHERE
@pytest.mark.parametrize("size", [(1, 1), (5, 3), (18, 14)])
@pytest.mark.parametrize("count", [1, 2])
def test_films(device, dtype, size, count):
    values, films = torch.randn(2, 12, *size).to(dtype), torch.randn(count, 31)
    factor, shift = (films[:, start : start + 12, None, None].double() for start in (5, 17))
    wanted = functional.relu(shift + factor * values.double())
    assert near(kernels.film_(channels_last(values.to(device)), films.to(device), 5), wanted, dtype)


@EVERYWHERE
@pytest.mark.parametrize("size", [(1, 1), (2, 2), (3, 5), (35, 27), (18, 8)])
def test_a_coarser_scale_is_added(device, dtype, size):
    values, coarse = (
        torch.randn(2, 12, *size).to(dtype),
        torch.randn(2, 16, *(-(-side // 2) for side in size)).to(dtype),
    )
    weight, added = torch.randn(12, 16).to(dtype), torch.randn(12).to(dtype)
    lifted = functional.conv2d(coarse.double(), weight.double()[..., None, None], added.double())
    wanted = values.double() + functional.interpolate(lifted, size, mode="nearest")
    parts = (channels_last(values), channels_last(coarse), weight.mT.contiguous(), added)
    found = kernels.lift_(*(part.to(device) for part in parts))
    assert near(found, wanted, dtype)


@EVERYWHERE
@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (10, 14), (34, 38)])
def test_chances(device, dtype, rows, columns):
    values = torch.randn(2, 12, rows // 2, columns // 2).to(dtype)
    last, added = torch.randn(4, 12), torch.randn(5)
    shown, direct = torch.rand(2, rows, columns), torch.randn(2, rows, columns) * 3 - 50  # softmax knows no offset
    added[4] -= 50
    made = functional.conv2d(values.double(), last.double()[..., None, None], added[:4].double())
    scores = functional.pixel_shuffle(made, 2)[:, 0] + direct.double()
    every = torch.cat([scores.flatten(1), added[4].double().expand(2, 1)], 1).softmax(1)
    wanted = every[:, :-1].view(2, rows, columns) * shown.double()
    parts = (channels_last(values), last, added, shown, direct)
    found = kernels.chances(*(part.to(device) for part in parts))
    assert found.dtype == torch.float32 and worst(found, wanted) < 2e-5 * float(wanted.max())


def starts():
    """Where each part of what the network is given begins."""
    counts = list(ranker.INPUT_MAPS.values())
    return {f"{name.upper()}_AT": sum(counts[:index]) for index, name in enumerate(ranker.INPUT_MAPS) if index}


def named(module, *names):
    return {name: getattr(module, name) for name in names}


CONSTANTS = {
    "scout_page.cu": {
        **named(spotter, "STEM"),
        "RED": LUMA[0],
        "GREEN": LUMA[1],
        "BLUE": LUMA[2],
    },
    "scout_question.cu": {
        **named(question, "SYMBOLS", "LONGEST", "PARTS", "PAIRS"),
        **named(question, "WORDS", "TRAITS"),
        **named(spotter, "EMBEDDING", "INNER"),
        **named(ranker, "STEER"),
        "MAPS": ranker.SURE + ranker.VAGUE,
        "WEIGHING": ranker.Ranker().worth[0].out_features,
    },
    "scout_spots.cu": {
        **named(ranker, "SURE", "VAGUE"),
        "SEEN": ranker.SEEN_MAPS,
        "INPUTS": ranker.RANKER_INPUTS,
        **named(question, "WORDS"),
        **named(spotter, "EMBEDDING"),
        **starts(),
        "KINDS": len(KINDS),
    },
}


@pytest.mark.parametrize("source", CONSTANTS)
def test_the_kernels_constants_are_the_networks(source):
    known, wanted = definitions(source).constants, CONSTANTS[source]
    assert {name: known[name] for name in wanted} == pytest.approx(wanted)
    assert len(ASKED) <= kernels.MOST_ASKED and 2 * spotter.SPOT % kernels.DOWN == 0
