"""`texturevlm doctor --defaults`: the same option has the same default at every door."""

import pytest
import torch

import texturevlm as tv
from texturevlm.cli import main
from texturevlm.commands import doctor
from texturevlm.placement import Finer
from texturevlm.relevance import Balance
from texturevlm.relevance.maps import find_balance

OPTIONS = ("budget", "allocator", "relevance", "turn", "patch")
OF_A_FRAME = ("reader: VideoStream",)  # whose budget is tokens per frame, and which turns nothing


def values(how):
    tokens = how.tokens
    balance = find_balance("test", tokens.balance, "")
    return {name: getattr(tokens, name) for name in OPTIONS} | {
        "balance": balance,
        "finer": tokens.finer.at(tokens.budget),
        "looks": how.looks,
    }


@pytest.fixture(scope="module")
def rows():
    return {door: how for door, how in doctor.doors() if not isinstance(how, str)}


def test_every_door_has_the_same_defaults_but_where_the_checkpoint_says_others(rows):
    usual = {"budget": 273, "allocator": "auto", "relevance": "auto", "turn": 0, "patch": 32}
    usual |= {"balance": Balance(), "finer": Finer().at(273), "looks": 1}
    own = values(rows["reader: server"])
    assert own != usual and own["budget"] == 512
    for door, how in rows.items():
        wanted = own if door.startswith("reader: ") else usual
        if door in OF_A_FRAME:
            wanted = usual | {name: own[name] for name in ("finer", "patch", "looks")}
        assert values(how) | {"finer": 0} == wanted | {"finer": 0}, door
        assert (how.tokens.finer.most > 1) == door.startswith("reader: "), door
    assert len(rows) >= 17


def test_what_is_printed_is_what_the_functions_take(monkeypatch):
    """The three functions whose rows no object states are called with nothing."""
    taken = []

    def stop(*given, **options):
        taken.append(options.get("how") or next(one for one in given if isinstance(one, tv.TokenConfig)))
        raise InterruptedError

    texture = tv.Texture.open(torch.rand(3, 64, 64))
    with monkeypatch.context() as patched:
        patched.setattr("texturevlm.placement.tokens.choose", stop)
        patched.setattr("texturevlm.placement.placement.place_together", stop)
        patched.setattr("texturevlm.pages.choose.scouted", stop)
        from texturevlm.pages import choose_pages

        for call in (lambda: tv.choose_tokens(texture), lambda: tv.place(texture), lambda: choose_pages([texture])):
            with pytest.raises(InterruptedError):
                call()
    assert taken == [tv.TokenConfig()] * 3


def test_the_table_names_every_door_and_option(rows, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "doors", lambda: [*rows.items(), ("reader: lmms-eval", "not installed")])
    assert main(["doctor", "--defaults"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["door", *OPTIONS[:3], "balance", "turn", "finer", "patch", "looks"]
    assert len(lines) == len(rows) + 1 and lines[-1].endswith("not installed")
    assert "512" in next(line for line in lines if line.startswith("reader: server"))
