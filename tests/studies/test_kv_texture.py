"""Keys and values as a texture: level 3 at the centre of a block is its mean."""

import torch

from texturevlm_lab.attention.key_value_texture import block_means
from texturevlm_lab.bench.attention_error import Layers
from texturevlm_lab.studies.kv_texture import LODS, errors, fetched, report, square_blocks


def test_blocks_are_squares():
    table = square_blocks((10, 9), 5).view(-1, 64)
    assert table.shape[0] == 4 and table[0, :10].tolist() == [5, 6, 7, 8, 9, 10, 11, 12, 14, 15]
    assert (table >= 0).sum(1).tolist() == [64, 8, 16, 2]
    assert sorted(table[table >= 0].tolist()) == list(range(5, 95))


def test_level_three_is_the_mean_and_errors_are_reported():
    grid, first = (16, 24), 3
    k, v = torch.randn(1, 2, 400, 8), torch.randn(1, 2, 400, 8)
    exact = block_means(k, v, square_blocks(grid, first)[None], 64)
    found = fetched(k, v, grid, first, exact)
    assert len(found) == len(LODS)
    torch.testing.assert_close(found["level 3"].key, exact.key, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["level 3"].value, exact.value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["level 2.5"].key, exact.key, atol=1e-5, rtol=1e-5)
    assert all((found[name].key - exact.key).abs().max() > 0.01 for name in ("level 1.5", "level 3.5"))
    layers = Layers([(torch.randn(1, 4, 400, 8), k, v)], torch.arange(3, 387)[None], 387)
    rows = errors(layers, grid, first, None)
    assert [row["summary"] for row in rows][:2] == ["block means", "level 0"]
    assert abs(rows[0]["errors"][0] - rows[1 + LODS.index(3.0)]["errors"][0]) < 1e-6
    record = {"model": "reader", "tokens": list(grid), "rows": rows, "times": [], "command": "c", "torch": "t"}
    text = report({**record, "python": "p"})
    assert "16 × 24 visual tokens" in text and "| level 2.5 |" in text and "no GPU" in text
