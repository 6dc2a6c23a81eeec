"""Windows: what is decoded ahead, in whole batches."""

import pytest

from tests.corpus import made, picture
from texturevlm.corpus import worker

pytest.importorskip("pyarrow", reason="needs the extra corpus")


@pytest.mark.parametrize(("room", "wanted"), [(5, [6, 3]), (3, [3, 3, 3]), (1, [2, 2, 2, 2, 1]), (99, [4, 4, 1])])
def test_a_window_ends_with_a_whole_batch(tmp_path, monkeypatch, room, wanted):
    """Batches are of three; a graph would not be used for the rest of one. At most twice the bytes are held."""
    for seed in range(9):
        (tmp_path / "in").mkdir(exist_ok=True)
        picture(seed, 16, 16).save(tmp_path / "in" / f"{seed}.png")
    made(tmp_path / "in", tmp_path / "out", unit=9)
    monkeypatch.setattr(worker, "WINDOW", 4 if room == 99 else 64)
    monkeypatch.setattr(worker, "WINDOW_BYTES", room * 16 * 16 * 3)
    one = worker.UnitWorker(str(tmp_path / "out"))
    found = [len(window) for window in one.windows(one.ledger.unit(0), worker.Clock())]
    assert [count for count in found if count] == wanted
