"""The loop: it learns, writes down what it did, and goes on after a kill as if nothing had happened."""

import csv
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tests.train.toy import CONFIG, Toy
from texturevlm_lab.train.config import FitConfig
from texturevlm_lab.train.fit import draw_examples, fit, generator_at, rate_at
from texturevlm_lab.train.run_files import checkpoints, final_weights, load_checkpoint


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody stopped."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("whole")
    task = Toy()
    found = fit(task, CONFIG, out)
    return out, task, found


def curve(out):
    return list(csv.DictReader((out / "log.csv").open()))


def test_it_learns_and_writes_the_curve(whole):
    out, _, found = whole
    rows = curve(out)
    assert [int(row["step"]) for row in rows] == list(range(1, 61))
    assert list(rows[0]) == ["step", "loss", "square", "length", "rate", "gradient"]
    assert float(rows[-1]["loss"]) < 0.5 * float(rows[0]["loss"])
    assert float(rows[0]["rate"]) == pytest.approx(0.004) and float(rows[4]["rate"]) == pytest.approx(0.02)
    evaluations = [json.loads(line) for line in (out / "evaluations.jsonl").open()]
    assert [one["step"] for one in evaluations] == [20, 40, 60] and evaluations[-1]["error"] == found["error"]
    assert [path.name for path in checkpoints(out)] == ["step-00000040", "step-00000060"]


