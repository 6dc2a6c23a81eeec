"""What every allocator has in common: its arguments, its checks, and what it declares about itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, Literal, Protocol, cast

from texturevlm.allocate.cells import Array, Cells
from texturevlm.allocate.footprints import Boxes, allocation_of, use_all
from texturevlm.check import check_count, check_share
from texturevlm.defaults import BUDGET, PATCH
from texturevlm.registry import Registry, near_miss
from texturevlm.relevance import Relevance
from texturevlm.types import Allocation, Texture

# Whether a CUDA graph can capture an allocator: it is tensor operations of static shapes ("always"), only where its
# kernels run ("kernels"), or it searches on the CPU ("never").
Capture = Literal["always", "kernels", "never"]
_SHARES = {"overview", "share", "first"}  # options of any allocator that are shares of the budget or the cells


class RegisteredAllocator(Protocol):
    """A function that decides where a budget of tokens goes. options: its keyword arguments beyond budget and patch."""

    __name__: str
    options: tuple[str, ...]
    capture: Capture

    def __call__(
        self, texture: Texture, relevance: Relevance, *, budget: int = BUDGET, patch: int = PATCH, **options: Any
    ) -> Allocation: ...


ALLOCATORS: Registry[RegisteredAllocator] = Registry(
    "allocator",
    "texturevlm.allocators",
    {
        "resize": "texturevlm.allocate.plain:resize",  # the whole image at one scale
        "grid": "texturevlm.allocate.plain:grid",  # the best cells of a uniform grid, nothing else
        "fit": "texturevlm.allocate.layers:fit",  # all ink at the finest scale that fits
        "layers": "texturevlm.allocate.layers:layers",  # the best cells finely, the other ink coarsely
        "density": "texturevlm.allocate.density:density",  # a tiling whose density follows the relevance
        "crops": "texturevlm.allocate.crops:crops",  # an overview and a few rectangles
        "quadtree": "texturevlm.allocate.quadtree:quadtree",  # square tiles halved both ways
        "auto": "texturevlm.allocate.auto:auto",  # layers or density, by the kind of image
    },
    lab=("cascade", "atlas", "dag", "pyramid", "frequency", "logpolar", "fixations"),
    clients=("resize", "grid", "fit", "layers", "density", "crops", "quadtree", "auto"),
)


def allocator(capture: Capture = "never") -> Callable[[Callable[..., Allocation]], RegisteredAllocator]:
    """Decorator: a function (texture, relevance, *, budget, patch, …options) → Allocation becomes an allocator."""
    return lambda choose: _checked(choose, choose, capture)


def per_image(cut_leftover: bool = True) -> Callable[[Callable[..., Boxes]], RegisteredAllocator]:
    """Decorator: a function (cells, budget, *, …options) → boxes with scores of one image becomes an allocator.

    cut_leftover: whether unused tokens go to the best boxes, see `use_all`
    """

    def decorate(choose: Callable[..., Boxes]) -> RegisteredAllocator:
        def batch(texture: Texture, relevance: Relevance, *, budget: int, patch: int, **options: Any) -> Allocation:
            one = partial(choose, budget=budget, **options)
            return each_image(texture, relevance, budget, patch, one, cut_leftover=cut_leftover)

        return _checked(choose, batch, "never")

    return decorate


def _checked(source: Callable[..., Any], choose: Callable[..., Allocation], capture: Capture) -> RegisteredAllocator:
    """`choose` with its arguments checked first; options are accepted or refused by name.

    source: the function whose name, docstring and keyword-only arguments the allocator has
    """
    name = source.__name__
    own = [one for one in inspect.signature(source).parameters.values() if one.kind is one.KEYWORD_ONLY]
    own = [one for one in own if one.name not in ("budget", "patch")]
    options = tuple(one.name for one in own)

    def call(
        texture: Texture, relevance: Relevance, *, budget: int = BUDGET, patch: int = PATCH, **given: Any
    ) -> Allocation:
        check_count(name, "budget", budget, 1)
        check_count(name, "patch", patch, 1)
        if unknown := [option for option in given if option not in options]:
            known = f"options are {', '.join(options)}" if options else "there are no options"
            raise TypeError(f"{name}: {known}, got {unknown[0]!r}{near_miss(unknown[0], options)}")
        for option in _SHARES & given.keys():
            check_share(name, option, given[option])
        if not 0 < given.get("even", 1.0) < float("inf"):
            raise ValueError(f"{name}: even must be above 0 and finite, got {given['even']!r}")
        return choose(texture, relevance, budget=budget, patch=patch, **given)

    made = cast(Any, wraps(source)(call))
    shared = list(inspect.signature(call, follow_wrapped=False).parameters.values())[:-1]  # without **given
    made.__signature__ = inspect.Signature([*shared, *own], return_annotation=Allocation)
    made.options, made.capture = options, capture
    return cast(RegisteredAllocator, made)


def each_image(
    texture: Texture,
    relevance: Relevance,
    budget: int,
    patch: int,
    choose: Callable[..., Boxes],
    *own: Sequence[Any] | Array,
    cut_leftover: bool = True,
) -> Allocation:
    """An Allocation from a function (cells, an entry of each own) → at most `budget` boxes with scores of one image."""
    images = [choose(Cells.of(relevance, image, patch), *(one[image] for one in own)) for image in range(texture.batch)]
    if cut_leftover:
        images = [use_all(found, budget=budget, patch=patch) for found in images]
    return allocation_of(images, texture.size, budget=budget, patch=patch, device=texture.device)
