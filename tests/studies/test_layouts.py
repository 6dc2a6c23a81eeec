"""Layouts are compared with one thing changed each, on held-out documents."""

import torch

from tests.evaluate.folders import write_page
from texturevlm.relevance import find_relevance
from texturevlm.types import Texture
from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.studies import layouts


def page(tmp_path):
    write_page(tmp_path / "page.png", {"Invoice": (20, 20), "Total": (20, 100), "1975": (150, 100)})
    return Texture.open(tmp_path / "page.png").mipmapped()


def test_spread_mass_stays_on_ink_and_sums_to_one(tmp_path):
    relevance = find_relevance(page(tmp_path), "What is the total?", patch=32, relevance="scout")
    same, wide = (layouts.spread(relevance, cells) for cells in ((1, 1), (3, 9)))
    torch.testing.assert_close(same.mass, relevance.mass * relevance.ink / (relevance.mass * relevance.ink).sum())
    torch.testing.assert_close(wide.mass.sum(), torch.ones(()))
    assert not wide.mass[~wide.ink].any() and wide.mass.max() < relevance.mass.max()


def test_every_variant_has_tokens_at_every_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(layouts.held_out, "BUDGETS", (4,))
    monkeypatch.setattr(layouts, "OTHERS", ("fixations",))
    (found,) = layouts.variants(page(tmp_path), [Sample("1", None, (160, 240), "What is the total?")])
    changed = [*layouts.BALANCES, *layouts.MARGINS, *(f"overview {share:g}" for share in layouts.OVERVIEWS)]
    assert set(found) == {f"4/{name}" for name in ("auto", "fixations", *changed)}
    assert all(0 < int(tokens.valid.sum()) <= 4 for tokens in found.values())
