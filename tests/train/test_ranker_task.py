"""Learning where answers stand: costs and shares by hand, and a run that goes on exactly after it was stopped."""

import csv
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from tests.conftest import worst
from tests.scout.networks import SHIPPED, random_spots
from tests.train.papers import SIZE, packed
from texturevlm.scout.question import TRAITS, WORDS
from texturevlm.scout.scout import load_module, load_ranker
from texturevlm.scout.spotter import EMBEDDING, SPOT, Spotter
from texturevlm.text.strings import ASKED
from texturevlm_lab.train.config import FitConfig, from_table
from texturevlm_lab.train.fit import evaluated, fit
from texturevlm_lab.train.pages import SETS
from texturevlm_lab.train.ranker_task import (
    ABSENT_WEIGHT,
    MOST_PLACES,
    SET_WEIGHTS,
    RankerExamples,
    RankerTask,
    in_top,
    pad_spots,
    place_loss,
)

CONFIG = FitConfig(steps=8, rate=2e-3, warmup=2, save_every=4, log_every=1, clip=1.0)
WIDTHS = (8, 12, 16)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    root = tmp_path_factory.mktemp("ranking")
    packed(root / "packed", unplaced=2)
    save_file(load_module(Spotter(), SHIPPED, prefix="spotter.").state_dict(), root / "spotter.safetensors")

    def made(**options):
        return RankerTask.Settings(
            root / "packed", root / "spotter.safetensors", **{"batch": 6, "widths": WIDTHS, **options}
        )

    return made


def places(*shares, spots=4):
    """(1, MOST_PLACES, spots) with these places."""
    found = torch.zeros(1, MOST_PLACES, spots)
    for slot, share in enumerate(shares):
        found[0, slot] = torch.tensor(share)
    return found


@pytest.mark.parametrize(
    ("shares", "wanted"),
    [
        ([[1.0, 0, 0, 0]], math.log(5)),
        ([[0.5, 0.5, 0, 0]], math.log(2.5)),  # spread as the place is, half of the page's chance is right
        ([[1.0, 0, 0, 0], [0, 0, 0.5, 0.5]], -math.log(1 / 5 + 1 / 2.5)),  # either will do
        ([], ABSENT_WEIGHT * math.log(5)),
    ],
)
def test_costs_where_nothing_is_known(shares, wanted):
    assert place_loss(torch.zeros(1, 5), places(*shares), torch.ones(1)).item() == pytest.approx(wanted, abs=1e-5)


def test_costs_by_hand():
    scores = torch.tensor([[math.log(6), math.log(2), 0.0, 0.0, 0.0]])  # 6, 2, 1, 1 and 1 of 11
    assert place_loss(scores, places([1.0, 0, 0, 0]), torch.ones(1)).item() == pytest.approx(math.log(11 / 6), abs=1e-5)
    mixed = 0.75 * math.log(0.75 * 11 / 6) + 0.25 * math.log(0.25 * 11 / 2)
    assert place_loss(scores, places([0.75, 0.25, 0, 0]), torch.ones(1)).item() == pytest.approx(mixed, abs=1e-5)
    both = torch.cat([places([1.0, 0, 0, 0]), places()])
    wanted = (3 * math.log(11 / 6) + ABSENT_WEIGHT * math.log(11)) / 4
    assert place_loss(scores.expand(2, -1), both, torch.tensor([3.0, 1.0])).item() == pytest.approx(wanted, abs=1e-5)


def test_gradients_are_finite_beyond_the_page_and_without_a_place():
    scores = torch.zeros(2, 5, requires_grad=True)
    beyond = torch.tensor([[False, False, False, True, False]])
    found = torch.cat([places([0.5, 0, 0, 0.5]), places()])
    place_loss(scores.masked_fill(beyond, -torch.inf), found, torch.ones(2)).backward()
    assert scores.grad.isfinite().all() and scores.grad[0, 0] < 0 and scores.grad[1, 4] < 0
    assert (scores.grad[:, 3] == 0).all()


