"""What changes a model while it runs: one small interface, behind which the methods are.

A hook is a frozen value. Users give it by the options that it declares (`reduce="tome"`), which are looked up in
`HOOKS`, or as an object (`hooks=[…]`). All that a hook does not override leaves the model as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar, Protocol

from torch import Tensor

from texturevlm.registry import Registry
from texturevlm.types import Allocation, Texture
from texturevlm.vlm.adapter import Adapter
from texturevlm.vlm.captured_decode import KnownKeys
from texturevlm.vlm.captured_generate import KnownOf, dense_keys


class CapturedModel(Protocol):
    """A model in graphs that answers one prompt about one image, as CapturedPrefill does.

    budget: slots of its images
    """

    budget: int

    @property
    def stale(self) -> bool: ...

    @property
    def reasons(self) -> list[str]: ...

    def generate(self, prompts: Any, texture: Texture, allocation: Allocation, **options: Any) -> Any: ...


class ModelHook:
    """One change of a model.

    options: of `load_vlm` and `ask` by which users ask for it
    lasting: whether it stays in the model from `load_vlm` on; otherwise it can also be given for one question
    grows:   whether tokens can be appended to a prompt that it read, as looks="auto" does
    """

    options: ClassVar[tuple[str, ...]] = ()
    lasting: ClassVar[bool] = False
    grows: ClassVar[bool] = False

    @classmethod
    def of(cls, function: str, options: Mapping[str, Any], usual: ModelHook | None = None) -> ModelHook | None:
        """The hook that these of its options ask for; None: none.

        usual: what the model was loaded with, which `options` change for one question
        """
        raise TypeError(f"{function}: {cls.__name__} must be given in hooks, as an object, got {options!r:.80}")

    @property
    def name(self) -> str:
        """As users know it."""
        return self.options[0] if self.options else type(self).__name__

    @property
    def given(self) -> dict[str, Any]:
        """The options that ask for it."""
        return {"hooks": [self]}

    # Before the model runs.

    def check(self, function: str, config: Any, hooks: Sequence[ModelHook]) -> None:
        """Raise if a model with this config cannot be changed so, or not beside the other hooks."""

    def budgeted(self, function: str, budget: int) -> tuple[int, ModelHook]:
        """How many tokens are to be chosen, so that the budget is kept, and the hook for so many."""
        return budget, self

    def kept(self, count: int) -> int:
        """How many of so many visual tokens are left in the model's last layer."""
        return count

    def pixels(
        self, adapter: Adapter, texture: Texture, chosen: Allocation, relevance: Any, read: Allocation
    ) -> Tensor | None:
        """(1, K, C, P, P): what the tokens of an image show in the place of its own samples; None: these.

        chosen, relevance: the tokens, and what they were chosen by
        read: their footprints as the model reads them, some turned with the text that they show
        """
        return None

    @property
    def repaints(self) -> bool:
        """Whether it changes what tokens show, and nothing in the model."""
        return type(self).pixels is not ModelHook.pixels

    # While it runs.

    def attach(self, adapter: Adapter) -> None:
        """Change the model of a bound adapter until that is restored (`Adapter.also`); for lasting hooks."""

    def run(self, adapter: Adapter, *, endings: Sequence[int] | None = None) -> AbstractContextManager[KnownOf | None]:
        """Change the model of a bound adapter while the context lasts; its lock is held.

        endings: per prompt, tokens at its end that are an answer to be judged
        yields what a captured decoding must know of the keys that a prompt leaves in a cache; None: it decodes itself
        """
        return nullcontext(dense_keys)

    # In CUDA graphs.

    def not_captured_because(self) -> str | None:
        """Why a prompt cannot be read from graphs; None if `captured` makes them."""
        return f"a model that {self.name} changes is captured only while it decodes"

    def captured(self, adapter: Adapter, budget: int) -> CapturedModel:
        """The model with this hook in graphs, for so many tokens that are chosen."""
        raise NotImplementedError(f"captured: not for {self.name}")


