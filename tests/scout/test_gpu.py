"""On a GPU: the same map as on a CPU within half precision, captured and not, and one graph for every question."""

from pathlib import Path

import pytest
import torch

from tests.conftest import poison, worst
from tests.scout.networks import shipped
from texturevlm.cuda.graph import Replay
from texturevlm.ops import backend
from texturevlm.placement import TokenConfig
from texturevlm.placement.captured import CompiledChooser, compile
from texturevlm.scout import Question, encode, load_scout
from texturevlm.types import Texture

pytestmark = pytest.mark.gpu
INVOICE = Path(__file__).parents[2] / "examples" / "invoice.png"
TOTAL, OTHER = "What is the total due?", "Who is the chairman of the committee?"
COLUMNS = ("centre", "ddx", "ddy", "score", "valid", "source")


@pytest.fixture(scope="module")
def page():
    return Texture.open(INVOICE, device="cuda").mipmapped()


def asked(question):
    return Question(*(part.cuda() for part in encode([question])))


def test_it_is_the_scout_of_the_cpu(page):
    scout, exact = load_scout(device="cuda"), shipped()
    assert scout.dtype == torch.float16 and scout is load_scout(device=page.device)
    spots, wanted = scout.read(page), exact.read(page.to("cpu"))
    assert worst(spots.text.sigmoid(), wanted.text.sigmoid()) < 0.05
    assert torch.cosine_similarity(spots.words.float().cpu(), wanted.words, dim=1).min() > 0.98
    for question in (TOTAL, OTHER, ""):
        found, right = scout.where(spots, question).cpu(), exact.where(wanted, question)
        assert found.isfinite().all() and (found - right).abs().sum() < 0.05 and found.argmax() == right.argmax()


def test_the_question_beside_the_page_is_the_question_after_it(page):
    scout = load_scout(device="cuda")
    for question in (TOTAL, OTHER):
        wanted = scout.where(scout.read(page), question)
        assert worst(scout(page, asked(question)), wanted) < 3e-3  # `look` rounds its words once more
    half = Texture(tuple(level.half() for level in page.levels))  # which is converted before anything is launched
    assert worst(scout(half, asked(OTHER)), scout.where(scout.read(half), OTHER)) < 3e-3
    two = Texture(tuple(level.expand(2, -1, -1, -1).contiguous() for level in page.levels))
    assert worst(scout(two, asked(OTHER))[1], wanted[0]) < 3e-3


@pytest.mark.parametrize("size", [(2200, 1700), (1100, 850), (600, 1000), (90, 2000), (48, 16), (333, 217)])
def test_pages_of_any_size(size):
    """In float32 little but the kernels differs from the CPU; in half precision all is rounded."""
    image = torch.nn.functional.interpolate(Texture.open(INVOICE).levels[0], size, mode="bilinear", antialias=True)
    exact, precise, scout = shipped(), shipped().cuda(), load_scout(device="cuda")
    plain = Texture.open(image).mipmapped()
    texture = Texture.open(image.cuda()).mipmapped()
    for question in (TOTAL, OTHER, ""):
        wanted = exact(plain, encode([question]))
        poison()
        for found, far in ((precise(texture, asked(question)), 0.03), (scout(texture, asked(question)), 0.05)):
            assert found.shape == wanted.shape and found.dtype == torch.float32 and found.isfinite().all()
            assert (found.cpu() - wanted).abs().sum() < far


def test_pages_at_once_are_pages_one_by_one(page):
    scout = load_scout(device="cuda")
    turned = Texture(tuple(level.flip(3) for level in page.levels))
    both = Texture(tuple(torch.cat([one, other]) for one, other in zip(page.levels, turned.levels)))
    each = Question(*(torch.cat(parts) for parts in zip(asked(TOTAL), asked(OTHER))))
    together, shared = scout(both, each), scout(both, asked(OTHER))
    for row, (texture, question) in enumerate(((page, TOTAL), (turned, OTHER))):
        assert worst(together[row], scout(texture, asked(question))[0]) < 3e-3
        assert worst(shared[row], scout(texture, asked(OTHER))[0]) < 3e-3
    assert worst(together[0], together[1]) > 1e-2


def test_it_goes_by_kernels_and_would_by_pytorch(page, monkeypatch):
    scout = load_scout(device="cuda")
    assert scout.fused.can_run(page.levels[0])
    found = scout(page, asked(TOTAL))
    monkeypatch.setattr(backend, "no_kernel_because", lambda tensor: "it is forbidden")
    assert not scout.fused.can_run(page.levels[0])
    assert (scout(page, asked(TOTAL)) - found).abs().sum() < 0.03


def test_the_same_again_to_the_last_bit(page):
    scout = load_scout(device="cuda")
    first = scout(page, asked(TOTAL))
    assert all(torch.equal(scout(page, asked(TOTAL)), first) for _ in range(5))


def test_captured_it_is_the_same_whatever_was_freed_meanwhile(page):
    scout = load_scout(device="cuda")
    replay = Replay(lambda *parts: (scout(page, Question(*parts)),), list(asked(TOTAL)))
    assert replay.reason is None
    plain = {question: scout(page, asked(question)) for question in (TOTAL, OTHER)}
    assert worst(plain[TOTAL], plain[OTHER]) > 1e-3
    for question, wanted in plain.items():
        assert worst(replay(*asked(question))[0], wanted) < 1e-4
    torch.cuda.synchronize()
    poison()
    for question, wanted in plain.items():
        assert worst(replay(*asked(question))[0], wanted) < 1e-4


def test_one_graph_for_an_image_and_any_question(page):
    image = page.levels[0]
    size = (image.shape[2], image.shape[3])
    captured = compile(size, 273, "auto", relevance="scout")
    plain = CompiledChooser(TokenConfig(273, "auto", "scout"), 0)
    chosen = []
    for question in (TOTAL, OTHER):
        got, wanted = captured(image, question), plain(image, question)
        assert captured.reason is None and plain.reason == "graphs=0 was asked for"
        assert all(torch.equal(getattr(got.allocation, name), getattr(wanted.allocation, name)) for name in COLUMNS)
        assert torch.equal(got.pixels, wanted.pixels)
        chosen.append(got.allocation.centre)
    assert captured.captured == [tuple(image.shape)] and not torch.equal(*chosen)
