"""Balances by name: what was learned for a scorer is used for it, and only for it."""

import json

import pytest
import torch

import texturevlm as tv
from texturevlm.relevance import Balance, find_relevance
from texturevlm.relevance.maps import find_balance, load_balances
from texturevlm_lab.commands.weights import save_balances


def test_names_stand_for_balances_and_a_balance_for_itself():
    own = Balance(explore=0.5)
    assert find_balance("here", own, "scout") is own
    assert find_balance("here", "even", "scout") == Balance()
    learned = load_balances()
    assert find_balance("here", "learned", "scout") == learned["scout"] != Balance()
    assert find_balance("here", "learned", "words") == Balance()  # none was learned for it
    with pytest.raises(ValueError, match="here: balance must be one of even, learned, got 'odd'"):
        find_balance("here", "odd", "scout")
    with pytest.raises(TypeError, match="here: balance must be a Balance or one of even, learned, got int"):
        find_balance("here", 3, "scout")


def test_the_learned_balance_changes_relevance():
    texture = tv.Texture(torch.rand(1, 3, 200, 300, generator=torch.Generator().manual_seed(0)))
    even, learned, given = (
        find_relevance(texture, relevance="channels", balance=balance)
        for balance in ("even", "learned", load_balances()["channels"])
    )
    assert torch.equal(learned.mass, given.mass)
    assert not torch.allclose(learned.mass, even.mass)


def test_files_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "balances.json"
    save_balances({"scout": Balance(explore=torch.tensor(0.25), focus=torch.tensor(1.5))}, path)
    assert load_balances(str(path)) == {"scout": Balance(explore=0.25, focus=1.5)}
    for text in ("[]", "{", json.dumps({"scout": {"explore": 2}}), json.dumps({"scout": {"exploit": 1}})):
        other = tmp_path / f"{abs(hash(text))}.json"
        other.write_text(text)
        with pytest.raises(ValueError, match="must be as ship-balance wrote it"):
            load_balances(str(other))