def test_a_killed_run_goes_on_to_the_same_curve(whole, tmp_path):
    killed = subprocess.run([sys.executable, "-m", "tests.train.toy", tmp_path, "47"], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000020", "step-00000040"]
    assert len(curve(tmp_path)) == 47
    (tmp_path / "log.csv").open("a").write("48,0.1")  # half a line, as a kill may leave it
    task = Toy()
    fit(task, CONFIG, tmp_path, resume=True)
    out, uninterrupted, _ = whole
    assert (tmp_path / "log.csv").read_bytes() == (out / "log.csv").read_bytes()
    assert (tmp_path / "evaluations.jsonl").read_bytes() == (out / "evaluations.jsonl").read_bytes()
    for mine, theirs in zip(task.module.state_dict().values(), uninterrupted.module.state_dict().values()):
        assert torch.equal(mine, theirs)


def test_what_is_left_of_the_time_is_spent_after_a_cut_and_nothing_once_it_is_over(tmp_path, monkeypatch):
    seconds = [100.0]
    monkeypatch.setattr("texturevlm_lab.train.fit.time.monotonic", lambda: seconds[0])

    class Timed(Toy):  # a second per step
        def losses(self, batch, step):
            if step == self.kill_at:
                raise KeyboardInterrupt
            seconds[0] += 1
            return super().losses(batch, step)

    config = replace(CONFIG, seconds=30.0, save_every=10, schedule="linear")
    fit(Timed(), config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit(Timed(kill_at=17), config, tmp_path / "cut")
    seconds[0] += 1000  # until somebody starts it again
    for _ in range(2):  # the second time nothing is left to do
        fit(Timed(), config, tmp_path / "cut", resume=True)
        assert len(curve(tmp_path / "cut")) == 31
        assert (tmp_path / "cut/log.csv").read_bytes() == (tmp_path / "whole/log.csv").read_bytes()


def test_the_running_mean_of_the_weights_is_kept_evaluated_and_resumed(tmp_path):
    config = replace(CONFIG, average=0.9)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    task = Toy()
    found = fit(task, config, whole)
    own, mean = (load_file(whole / f"step-00000060/{name}.safetensors") for name in ("weights", "averaged"))
    for name, trained in task.module.state_dict().items():
        assert torch.equal(trained, own[name]) and not torch.equal(trained, mean[name])
    assert final_weights(whole / "step-00000060").name == "averaged.safetensors"

    class Watched(Toy):
        def losses(self, batch, step):
            weights.append({name: one.clone() for name, one in self.module.state_dict().items()})
            return super().losses(batch, step)

    weights = []
    watched = Watched()
    fit(watched, config, tmp_path / "watched")
    weights.append(watched.module.state_dict())
    expected = weights[0]
    for step, after in enumerate(weights[1:], 1):  # the definition, step by step
        kept = min(0.9, step / (step + 10))
        expected = {name: kept * expected[name] + (1 - kept) * after[name] for name in after}
    for name in mean:
        torch.testing.assert_close(mean[name], expected[name])
    with torch.random.fork_rng(), torch.no_grad():
        watched.module.load_state_dict(mean)
        watched.module.eval()
        assert watched.evaluate() == found  # the mean was evaluated

    fit(Toy(), config, parts)
    shutil.rmtree(parts / "step-00000060")
    fit(Toy(), config, parts, resume=True)
    again = load_file(parts / "step-00000060/averaged.safetensors")
    assert all(torch.equal(mean[name], again[name]) for name in mean)


def test_a_run_killed_before_its_first_checkpoint_starts_again(whole, tmp_path):
    class Stops(Toy):
        def losses(self, batch, step):
            if step == 11:
                raise KeyboardInterrupt
            return super().losses(batch, step)

    with pytest.raises(KeyboardInterrupt):
        fit(Stops(), CONFIG, tmp_path)
    (tmp_path / ".step-00000020.1").mkdir()  # what a kill in the middle of writing leaves
    fit(Toy(), CONFIG, tmp_path, resume=True)
    assert (tmp_path / "log.csv").read_bytes() == (whole[0] / "log.csv").read_bytes()
    assert not list(tmp_path.glob(".step-*"))


def test_how_often_it_is_evaluated_changes_nothing(whole, tmp_path):
    fit(Toy(), replace(CONFIG, evaluate_every=7, save_every=0), tmp_path)
    assert (tmp_path / "log.csv").read_bytes() == (whole[0] / "log.csv").read_bytes()


def test_batches_made_ahead_are_the_same(whole, tmp_path):
    fit(Toy(), replace(CONFIG, ahead=3, save_every=0), tmp_path)
    assert (tmp_path / "log.csv").read_bytes() == (whole[0] / "log.csv").read_bytes()


def test_a_batch_that_cannot_be_made_stops_the_run(tmp_path):
    class Broken(Toy):
        def batch(self, step):
            if step == 7:
                raise OSError("no such image")
            return super().batch(step)

    with pytest.raises(OSError, match="no such image"):
        fit(Broken(), replace(CONFIG, ahead=2), tmp_path)
    assert len(curve(tmp_path)) == 7


def test_weights_of_a_checkpoint(whole):
    out, task, _ = whole
    last = checkpoints(out)[-1]
    weights = load_file(last / "weights.safetensors")
    assert all(torch.equal(weights[name], own) for name, own in task.module.state_dict().items())
    other = Toy(Toy.Settings(width=5)).module
    with pytest.raises(ValueError, match=r"must hold the weights of Sequential: .*size mismatch for 0\.weight"):
        load_checkpoint(last, other, torch.optim.AdamW(other.parameters()))


def test_losses_count_as_the_config_says(tmp_path):
    fit(Toy(), replace(CONFIG, steps=1, losses={"square": 0.0, "length": 3.0}), tmp_path)
    row = curve(tmp_path)[0]
    assert float(row["loss"]) == pytest.approx(3 * float(row["length"]))


def test_bfloat16(tmp_path):
    class Watched(Toy):
        def losses(self, batch, step):
            self.dtype = self.module(batch[0]).dtype
            return super().losses(batch, step)

    task = Watched()
    fit(task, replace(CONFIG, steps=3, precision="bfloat16"), tmp_path)
    assert task.dtype == torch.bfloat16 and task.module[0].weight.dtype == torch.float32


def test_complaints(whole, tmp_path):
    out = whole[0]
    with pytest.raises(ValueError, match="--resume must be given"):
        fit(Toy(), CONFIG, out)
    with pytest.raises(ValueError, match=r"fit\.rate must be 0\.02 as in .*step-00000060, got 0\.5"):
        fit(Toy(), replace(CONFIG, rate=0.5), out, resume=True)
    with pytest.raises(ValueError, match="losses may have square, length, got 'sqare'"):
        fit(Toy(), replace(CONFIG, losses={"sqare": 1.0}), tmp_path)

    class Broken(Toy):
        def losses(self, batch, step):
            return {"square": torch.tensor(float("nan"), requires_grad=True)}

    with pytest.raises(ValueError, match="the loss of step 0 must be finite"):
        fit(Broken(), CONFIG, tmp_path)


def test_tensorboard_reads_the_events(whole):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(whole[0]))
    events.Reload()
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert losses[30] == pytest.approx(float(curve(whole[0])[29]["loss"]))
    assert events.Scalars("evaluation/error")[-1].step == 60


def test_without_tensorboard_the_curve_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("texturevlm_lab.train.run_files.importlib.util.find_spec", lambda name: None)
    fit(Toy(), replace(CONFIG, steps=1), tmp_path)
    assert len(curve(tmp_path)) == 1 and not list(tmp_path.glob("events*"))
    assert "texturevlm[train]" in capsys.readouterr().err


def test_rates():
    assert rate_at(0, steps=100, rate=1.0, warmup=10) == pytest.approx(0.1)
    assert rate_at(9, steps=100, rate=1.0, warmup=10) == pytest.approx(1)
    assert rate_at(55, steps=100, rate=1.0, warmup=10) == pytest.approx(0.5)
    assert rate_at(100, steps=100, rate=1.0) == pytest.approx(0)


def test_random_numbers_of_a_step_are_its_own():
    draws = [torch.rand(3, generator=generator_at(*key)).tolist() for key in ((0, 1), (0, 1), (0, 2), (1, 1))]
    assert draws[0] == draws[1] and draws[0] != draws[2] and draws[0] != draws[3]


def test_examples_of_a_step():
    assert draw_examples(10, 8, seed=0, step=15) == draw_examples(10, 8, seed=0, step=15)
    assert draw_examples(10, 8, seed=0, step=15) != draw_examples(10, 8, seed=0, step=16)
    assert set(draw_examples(5, 2000, seed=1, step=3)) == set(range(5))
    assert draw_examples(1000, 4, seed=0, step=0) == [722, 684, 443, 3]  # trained weights rest on these


class OnDevice:
    """Batches of two shapes, on a GPU."""

    def __init__(self):
        torch.manual_seed(3)
        self.module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))

    def batch(self, step):
        x = torch.randn(4 + step % 2, 6, generator=generator_at(0, step))
        return {"x": x.cuda(), "y": x.sum(1, keepdim=True).cuda()}

    def losses(self, batch, step):
        return {"square": (self.module(batch["x"]) - batch["y"]).square().mean()}

    def evaluate(self):
        return {}


@pytest.mark.gpu
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_captured_steps_are_ordinary_steps(tmp_path, optimiser):
    config = FitConfig(steps=40, optimiser=optimiser, rate=0.01, warmup=5, clip=1.0, device="cuda", log_every=1)
    for captured in (False, True):
        fit(OnDevice(), replace(config, captured=captured), tmp_path / str(captured))
    plain, replayed = (curve(tmp_path / name) for name in ("False", "True"))
    for name in ("loss", "rate", "gradient"):
        values = [[float(row[name]) for row in rows] for rows in (plain, replayed)]
        assert values[1] == pytest.approx(values[0], rel=0.02, abs=1e-4)
    assert float(plain[-1]["loss"]) < 0.7 * float(plain[0]["loss"])


def test_steps_are_captured_on_a_gpu_alone():
    with pytest.raises(ValueError, match="captured must be false unless device is cuda, got 'cpu'"):
        FitConfig(captured=True)