def test_in_the_top_tenth():
    scores = torch.arange(20.0).flip(0)
    scores = torch.cat([scores, torch.tensor([99.0])])[None]  # "not on this page" is no spot
    whole = torch.tensor([[4, 5]])

    def top(shares, extents=whole):
        full = [[*share, *[0.0] * (20 - len(share))] for share in shares]
        return in_top(scores, places(*full, spots=20), extents).item()

    assert top([[0.5, 0.5]]) and top([[0.45, 0.45, 0.1]]) and not top([[0.4, 0.4, 0.2]])
    assert top([[0, 0, 1.0], [0, 1.0]])  # one of two places is enough
    assert not top([[0.5, 0, 0.5], [0, 0.5, 0.5]]) and not top([])
    assert top([[1.0]], torch.tensor([[2, 5]])) and not top([[0.5, 0.5]], torch.tensor([[2, 5]]))


def examples(boxes, *, joined=False):
    found = torch.zeros(1, MOST_PLACES, 4)
    for slot, box in enumerate(boxes):
        found[0, slot] = torch.tensor(box)
    question = (torch.zeros(1, WORDS, EMBEDDING), torch.zeros(1, WORDS, TRAITS), torch.zeros(1, len(ASKED)))
    return RankerExamples([0], [True], found, torch.tensor([joined]), torch.ones(1), question)


def test_places_are_shares_of_spots():
    boxes = [(1.5, 0.0, 3.0, 1.0), (0.0, 0.5, 1.0, 2.0)]  # x0, y0, x1, y1 in spots
    apart = examples(boxes).places([0], 4, 8)
    assert apart.shape == (1, MOST_PLACES, 8)
    torch.testing.assert_close(apart[0, 0].view(2, 4), torch.tensor([[0, 1 / 3, 2 / 3, 0], [0, 0, 0, 0]]))
    torch.testing.assert_close(apart[0, 1].view(2, 4), torch.tensor([[1 / 3, 0, 0, 0], [2 / 3, 0, 0, 0]]))
    assert apart[0, 2:].eq(0).all()
    one = examples(boxes, joined=True).places([0], 4, 8)
    torch.testing.assert_close(one[0, 0].view(2, 4), torch.tensor([[0.5, 0.5, 1, 0], [1, 0, 0, 0]]) / 3)
    assert one[0, 1:].eq(0).all()


def test_places_that_are_not_on_the_page_are_none():
    gone = examples([(9.0, 9.0, 12.0, 10.0), (1.0, 1.0, 1.0, 1.0)]).places([0], 4, 8)
    assert gone.eq(0).all() and gone.isfinite().all()


def test_padded_pages_keep_what_they_are():
    pages = [random_spots(1, 4, 10), random_spots(1, 6, 8)]
    spots, extents = pad_spots(pages)
    assert spots.words.shape == (2, EMBEDDING, 6, 10) and extents.tolist() == [[4, 10], [6, 8]]
    assert all(torch.equal(part[1:, ..., :6, :8], own) for part, own in zip(spots, pages[1]))
    assert spots.text[0, 4:].eq(0).all()


def test_what_is_learned_from_and_judged_on(settings):
    task = RankerTask(settings())
    pages = [task.examples.page[index] for index in task.evaluated]
    assert len(set(pages)) <= 2 and not set(pages) & {task.examples.page[index] for index in task.learned}
    placed = task.examples.located
    assert sum(placed) == 36 and all(placed[index] for index in task.evaluated)
    assert not all(placed[index] for index in task.learned)  # that there is no answer is learned, too
    batch = task.batch(5)
    assert batch == RankerTask(settings()).batch(5) != task.batch(6) and set(batch) <= set(task.learned)
    scores, extents, columns = task.scores(batch)
    assert scores.shape[1] == columns * int(extents[:, 0].max()) + 1 and columns == SIZE[1] // SPOT
    assert scores.softmax(1).isfinite().all()


def test_charts_are_learned_from_and_judged_apart(settings, tmp_path):
    assert set(SET_WEIGHTS) == set(SETS)
    charts = RankerTask(replace(settings(), pages=packed(tmp_path / "charts", source="chartqa", unplaced=2)))
    placed = charts.examples.located
    assert len(charts.learned) >= 24 and all(placed[index] for index in charts.learned) and not charts.evaluated
    assert charts.evaluated_charts and not set(charts.evaluated_charts) & set(charts.learned)
    with torch.no_grad():
        judged = charts.evaluate()
    assert judged["loss_charts"] > 0 == judged["loss"] and not RankerTask(settings()).evaluated_charts
    assert (charts.examples.weight == SET_WEIGHTS["chartqa"]).all() and not charts.examples.joined.any()


