"""The loop: it learns, writes down what it did, and goes on after a kill as if nothing had happened."""

import csv
import json
import signal
import struct
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.train.toy import CONFIG, Toy
from texturevlm.train.checkpoint import checkpoints, load_weights
from texturevlm.train.events import crc32c
from texturevlm.train.fit import fit


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
    fresh = Toy()
    load_weights(checkpoints(out)[-1], fresh.module)
    assert torch.equal(fresh.module[0].weight, task.module[0].weight)
    with pytest.raises(ValueError, match=r"must hold the weights of Sequential, 0\.weight differs"):
        load_weights(checkpoints(out)[-1], Toy(Toy.Settings(width=5)).module)


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
    with pytest.raises(ValueError, match="resume must be asked for"):
        fit(Toy(), CONFIG, out)
    with pytest.raises(ValueError, match=r"fit\.rate must be 0\.02 as in .*step-00000060 to go on from it, got 0\.5"):
        fit(Toy(), replace(CONFIG, rate=0.5), out, resume=True)
    with pytest.raises(ValueError, match="losses may have square, length, got 'sqare'"):
        fit(Toy(), replace(CONFIG, losses={"sqare": 1.0}), tmp_path)

    class Broken(Toy):
        def losses(self, batch, step):
            return {"square": torch.tensor(float("nan"), requires_grad=True)}

    with pytest.raises(ValueError, match="the loss of step 0 must be finite"):
        fit(Broken(), CONFIG, tmp_path)


def records(path):
    """The messages of an event file, checksums and all."""
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        message = data[12 : 12 + length]
        for content, at in ((data[:8], 8), (message, 12 + length)):
            crc = crc32c(content)
            assert struct.unpack("<I", data[at : at + 4])[0] == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
        yield message
        data = data[16 + length :]


def test_checksum():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA  # both from RFC 3720


def test_tensorboard_reads_the_events(whole):
    """Against the published message, by the protobuf package."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="tensorflow", syntax="proto3")
    kinds = {"double": 1, "float": 2, "int64": 3, "string": 9, "message": 11}
    shapes = {
        "Event": [
            ("wall_time", 1, "double"),
            ("step", 2, "int64"),
            ("file_version", 3, "string"),
            ("summary", 5, "Summary"),
        ],
        "Summary": [("value", 1, "Value")],
        "Value": [("tag", 1, "string"), ("simple_value", 2, "float")],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for label, number, kind in fields:
            one = message.field.add(
                name=label, number=number, type=kinds.get(kind, 11), label=3 if kind == "Value" else 1
            )
            if kind in shapes:
                one.type_name = f".tensorflow.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    event = message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Event"))
    (path,) = whole[0].glob("events.out.tfevents.*")
    first, *rest = (event.FromString(message) for message in records(path))
    assert first.file_version == "brain.Event:2" and first.wall_time > 1e9
    found = {(one.step, value.tag): value.simple_value for one in rest for value in one.summary.value}
    row = curve(whole[0])[29]
    assert found[30, "train/loss"] == pytest.approx(float(row["loss"]))
    assert (60, "evaluation/error") in found
