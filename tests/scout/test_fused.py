"""The scout by kernels is the scout by PyTorch: whole pages and questions, the kernels' code run by the emulator."""

import pytest
import torch

from tests.conftest import worst
from tests.scout.networks import lively, shipped
from tests.sources import kernels as kernels_in
from texturevlm.cuda import compiler
from texturevlm.scout import Question, encode
from texturevlm.scout import fused as kernels
from texturevlm.scout.ranker import INPUT_MAPS, Ranker
from texturevlm.scout.scout import Scout
from texturevlm.scout.spotter import Spots, Spotter
from texturevlm.types import Texture

WIDTHS = (8, 12, 16)
TOTAL, OTHER = "What is the total amount?", "Who is the chairman of the committee?"


@pytest.fixture
def launches(request):
    """From its call on tensors pass for tensors on a GPU; it returns how often each kernel was started."""
    return lambda: request.getfixturevalue("emulated").launches


@pytest.mark.parametrize("size", [(16, 16), (100, 140), (40, 330), (180, 52)])
def test_pages_and_questions(launches, size):
    scout, texture = shipped(), Texture.open(torch.rand(2, 3, *size)).mipmapped()
    asked = [encode([TOTAL]), encode([OTHER, ""])]
    spots = scout.read(texture)
    wanted = [scout.where(spots, one) for one in asked]
    made = launches()
    found = scout.read(texture)
    assert all(worst(one, other) < 1e-4 for one, other in zip(found, spots))
    for question, right in zip(asked, wanted):
        for given in (found, scout.read(texture, for_where=True)):
            assert worst(scout.where(given, question), right) < 1e-4 * float(right.max())
        assert worst(scout(texture, question), right) < 1e-4 * float(right.max())
    wanted = (kernels_in(source) for source in compiler.SOURCES if source.startswith("scout"))
    assert set(made) == {name for kernels_of_source in wanted for name in kernels_of_source}


def test_many_pages_go_through_the_convolutions_in_parts(launches, monkeypatch):
    scout = Scout(lively(Spotter()), lively(Ranker(WIDTHS)))
    texture = Texture.open(torch.rand(5, 3, 48, 64)).mipmapped()
    seen, features = [], scout.spotter.features
    monkeypatch.setattr(scout.spotter, "features", lambda cells: seen.append(len(cells)) or features(cells))
    launches()
    whole = scout.read(texture)
    scout.fused.pages_at_once = 2
    parts = scout.read(texture)
    assert seen == [5, 2, 2, 1] and all(worst(one, other) < 1e-5 for one, other in zip(parts, whole))


def test_a_page_and_a_question_take_few_launches(launches):
    scout = Scout(lively(Spotter()), lively(Ranker(WIDTHS)))
    made = launches()
    scout.where(scout.read(Texture.open(torch.rand(1, 3, 48, 64))), TOTAL)
    once = ("page", "words", "films", "inputs", "along", "scores", "chance")
    assert made == {**{f"scout_{name}": 1 for name in once}, "scout_film": 3, "scout_lift": 2}


@pytest.mark.parametrize(
    "without", [("along",), ("seen", "text"), tuple(name for name in INPUT_MAPS if name != "hits")]
)
def test_what_is_left_out_is_not_looked_at(launches, without):
    scout = Scout(lively(Spotter()), lively(Ranker(WIDTHS, without=without)))
    spots = scout.read(Texture.open(torch.rand(1, 3, 48, 96)))
    wanted = scout.where(spots, TOTAL)
    assert launches() == {}
    assert worst(scout.where(spots, TOTAL), wanted) < 1e-4 * float(wanted.max())


def test_what_the_kernels_cannot_take_goes_by_pytorch(launches):
    scout = Scout(lively(Spotter()), lively(Ranker((8, 12, 18))))
    texture = Texture.open(torch.rand(1, 3, 48, 64))
    wanted = scout.where(scout.read(texture), TOTAL)
    made = launches()
    assert torch.equal(scout.where(scout.read(texture), TOTAL), wanted) and not made


def test_it_shares_the_networks_and_moves_with_them():
    scout = Scout(lively(Spotter()), lively(Ranker(WIDTHS)))
    assert scout.fused.spotter is scout.spotter and not any("fused.head" in name for name in scout.state_dict())
    moved = scout.to("meta")
    assert all(buffer.device.type == "meta" for buffer in moved.fused.buffers())
    assert moved.fused.enter.weight.is_meta and moved.fused.enter.bias is not None


def test_the_plain_way_is_not_touched_on_a_cpu(monkeypatch):
    monkeypatch.setattr(kernels, "launch", lambda *_, **__: pytest.fail("a kernel was started"))
    scout = Scout(lively(Spotter()), lively(Ranker(WIDTHS)))
    texture, asked = Texture.open(torch.rand(2, 3, 48, 64)), encode([TOTAL])
    spots = scout.read(texture)
    torch.testing.assert_close(spots.words.norm(dim=1), torch.ones_like(spots.text))
    assert torch.equal(scout(texture, asked), scout.where(spots, asked))


def test_questions_are_counted(launches):
    scout = Scout(lively(Spotter()), lively(Ranker(WIDTHS)))
    spots = scout.read(Texture.open(torch.rand(2, 3, 32, 32)))
    launches()
    for count in (0, 3):
        with pytest.raises(ValueError, match=rf"Scout\.where: question must be one, .* 2 pages, got {count}"):
            scout.where(spots, Question(*(part.expand(3, *part.shape[1:])[:count] for part in encode([TOTAL]))))
    one = Spots(*(part[:1] for part in spots))
    assert worst(scout.where(spots, TOTAL)[:1], scout.where(one, TOTAL)) < 1e-6
