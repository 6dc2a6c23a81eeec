"""The file of weights: a round trip, a cached scout, and a clear word about a file that is none."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.conftest import worst
from tests.scout.networks import SHIPPED, lively
from texturevlm.scout import load_scout
from texturevlm.scout.ranker import Ranker
from texturevlm.scout.scout import Scout, load_module, load_ranker, read_weights
from texturevlm.scout.spotter import Spotter
from texturevlm.types import Texture
from texturevlm_lab.commands.weights import save_modules

WIDTHS = (8, 12, 16)


@pytest.fixture(scope="module", params=[1, 2])
def own(request, tmp_path_factory):
    """A file of networks of other widths and depths, and the networks."""
    torch.manual_seed(3)
    path = tmp_path_factory.mktemp("weights") / "own.npz"
    spotter, ranker = lively(Spotter()), lively(Ranker(WIDTHS, blocks=request.param))
    save_modules(path, spotter=spotter, ranker=ranker)
    return path, spotter, ranker


def test_a_round_trip_rounds_to_half(own):
    path, spotter, ranker = own
    loaded_ranker = load_ranker(path, prefix="ranker.")
    assert [len(scale) for scale in loaded_ranker.inner] == [len(ranker.inner[0])] * 3
    loaded_spotter = load_module(Spotter(), path, prefix="spotter.")
    for module, fresh in ((spotter, loaded_spotter), (ranker, loaded_ranker)):
        loaded = fresh.state_dict()
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                assert torch.equal(loaded[name], value.half().float()), name
    assert set(read_weights(path)) == {
        f"{prefix}.{name}"
        for prefix, module in (("spotter", spotter), ("ranker", ranker))
        for name, value in module.state_dict().items()
        if value.is_floating_point()
    }


def test_a_scout_of_another_file(own):
    path, _, trained = own
    scout = load_scout(path)
    assert scout is load_scout(str(path)) and scout is not load_scout()
    spotter, ranker = (
        load_module(module, path, prefix=prefix)
        for module, prefix in ((Spotter(), "spotter."), (Ranker(WIDTHS, blocks=len(trained.inner[0])), "ranker."))
    )
    wanted, texture = Scout(spotter, ranker), Texture.open(torch.rand(3, 48, 64))
    found, exact = (one.where(one.read(texture), "total") for one in (scout, wanted))
    assert found.shape == (1, 6, 8) and worst(found, exact) < (1e-6 if scout.dtype == torch.float32 else 0.02)


def test_the_shipped_scout_is_loaded_once_and_small():
    assert load_scout() is load_scout(None, device="cpu") is load_scout(device=torch.device("cpu"))
    with open(SHIPPED, "rb") as file:
        assert file.seek(0, 2) < 25e6
    assert not any(parameter.requires_grad for parameter in load_scout().parameters())
    assert all(torch.isfinite(value).all() for value in read_weights(SHIPPED).values())


def test_safetensors_of_a_run(tmp_path):
    spotter = lively(Spotter())
    save_file(spotter.state_dict(), tmp_path / "weights.safetensors")
    loaded = load_module(Spotter(), tmp_path / "weights.safetensors")
    assert all(
        worst(value, loaded.state_dict()[name]) == 0
        for name, value in spotter.state_dict().items()
        if value.is_floating_point()
    )


def test_a_file_that_is_no_scout(tmp_path, own):
    with pytest.raises(FileNotFoundError, match=r"none\.npz must be a file of weights, and does not exist"):
        load_scout(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("weights")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "cut.npz").write_bytes(own[0].read_bytes()[:5000])
    (tmp_path / "text.safetensors").write_text("weights")
    for name in ("text.npz", "empty.npz", "cut.npz", "text.safetensors"):
        with pytest.raises(ValueError, match=rf"{name} must be a file of weights, and cannot be read"):
            load_scout(tmp_path / name)
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match=r"other\.npz must hold the weights of Spotter, lacks "):
        load_scout(tmp_path / "other.npz")
    save_modules(tmp_path / "half.npz", spotter=Spotter())
    with pytest.raises(ValueError, match=r"half\.npz must hold the weights of Ranker, lacks ranker\.last\.weight"):
        load_scout(tmp_path / "half.npz")


def test_weights_of_another_shape(own):
    message = r"must hold the weights of Ranker: .* must be \(\d.*, got \("
    blocks = len(own[2].inner[0])
    with pytest.raises(ValueError, match=message):
        load_module(Ranker((8, 12, 20), blocks=blocks), own[0], prefix="ranker.")
    message = {
        1: r"must hold the weights of Ranker, lacks inner\.0\.1\.",
        2: r"must hold the weights of Ranker and no others, has inner\.0\.1\.",  # not the first of its blocks alone
    }
    with pytest.raises(ValueError, match=message[blocks]):
        load_module(Ranker(WIDTHS, blocks=3 - blocks), own[0], prefix="ranker.")


def test_numbers_that_half_precision_cannot_hold_are_not_shipped(tmp_path):
    spotter = Spotter()
    spotter.stem.normalisation.running_var[0] = 1e6
    with pytest.raises(ValueError, match=r"spotter\.stem\.normalisation\.running_var must be finite in half precision"):
        save_modules(tmp_path / "large.npz", spotter=spotter)
