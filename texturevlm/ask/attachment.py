"""`attach`: a model that the user has learns to take chosen tokens, and the user gets a processor that chooses them.

The user's own processor is not changed. The hooks of the model stay until the last processor is detached.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import parent_process
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from torch import nn

from texturevlm.ask.config import check_drawn
from texturevlm.check import check_choice
from texturevlm.defaults import ALLOCATOR, BUDGET, RELEVANCE, TURN
from texturevlm.placement import Allocator, TokenConfig
from texturevlm.vlm import FAMILIES, Adapter, adapter_for
from texturevlm.vlm.adapter import ATTRIBUTE, HOOKED
from texturevlm.vlm.trained import trained_as

DEFAULTS: dict[str, Any] = {"budget": BUDGET, "allocator": ALLOCATOR, "relevance": RELEVANCE, "turn": TURN}
WRAPPERS = ("get_base_model", "_orig_mod", "module")  # of PEFT, of torch.compile, of data parallel training
_ATTACHED: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # processor → model
ASKING: WeakSet[Any] = WeakSet()  # VLMs: when the hooks of a model go, so do their graphs
_LAST: WeakKeyDictionary[Any, ref[Any]] = WeakKeyDictionary()  # processor → the model that it was attached to last


def attach(
    model: nn.Module,
    processor: Any,
    *,
    budget: int | tuple[int, int] | None = None,
    allocator: str | Allocator | None = None,
    relevance: str | Sequence[str] | None = None,
    turn: float | str | None = None,
) -> Any:
    """Hook a transformers model so that it takes chosen tokens, and return the TextureProcessor that chooses them.

    model:     of one of the families in docs/models.md, also one wrapped by PEFT, or the VLM that `load_vlm` returned
    processor: its processor; or one that an earlier `attach` returned, which is replaced and keeps its options
    budget, allocator, relevance, turn: as in `TextureProcessor`; if not given what the model's config names, else the
               package's defaults
    Its `detach` undoes this. Ordinary input still goes through the model unchanged.
    """
    from texturevlm.ask.processor import TextureProcessor

    network = network_of("attach", model)
    given = {"budget": budget, "allocator": allocator, "relevance": relevance, "turn": turn}
    options = DEFAULTS | trained_as(network.config).placed
    if isinstance(processor, TextureProcessor):
        options = {name: getattr(processor, name) for name in options}
    options |= {name: value for name, value in given.items() if value is not None}
    check_drawn("attach", options["budget"], options["relevance"])
    TokenConfig(allocator=options["allocator"], turn=options["turn"]).check("attach")
    found = TextureProcessor(processor, network.config, **options)
    hooked(network, found)
    if attached_to(processor) is network:
        detach(processor)
    return found


def attached_to(processor: Any) -> Any:
    """The model that a processor is attached to, or None."""
    return next((network for known, network in _ATTACHED.items() if known is processor), None)


def network_of(function: str, model: Any) -> Any:
    """The model inside its wrappers, if it is one of a family."""
    network = unwrapped(model)
    family = getattr(getattr(network, "config", None), "model_type", type(network).__name__)
    check_choice(function, "model", family, FAMILIES)
    wanted = FAMILIES[family].architecture.rpartition(":")[2]
    if wanted not in [kind.__name__ for kind in type(network).__mro__]:
        raise TypeError(f"{function}: model must be a {wanted}, got {type(network).__name__}")
    return network


def detach(attached: Any) -> Any:
    """Undo `attach`; returns the model.

    attached: the processor that `attach` returned: the hooks go with the last one of a model; or the model itself, or
              its VLM
    """
    from texturevlm.ask.model import VLM
    from texturevlm.ask.processor import TextureProcessor

    if isinstance(attached, (nn.Module, VLM)):
        network = unwrapped(attached)
        for processor in [known for known, other in _ATTACHED.items() if other is network]:
            del _ATTACHED[processor]
    elif isinstance(attached, TextureProcessor):
        network = _ATTACHED.pop(attached, None)
        if network is None and hasattr(last := _last_model(attached), ATTRIBUTE):
            network = last  # it was replaced; what replaced it may be gone, and would leave its hooks behind
    else:
        wanted = "the processor that attach returned, or the model"
        raise TypeError(f"detach: attached must be {wanted}, got {type(attached).__name__}")
    if network is not None and not any(other is network for other in _ATTACHED.values()):
        adapter = getattr(network, ATTRIBUTE, None)
        if adapter is not None:
            adapter.restore()
        for asking in [vlm for vlm in ASKING if vlm.model is network]:
            asking.release()
    return network


def hooked(network: Any, processor: Any) -> Adapter:
    """The adapter that holds the hooks of a model, which stay until this and all its other processors are detached."""
    adapter: Adapter | None = getattr(network, ATTRIBUTE, None)
    if adapter is None:
        adapter = adapter_for(network.config).bind(network)
    _ATTACHED[processor], _LAST[processor] = network, ref(network)
    return adapter


def check_still_hooked(processor: Any) -> None:
    """Raise if the model of a processor was detached: it would fail on chosen tokens with an error about shapes.

    A processor that was never attached, such as a copy in a worker, knows of no model.
    """
    network = _last_model(processor)
    if network is not None and not hasattr(network, ATTRIBUTE):
        raise ValueError(
            f"processor: its {type(network).__name__} was detached and takes no chosen tokens; attach it once more, "
            "or use the model's own processor (.processor)"
        )


def _last_model(processor: Any) -> Any:
    """The model that a processor was attached to last, or None."""
    return _LAST[processor]() if processor in _LAST else None


def none_attached() -> bool:
    """Whether this process, which is no worker of another one, has no attached model at all."""
    return parent_process() is None and not HOOKED


def unwrapped(model: Any) -> Any:
    """The model inside what PEFT, torch.compile or data parallel training put around it, or inside a VLM."""
    from texturevlm.ask.model import VLM

    if isinstance(model, VLM):
        return model.model
    for name in WRAPPERS:
        inner = getattr(model, name, None)
        if inner is not None:
            return unwrapped(inner() if callable(inner) and not isinstance(inner, nn.Module) else inner)
    return model
