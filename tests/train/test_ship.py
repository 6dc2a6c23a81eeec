"""texturevlm ship-scout: the weights of two runs become the one file that the package reads."""

import pytest
import torch
from safetensors.torch import save_file

from tests.conftest import worst
from tests.scout.networks import lively
from tests.test_cli import status
from texturevlm.scout import load_scout
from texturevlm.scout.ranker import Ranker
from texturevlm.scout.scout import Scout
from texturevlm.scout.spotter import Spotter
from texturevlm.types import Texture

WIDTHS = (8, 12, 16)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("runs")
    spotter, ranker = lively(Spotter()), lively(Ranker(WIDTHS))
    save_file(spotter.state_dict(), folder / "spotter.safetensors")
    save_file(ranker.state_dict(), folder / "ranker.safetensors")
    return folder, spotter, ranker


def shipped(folder, out, spotter="spotter.safetensors", ranker="ranker.safetensors"):
    return status("ship-scout", "--spotter", str(folder / spotter), "--ranker", str(folder / ranker), "--out", str(out))


def test_a_round_trip(runs, tmp_path, capsys):
    folder, spotter, ranker = runs
    assert shipped(folder, tmp_path / "own.npz") == 0
    assert "own.npz: " in capsys.readouterr().out
    texture = Texture.open(torch.rand(3, 64, 80))
    loaded, trained = load_scout(tmp_path / "own.npz"), Scout(spotter, ranker)
    assert tuple(loaded.ranker.lift[1].weight.shape[:2]) == (12, 16)
    found, wanted = (scout.where(scout.read(texture), "What is the total?") for scout in (loaded, trained))
    assert worst(found, wanted) < 0.03 * float(wanted.max()) + (0.02 if loaded.dtype == torch.bfloat16 else 0)


def test_complaints(runs, tmp_path, capsys):
    folder = runs[0]
    (folder / "text.safetensors").write_text("weights")
    for given, message in [
        ({"out": tmp_path / "scout.pt"}, "--out must end in .npz"),
        ({"spotter": "none.safetensors"}, "no such file: "),
        ({"ranker": "text.safetensors"}, "text.safetensors must be a file of weights, and cannot be read"),
        ({"spotter": "ranker.safetensors"}, "must hold the weights of Spotter, lacks "),
        ({"ranker": "spotter.safetensors"}, "must hold the weights of Ranker, lacks last.weight"),
        ({"out": tmp_path / "nowhere" / "scout.npz"}, "nowhere"),
    ]:
        assert shipped(folder, **{"out": tmp_path / "own.npz", **given}) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("texturevlm ship-scout: ") and message in said and "\n" not in said
        assert not (tmp_path / "own.npz").exists()