def test_how_deep_it_is_can_be_chosen(settings, tmp_path):
    given = settings()
    table = {"pages": str(given.pages), "spotter": str(given.spotter), "widths": list(WIDTHS), "batch": 6, "blocks": 2}
    task = RankerTask(from_table(RankerTask.Settings, table, "ranker"))
    assert [len(scale) for scale in task.module.inner] == [2, 2, 2]
    assert [len(scale) for scale in RankerTask(given).module.inner] == [1, 1, 1]
    fit(task, FitConfig(steps=2, save_every=2), tmp_path)
    (written,) = tmp_path.glob("*/weights.safetensors")
    ranker = load_ranker(written)
    assert tuple(layer.out_features // 2 for layer in ranker.steer) == WIDTHS and len(ranker.inner[0]) == 2


def test_blind_all_questions_are_one(settings):
    task = RankerTask(settings())
    task.module.eval()
    same = [index for index, page in enumerate(task.examples.page) if page == 1]
    with torch.no_grad():
        blind, seeing = task.scores(same, blind=True)[0], task.scores(same)[0]
    assert worst(blind, blind[:1].expand_as(blind)) < 1e-5 < 1e-4 < worst(seeing, seeing[:1].expand_as(seeing))


def test_pages_are_scored_as_they_are_when_they_come_alone(settings):
    """Padded in training, they come one by one later."""
    task = RankerTask(settings())
    for part in task.module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(part.bias)
    task.module.eval()
    low = next(i for i in task.learned if task.extents[task.examples.page[i], 0] == 12)
    high = next(i for i in task.learned if task.extents[task.examples.page[i], 0] == 14)
    with torch.no_grad():
        alone, together = task.scores([low])[0], task.scores([low, high])[0]
    assert together.shape[1] > alone.shape[1]
    assert (
        worst(together[0, : alone.shape[1] - 1], alone[0, :-1]) < 1e-4
        and (together[0, alone.shape[1] : -1] == -torch.inf).all()
    )


def curve(out):
    return [float(row["place"]) for row in csv.DictReader((out / "log.csv").open())]


def test_it_learns(settings, tmp_path):
    task = RankerTask(settings(drop=0.0))
    before = evaluated(task)
    after = fit(task, FitConfig(steps=60, rate=5e-3, log_every=1), tmp_path)
    found = curve(tmp_path)
    assert all(map(math.isfinite, found)) and sum(found[-5:]) < 0.6 * sum(found[:5])
    assert set(after) == {"loss", "recall", "recall_blind"} and after["loss"] < before["loss"]
    assert after["recall"] >= after["recall_blind"]


def test_a_stopped_run_goes_on_to_the_same_curve(settings, tmp_path):
    class Stops(RankerTask):
        def losses(self, batch, step):
            if step == 6:
                raise KeyboardInterrupt
            return super().losses(batch, step)

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    torch.manual_seed(11)  # what was drawn before does not matter
    uninterrupted = RankerTask(settings())
    found = fit(uninterrupted, CONFIG, whole)
    with pytest.raises(KeyboardInterrupt):
        fit(Stops(settings()), CONFIG, stopped)
    task = RankerTask(settings())
    assert fit(task, CONFIG, stopped, resume=True) == found
    assert (stopped / "log.csv").read_bytes() == (whole / "log.csv").read_bytes() and len(curve(whole)) == 8
    for mine, theirs in zip(task.module.state_dict().values(), uninterrupted.module.state_dict().values()):
        assert torch.equal(mine, theirs)


def test_complaints(settings, tmp_path):
    with pytest.raises(ValueError, match="RankerTask: batch must be at least 1, got 0"):
        RankerTask(settings(batch=0))
    with pytest.raises(ValueError, match="Ranker: without must be one of hits"):
        RankerTask(settings(without=("colour",)))
    with pytest.raises(ValueError, match="Ranker: blocks must be between 1 and 2, got 3"):
        RankerTask(settings(blocks=3))
    with pytest.raises(FileNotFoundError, match="must be a file of weights, and does not exist"):
        RankerTask(RankerTask.Settings(settings().pages, tmp_path / "none.safetensors"))
