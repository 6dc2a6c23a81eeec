"""An encoder that learns to keep detail, with a small random model."""

import pytest
import torch

from texturevlm.channels.structure import luma
from texturevlm_lab.train.bands_task import BANDS, BandsTask
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import fit
from texturevlm_lab.train.laplacian import _expand_to


def made(asked_pages, tiny_model, **more):
    given = {"budget": 16, "relevance": "none", "length": 2, "batch": 3, **more}
    return BandsTask(BandsTask.Settings(data=asked_pages, model=tiny_model, **given))


def test_detail_becomes_readable_and_the_model_stays(asked_pages, tiny_model, tmp_path):
    task = made(asked_pages, tiny_model, anchor=0.1)
    weights = {name: value.clone() for name, value in task.vlm.model.state_dict().items()}
    with torch.no_grad():
        first = {name: float(value) for name, value in task.losses(range(len(task.learned)), 0).items()}
        torch.testing.assert_close(task._errors(changed=True), task.blind)  # no difference at first
    assert first["anchor"] == pytest.approx(0, abs=1e-8)
    found = fit(task, FitConfig(steps=30, rate=0.01, save_every=0), tmp_path / "run")
    with torch.no_grad():
        last = task.losses(range(len(task.learned)), 0)
    assert float(last["bands"]) < 0.8 * first["bands"] and float(last["anchor"]) > 0
    assert all(torch.equal(value, weights[name]) for name, value in task.vlm.model.state_dict().items())
    assert {f"band_{band}_{when}" for band in range(BANDS) for when in ("before", "after")} < set(found)
    assert found["bands_low"] <= found["bands_change"] <= found["bands_high"]
    assert found["band_0_after"] != found["band_0_before"]


def test_bands_add_up_to_the_samples(asked_pages, tiny_model):
    task = made(asked_pages, tiny_model)
    one = task.learned[0]
    rows, side = task._bands([one]), task.vlm.adapter.side
    sides = [-(-side // 2**band) for band in range(BANDS)]
    parts = [part.unflatten(1, (1, wide, wide)) for part, wide in zip(rows.split([n * n for n in sides], 1), sides)]
    whole = parts.pop()
    while parts:
        whole = parts[-1] + _expand_to(whole, parts.pop())
    torch.testing.assert_close(whole, luma(one.views[0].pixels[:, 0]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "more, message", [({"rank": 0}, "rank must be at least 1"), ({"anchor": -1.0}, "anchor must be at least 0")]
)
def test_what_is_refused(asked_pages, tiny_model, more, message):
    with pytest.raises(ValueError, match=message):
        made(asked_pages, tiny_model, **more)
