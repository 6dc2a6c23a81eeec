"""Learning to read: the losses say what they should, fall, and the task goes through the loop from packed pages."""

import csv
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

from tests.conftest import worst
from tests.scout.networks import lively, shipped
from tests.train.papers import drawn, packed
from texturevlm.scout.question import SYMBOLS, letter_codes, letter_features
from texturevlm.scout.spotter import Spotter
from texturevlm_lab.train import spotter_task
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import evaluated, fit
from texturevlm_lab.train.pages import held_out, load_pages
from texturevlm_lab.train.spotter_task import SpotterTask, augmented, collate, misspelt, spotter_example, spotter_losses

NAMES = {"word", "hit", "text", "kinds", "height"}


@pytest.fixture(autouse=True)
def small_canvas(monkeypatch):
    monkeypatch.setattr(spotter_task, "CANVAS", (96, 160))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("spotting")
    (root / "fonts").mkdir()
    shutil.copy(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), root / "fonts")
    packed(root / "packed")
    return root


@pytest.fixture
def task(folder):
    made = []

    def make(**options):
        settings = {"batch": 4, "real": 1.0, "workers": 1, **options}
        made.append(SpotterTask(SpotterTask.Settings(folder / "packed", folder / "fonts", **settings)))
        return made[-1]

    yield make
    for one in made:
        one.makers.shutdown()


def tiny_batch():
    pages = [drawn([item]) for item in (("Total", "940.00"), ("Date", "3 May"))]
    return collate([spotter_example(*page, np.random.default_rng([0, number])) for number, page in enumerate(pages)])


def test_losses_are_finite_and_fall():
    torch.manual_seed(0)
    spotter, batch = Spotter(), tiny_batch()
    optimiser = torch.optim.AdamW(spotter.parameters(), 2e-3)
    curve = []
    for _ in range(12):
        parts = spotter_losses(spotter, batch)
        assert set(parts) == NAMES and all(part.isfinite() and part.dim() == 0 for part in parts.values())
        optimiser.zero_grad()
        loss = torch.stack(list(parts.values())).sum()
        loss.backward()
        optimiser.step()
        curve.append({name: part.item() for name, part in parts.items()})
    for name in ("word", "hit", "text", "height"):
        assert np.mean([row[name] for row in curve[-3:]]) < 0.8 * curve[0][name], name
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in spotter.parameters())


def test_a_trained_spotter_has_small_losses():
    batch = tiny_batch()
    trained, fresh = shipped().spotter, lively(Spotter())
    with torch.no_grad():
        good, bad = spotter_losses(trained, batch), spotter_losses(fresh, batch)
    assert all(good[name] < 0.6 * bad[name] for name in NAMES)


def test_misspelt_words_have_one_other_letter():
    words = letter_codes(["invoice", "a", "x" * 24, ""])
    changed = misspelt(words)
    assert ((changed != words).sum(1) == 1).all() and ((changed >= -1) & (changed < SYMBOLS)).all()
    assert torch.equal((changed >= 0).sum(1)[:3], (words >= 0).sum(1)[:3])
    assert letter_features(changed).isfinite().all()


def test_noise_stays_in_range_and_differs_from_page_to_page():
    page = torch.rand(1, 1, 32, 32).expand(40, -1, -1, -1)
    made = augmented(page)
    assert made.shape == page.shape and made.min() >= 0 and made.max() <= 1
    assert all(worst(made[0], other) > 1e-3 for other in made[1:])
    against = [
        torch.corrcoef(torch.stack([one.flatten(), page[0].flatten()]))[0, 1]
        for one in augmented(page.repeat(5, 1, 1, 1))
    ]
    negatives = sum(value < 0 for value in against)
    assert 0 < negatives < 30  # of 200, one in twenty


def test_a_batch_is_known_from_its_step(task):
    one, other = task(), task()
    first, again, later = one.batch(3), other.batch(3), one.batch(4)
    assert first.image.shape == (4, 1, 96, 160) and len(first.spots) > 10
    assert all(torch.equal(a, b) for a, b in zip(first, again)) and not torch.equal(first.image, later.image)
    assert all(torch.equal(a, b) for a, b in zip(one.module.state_dict().values(), other.module.state_dict().values()))


def test_rendered_pages(task, monkeypatch):
    monkeypatch.setattr(spotter_task, "CANVAS", (400, 320))  # holds some words of a page of 1100×850
    batch = task(real=0.0, batch=2).batch(0)
    assert batch.image.shape == (2, 1, 400, 320) and len(batch.spots) > 0 and batch.text.sum() > 0


def test_through_the_loop(task, tmp_path):
    made = task()
    before = [value.clone() for value in made.module.state_dict().values()]
    weights = {"word": 1.0, "hit": 0.5, "text": 1.0, "kinds": 1.0, "height": 0.3}
    found = fit(made, FitConfig(steps=3, log_every=1, rate=1e-3, ahead=2, losses=weights), tmp_path)
    assert 0 <= found["right"] <= 1 and len(made.evaluated) == 2
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert len(rows) == 3 and set(rows[0]) >= NAMES
    assert not all(torch.equal(one, two) for one, two in zip(before, made.module.state_dict().values()))


def test_one_that_reads_is_right(task):
    made = task(limit=1)
    assert len(made.evaluated) == 1
    made.module = shipped().spotter
    assert evaluated(made)["right"] > 0.6  # one word in seven, by chance


def test_nothing_of_the_held_out_pages_is_learned_from(task, folder, monkeypatch):
    """Bug 9: words of held-out pages' questions entered the vocabulary of rendered pages."""
    makers = []

    class Watched(spotter_task._PageMaker):
        def __init__(self, settings, pages):
            super().__init__(settings, pages)
            makers.append(self)

    every = [
        replace(page, questions=((f"secret{number} word?", ()),))
        for number, page in enumerate(load_pages(folder / "packed"))
    ]
    monkeypatch.setattr(spotter_task, "load_pages", lambda folder: every)
    monkeypatch.setattr(spotter_task, "_PageMaker", Watched)
    evaluated_on = {page.document for page in task().evaluated}
    learned = {page.document for page in makers[0].pages}
    assert len(evaluated_on) == 2 and len(learned) == 12 and not evaluated_on & learned
    assert evaluated_on == {page.document for page, out in zip(every, held_out(every)) if out}
    asked = {word for word in makers[0].vocabulary._once if word.startswith("secret")}
    assert asked == {f"secret{number}" for number, out in enumerate(held_out(every)) if not out}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 1}, "SpotterTask: batch must be at least 2, got 1"),
        ({"workers": 0}, "SpotterTask: workers must be at least 1, got 0"),
        ({"real": 1.5}, r"SpotterTask: real must be 0 to 1, got 1\.5"),
    ],
)
def test_complaints(folder, options, message):
    with pytest.raises(ValueError, match=message):
        SpotterTask(SpotterTask.Settings(folder / "packed", **options))
