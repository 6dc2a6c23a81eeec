"""What is done to the modules of somebody else's model: a method replaced, weights found, a tower tried out.

Every question asks for modules and weights, so both are quick: `nn.Module.modules` remembers what it has seen and names
everything, which takes half a millisecond for a model of 36 layers, `parameters` twice that.

The probe says whether a vision tower reads each of the arguments that are precomputed for it. Towers take them through
`**kwargs`, so one that transformers renames would be ignored without a word, and positions would come from the
pseudo-grid.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from texturevlm.vlm.places import PICTURE, SEGMENT, Geometry, pack


class Override:
    """Stands in for a method of one module until `remove`; it can be copied and pickled with the module.

    It shows the signature of what it replaces, because `generate` passes only the arguments that it finds there.
    """

    def __init__(self, module: Any, name: str, method: Any) -> None:
        if not callable(getattr(module, name, None)):
            raise RuntimeError(f"adapt: {type(module).__name__} has no {name} in this version of transformers")
        self.module, self.name, self.method, self.removed = module, name, method, False
        self.before = module.__dict__.get(name)
        self.__signature__ = inspect.signature(getattr(module, name))
        module.__dict__[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs) if self.removed else self.method(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Call what was replaced."""
        if self.before is not None:
            return self.before(*args, **kwargs)
        kind = type(self.module)
        return inspect.getattr_static(kind, self.name).__get__(self.module, kind)(*args, **kwargs)

    def remove(self) -> None:
        """Put back what was there. If another replacement stands in front, this one only calls what it replaced."""
        self.removed = True
        if self.module.__dict__.get(self.name) is not self:
            return
        before = self.before
        while isinstance(before, Override) and before.removed:
            before = before.before
        if before is None:
            del self.module.__dict__[self.name]
        else:
            self.module.__dict__[self.name] = before


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
    return switches + [(weight.data_ptr(), weight.dtype) for weight in weights if weight is not None]


def input_device(model: Any) -> torch.device:
    """Where a model takes its inputs. Offloaded weights are on the meta device; their hook knows where they will be."""
    device = torch.device(model.device)
    if device.type != "meta":
        return device
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)
        for part in getattr(hook, "hooks", [hook]):
            if (found := getattr(part, "execution_device", None)) is not None:
                return torch.device(found)
    return device


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Afterwards every module is in the mode in which it was.

    In training mode there is dropout, and with gradient checkpointing transformers generates without a cache: nonsense.
    """
    training = [module for module in modules_of(model) if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


# Columns of four tokens: all in one place; or apart, the third far from its neighbours, so that it is in another window
TOGETHER, APART = (0.0, 0.0, 0.0, 0.0), (0.0, 0.25, 18.25, 0.5)


def ignored_argument(adapter: Any) -> str | None:
    """The first argument that does not move the output of the tower by itself; None if all of them do.

    adapter: of a tower with precomputed arguments (`tower_arguments`), bound
    """
    together = _geometry(adapter, TOGETHER, segments=1)
    apart = _geometry(adapter, APART, segments=2)
    # Noise of large contrast: smooth pixels differ so little that half precision would hide a change.
    noise = torch.Generator().manual_seed(0)
    pixels = 3 * torch.randn(len(apart.patch), adapter.row_width, generator=noise)
    rows = pack(pixels, apart, torch.ones(len(pixels), 1)).to(adapter.device, adapter.tower.dtype)
    columns = (part.to(adapter.device) for part in (together.patch, together.extent, together.begins[:, 0] > 0))
    right = partial(_output, adapter, rows)
    with torch.no_grad():
        expected = right()
        for name, value in adapter.tower_arguments(*columns).items():
            wrong = partial(right, **{name: value})
            if torch.equal(wrong(), expected) and not moves(adapter, right, wrong):
                return str(name)
    return None


def moves(adapter: Any, first: Callable[[], Tensor], other: Callable[[], Tensor]) -> bool:
    """Whether two runs of the vision tower differ; in float32 if half precision hides a difference."""
    with torch.no_grad():
        if not torch.equal(first(), other()):
            return True
        with _in_float32(adapter.model):
            return not torch.equal(first(), other())


@contextmanager
def _in_float32(model: Any) -> Iterator[None]:
    """The vision side of a model in float32 for a while."""
    halves = {
        weight: weight.data
        for name, weight in model.named_parameters()
        if weight.is_floating_point() and "language_model" not in name and "lm_head" not in name
    }
    try:
        for weight in halves:
            weight.data = weight.data.float()
        yield
    finally:
        for weight, data in halves.items():
            weight.data = data


def _geometry(adapter: Any, columns: tuple[float, ...], *, segments: int) -> Geometry:
    """Tokens in a row of a large picture; the first one is a segment by itself if there are two."""
    merge = adapter.merge
    corner = torch.tensor([[0.0, column * merge] for column in columns])
    inner = torch.cartesian_prod(torch.arange(float(merge)), torch.arange(float(merge)))
    patch = (corner[:, None] + inner).flatten(0, 1)
    begins = torch.zeros(len(patch), 1)
    begins[merge**2 * (segments - 1)], begins[0] = SEGMENT, PICTURE
    grid = torch.full_like(patch, 20.0)
    return Geometry(patch, grid * merge, patch / merge, grid, torch.zeros_like(begins), begins)


def _output(adapter: Any, rows: Tensor, **instead: Tensor) -> Tensor:
    """What the tower makes of packed rows if some of its arguments are replaced."""
    given = adapter.tower_arguments
    override = Override(adapter, "tower_arguments", lambda *columns: given(*columns) | instead)
    try:
        grid = torch.tensor([[1, adapter.merge, len(rows) // adapter.merge]], device=rows.device)
        output: Tensor = adapter.tower(rows, grid_thw=grid).pooler_output
        return output
    finally:
        override.remove()
