"""The double of a CUDA graph finds what it is for: each function here would go wrong on a GPU."""

import warnings

import pytest
import torch

from tests.graphs import HostRead, NotReplayed
from texturevlm.cuda import graph
from texturevlm.cuda.graph import BranchingReplay, KeptReplays, Replay
from texturevlm.cuda.kernel import device_constant
from texturevlm.ops import mipmap, update_region

ONES = torch.ones(3)
READERS = {
    "item": lambda one: one * one.sum().item(),
    "float": lambda one: one * float(one.sum()),
    "bool": lambda one: one if one.any() else -one,
    "tolist": lambda one: one * one.tolist()[0],
    "cpu": lambda one: one.cpu() * 2,
    "to host": lambda one: one.to("cpu") * 2,
    "numpy": lambda one: one + torch.as_tensor(one.numpy()),
    "nonzero": lambda one: one.nonzero(),
    "where": lambda one: torch.where(one > 0)[0],
    "mask": lambda one: one[one > 0],
    "masked_select": lambda one: one.masked_select(one > 0),
    "mask filled with several": lambda one: one.clone().index_put_((one > 0,), one),
    "unique": lambda one: one.unique(),
    "equal": lambda one: one * torch.equal(one, one),
    "repeats": lambda one: one.repeat_interleave(one.long()),
    "slice": lambda one: one[: one.long()[0]],
    "range": lambda one: torch.arange(one.long()[0]),
    "in": lambda one: one * (2.0 in one),
    "table": lambda one: one * torch.tensor([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_read_on_the_host_is_found(captured_on_cpu, reader):
    with pytest.raises(HostRead):
        Replay(lambda one: (READERS[reader](one),), [ONES])


def test_the_line_is_named(captured_on_cpu):
    levels = mipmap(torch.rand(1, 1, 8, 8))
    with pytest.raises(HostRead, match=r"texturevlm/ops/mip\S*\.py:\d+: "):
        Replay(lambda box: (update_region(levels, box), box)[1:], [torch.tensor([[[1, 2, 3, 4]]])])


def test_new_numbers_are_replayed(captured_on_cpu):
    table = device_constant((1.0, 2.0, 3.0), torch.float32, torch.device("cpu"))
    replay = Replay(lambda one, two: (one * two + table, one > 0), [ONES, ONES])
    assert replay.reason is None and all(not one.isfinite().all() for one in replay.outputs[:1])
    for value in (1.0, 5.0):
        total, positive = replay(torch.full((3,), value), ONES * 2)
        assert total.tolist() == [2 * value + 1, 2 * value + 2, 2 * value + 3] and positive.all()
    held = total
    replay(ONES, ONES)
    assert held.tolist() == [2.0, 3.0, 4.0]  # the next call overwrites it
    assert len(captured_on_cpu.functions) == 1 and len(captured_on_cpu.replays) == 3


@pytest.mark.parametrize("what", ["an object that was copied", "a number", "a branch", "a view"])
def test_what_a_graph_would_not_notice_is_found(captured_on_cpu, what):
    """Everything but the values of tensors is as it was captured."""
    world = {"table": torch.rand(6), "number": 2.0, "more": False, "first": 0}

    def work(one):
        found = one * world["table"][world["first"] : world["first"] + 3] * world["number"]
        return (found + 1 if world["more"] else found,)

    replay = Replay(work, [ONES])
    replay(ONES)
    world["table"].fill_(3.0)
    assert replay(ONES)[0].tolist() == [6.0] * 3
    kept = world["table"]
    world |= {
        "an object that was copied": {"table": kept.clone()},
        "a number": {"number": 3.0},
        "a branch": {"more": True},
        "a view": {"first": 1},
    }[what]
    with pytest.raises(NotReplayed, match="steps captured" if what == "a branch" else "captured .*\n  now"):
        replay(ONES)


def test_what_a_graph_keeps_is_overwritten_by_the_next_replay(captured_on_cpu):
    kept = []
    replay = Replay(lambda one: (kept.append(one + 1) or kept[-1] * 2,), [ONES])
    replay(ONES)
    made = kept[-1]
    assert made.tolist() == [2.0] * 3
    replay(ONES)
    assert made.isnan().all()


def test_branches_and_kept_graphs(captured_on_cpu):
    replay = BranchingReplay(
        lambda one: (one * 2,), [ONES], which=lambda made: bool(made.sum() > 0), then=lambda up, made: (made + up,)
    )
    for value, wanted in ((1.0, 3.0), (-1.0, -2.0), (2.0, 5.0)):
        assert replay(torch.full((3,), value))[0].tolist() == [wanted] * 3
    assert len(replay.branches) == 2 and len(captured_on_cpu.functions) == 3
    kept = KeptReplays(1)
    for key in "aba":
        assert kept.find(key, lambda one: (one + 1,), [ONES])(ONES)[0].tolist() == [2.0] * 3
    assert len(captured_on_cpu.functions) == 6


def test_a_capture_that_falls_back_is_said_and_fails_a_test(captured_on_cpu, monkeypatch):
    def refused(*given):
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr("tests.graphs.GraphOnCpu.capture", refused)
    with pytest.raises(RuntimeWarning, match=r"slower: the capture failed: operation not permitted$"):
        Replay(lambda one: (one + 1,), [ONES])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        replays = [Replay(lambda one: (one + 1,), [ONES]) for _ in range(3)]
    assert len(said) == 1 and str(said[0].message).startswith(graph.NO_GRAPH)
    assert replays[0].reason == "the capture failed: operation not permitted"
    assert replays[0](ONES)[0].tolist() == [2.0] * 3