HOOKS: Registry[type[ModelHook]] = Registry(
    "option",
    "texturevlm.hooks",
    {},
    lab=("reduce", "keep", "attention", "tower_attention", "tokens"),
    fits=lambda given: isinstance(given, type) and issubclass(given, ModelHook),
)


def hooks_of(
    function: str, options: Mapping[str, Any], objects: Iterable[Any] = (), usual: Sequence[ModelHook] = ()
) -> tuple[ModelHook, ...]:
    """The hooks that a caller asks for, in the order of the options.

    options: names that hooks declare → values; None: not given
    objects: hooks themselves
    usual:   hooks of the model, which stay where the options say nothing else
    """
    given = {name: value for name, value in options.items() if value is not None}
    kinds = {HOOKS.find(function, name, said=f"{name}={value!r:.60}"): None for name, value in given.items()}
    found = [hook for hook in usual if type(hook) not in kinds]
    for kind in kinds:
        own = {name: given[name] for name in kind.options if name in given}
        made = kind.of(function, own, next((hook for hook in usual if type(hook) is kind), None))
        found += [] if made is None else [made]
    for hook in objects:
        if not isinstance(hook, ModelHook):
            raise TypeError(f"{function}: hooks must be ModelHooks, got {hook!r:.80}")
        found.append(hook)
    return tuple(found)


def budgeted(function: str, hooks: Sequence[ModelHook], budget: int) -> tuple[int, tuple[ModelHook, ...]]:
    """Tokens that are chosen so that the hooks keep the budget, and the hooks for so many."""
    found = []
    for hook in hooks:
        budget, own = hook.budgeted(function, budget)
        found.append(own)
    return budget, tuple(found)


def check_hooks(function: str, config: Any, hooks: Sequence[ModelHook]) -> None:
    """Raise if a model with this config cannot have these hooks together."""
    for hook in hooks:
        hook.check(function, config, hooks)


def check_own_pixels(kind: str, hooks: Sequence[ModelHook]) -> None:
    """Raise if a hook changes what tokens show of something that is no image. kind: what it is, such as a video"""
    if hook := next((hook for hook in hooks if hook.repaints), None):
        raise ValueError(f"ask: hooks must leave the pixels of a {kind}, got {hook.name}")


@contextmanager
def running(adapter: Adapter, hooks: Sequence[ModelHook], *, endings: Sequence[int] | None = None) -> Iterator[KnownOf]:
    """Inside, the hooks change the model of an adapter, whose lock is held; arguments and result as of `run`."""
    with ExitStack() as undo:
        known = [undo.enter_context(hook.run(adapter, endings=endings)) for hook in hooks]
        own = [keys for keys in known if keys is not dense_keys]
        if not own:
            yield dense_keys
        else:
            yield own[0] if len(own) == 1 and own[0] is not None else unknown_keys


def unknown_keys(cache: Any, given: Mapping[str, Any]) -> list[KnownKeys] | None:
    """KnownOf of a model that decodes itself."""
    return None


class StoredFeatures(ModelHook):
    """The model gets features instead of running its tower.

    features: as from `Adapter.embed`, for the views of one batch of prompts, in their order
    """

    def __init__(self, features: Sequence[Sequence[Tensor]]) -> None:
        wrong = sorted({tokens.dim() for part in features for tokens in part} - {2})
        if not features or wrong:
            got = f"{len(features)} lists" + (f" with a tensor of {wrong[0]} dimensions" if wrong else "")
            raise ValueError(f"StoredFeatures: features must be lists of (n, D), got {got}")
        self.features = features

    @contextmanager
    def run(self, adapter: Adapter, *, endings: Sequence[int] | None = None) -> Iterator[KnownOf]:
        with ExitStack() as undo:
            for override in adapter.replaced_tower(self.features):
                undo.callback(override.remove)
            yield dense_keys
