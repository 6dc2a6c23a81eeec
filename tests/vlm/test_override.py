"""A method of one module is replaced, and comes back in whatever order replacements are removed."""

import pytest
from torch import nn

from texturevlm.vlm.modules import Override


class Module(nn.Module):
    def forward(self):
        return "stock"


@pytest.mark.parametrize("first", [0, 1])
def test_replacements_are_removed_in_any_order(first):
    module = Module()
    before = set(vars(module))
    pair = [Override(module, "forward", lambda: "one"), Override(module, "forward", lambda: "two")]
    assert module() == "two" and pair[1].original() == "one" and pair[0].original() == "stock"
    pair[first].remove()
    assert module() == ("two" if first == 0 else "one")
    pair[1 - first].remove()
    assert module() == "stock" and set(vars(module)) == before


def test_what_was_wrapped_by_others_only_calls_what_it_replaced():
    module = Module()
    override = Override(module, "forward", lambda: "ours")
    module.forward = lambda: f"theirs around {override()}"  # as accelerate does
    assert module() == "theirs around ours"
    override.remove()
    assert module() == "theirs around stock"
