"""texturevlm ship-scout and ship-reader: the weights of runs become what the package reads."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import worst
from tests.scout.networks import lively
from tests.test_cli import status
from texturevlm.scout import load_scout
from texturevlm.scout.ranker import Ranker
from texturevlm.scout.scout import Scout
from texturevlm.scout.spotter import Spotter
from texturevlm.types import Texture
from texturevlm_lab.train.reader.network import make_network

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


def test_the_reader_s_folder_is_a_stock_checkpoint(tmp_path, capsys):
    """From a run with the head that is dropped, and again from parts of its weights."""
    from transformers import AutoTokenizer, Qwen3VLForConditionalGeneration

    torch.manual_seed(2)
    trained = make_network()
    state = {f"network.{name}": tensor.clone() for name, tensor in trained.state_dict().items()}
    step = tmp_path / "run" / "step-00000007"
    step.mkdir(parents=True)
    (step / "config.json").write_text("{}")
    save_file({**state, "letter_head.weight": torch.zeros(3)}, step / "weights.safetensors")
    assert status("ship-reader", tmp_path / "run", "--out", tmp_path / "reader", "--budget", "96") == 0
    assert "reader: 39.5 MB of weights" in capsys.readouterr().out
    loaded = Qwen3VLForConditionalGeneration.from_pretrained(tmp_path / "reader", dtype=torch.float32)
    for name, tensor in trained.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16().float()), name
    assert '"budget": 96' in (tmp_path / "reader" / "texturevlm.json").read_text()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "reader")
    assert tokenizer.decode(tokenizer("12,066.31 €?").input_ids) == "12,066.31 ?"
    for said in ("?", "?haz"):  # a stream decodes the first sign alone
        assert tokenizer.decode(tokenizer(said).input_ids) == "I cannot read it"
    names = sorted(state)
    for part in range(2):
        save_file({name: state[name] for name in names[part::2]}, tmp_path / f"part-{part}.safetensors")
    parts = [tmp_path / f"part-{part}.safetensors" for part in range(2)]
    assert status("ship-reader", *parts, "--out", tmp_path / "again") == 0
    weights = "model.safetensors"
    assert (tmp_path / "again" / weights).read_bytes() == (tmp_path / "reader" / weights).read_bytes()
    save_file({name: 3 * tensor for name, tensor in state.items()}, tmp_path / "other.safetensors")
    mean = ["--mean", tmp_path / "reader", "--out", tmp_path / "mean"]
    assert status("ship-reader", tmp_path / "other.safetensors", *mean) == 0
    name = "model.language_model.norm.weight"
    assert torch.equal(load_file(tmp_path / "mean" / weights)[name], 2 * load_file(tmp_path / "reader" / weights)[name])


def test_complaints_about_the_reader(tmp_path, capsys):
    (tmp_path / "text.safetensors").write_text("weights")
    (tmp_path / "empty").mkdir()
    save_file({"lm_head.weight": torch.zeros(128, 384)}, tmp_path / "some.safetensors")
    for given, message in [
        (["none"], "no such file or folder: none"),
        (["text.safetensors"], "text.safetensors must be a file of weights (safetensors), got "),
        (["empty"], "RUN_OR_WEIGHTS must be a run with a checkpoint, or a file of weights, got "),
        (["some.safetensors"], "some.safetensors must hold the reader's weights, got "),
        (["some.safetensors", "--out", str(tmp_path / "no" / "where")], "--out must be in a folder that exists"),
    ]:
        paths = [one if one == "none" or one.startswith(("-", "/")) else str(tmp_path / one) for one in given]
        assert status("ship-reader", "--out", str(tmp_path / "out"), *paths) == 2
        said = capsys.readouterr().err.strip()
        assert said.startswith("texturevlm ship-reader: ") and message in said and "\n" not in said
        assert not (tmp_path / "out").exists()
