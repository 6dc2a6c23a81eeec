"""The modules of a model, and where its weights lie. Every question asks for both, so both are quick.

`nn.Module.modules` remembers what it has seen and names everything, which takes half a millisecond for a model of 36
layers, `parameters` twice that.
"""

from __future__ import annotations

from typing import Any

SWITCHES = ("_disable_adapters", "_active_adapter", "merged_adapters", "scaling")  # of the layers of PEFT


def modules_of(model: Any) -> list[Any]:
    """A model and all modules inside it, a shared one as often as it is used."""
    found = [model]
    for module in found:  # which grows meanwhile
        if module is not None and (inner := module._modules):
            found += inner.values()
    return [module for module in found if module is not None]


def addresses(model: Any) -> list[Any]:
    """What a captured graph relies on: address and dtype of every weight, and which adapters of PEFT are on."""
    switches, weights = [], list[Any]()
    for module in modules_of(model):
        if SWITCHES[0] in module.__dict__:
            switches.append(str([module.__dict__.get(name) for name in SWITCHES]))
        if own := module._parameters:
            weights += own.values()
        if own := module._buffers:
            weights += own.values()
    return switches + [(one.data_ptr(), one.dtype) for one in weights if one is not None]
