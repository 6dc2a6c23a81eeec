"""What a user asks for: methods, budgets and layers, checked before slow work begins, and laid out for a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from texturevlm.check import check_choice, check_count
from texturevlm_lab.rivals.dyrate import trained_rate
from texturevlm_lab.rivals.method import PLACES, DecodeRate, ReduceStage
from texturevlm_lab.rivals.registry import METHODS

OPTIONS = ("keep", "layer", "rate", "difference")  # of a step, besides its method
WANTED = "a name or a list of (name, keep), such as [('tome', 0.5)]"


@dataclass(frozen=True)
class ReduceStep:
    """One method.

    method: a name of METHODS
    keep:   visual tokens of a prompt that stay; or their share, a float above 0 and at most 1
    layers: of the language model, after which its stages there act; None: the method's own
    rate:   for stages while decoding, in the place of the method's own
    difference: for stages in the tower, a file of trained weights that are added to the tower's (Token Compensator)
    """

    method: str
    keep: int | float
    layers: tuple[int, ...] | None = None
    rate: DecodeRate | None = None
    difference: Path | None = None

    def target(self, count: int) -> int:
        """Of so many tokens, how many stay. A prompt that has fewer than `keep` loses none."""
        return max(1, round(self.keep * count)) if isinstance(self.keep, float) else min(self.keep, count)


@dataclass(frozen=True)
class Planned:
    """One stage of a step in a model.

    index: of the step
    left:  stages of the step from this one on
    after: blocks of the tower, or layers of the language model, that run before it; for decode, the layer that counts
    """

    step: ReduceStep
    stage: ReduceStage
    index: int
    left: int
    after: int

    @property
    def order(self) -> tuple[int, int]:
        """In which stages act."""
        return PLACES.index(self.stage.place), self.after

    @property
    def where(self) -> str:
        """In words."""
        return {
            "pixels": "before the tower",
            "tower": f"after block {self.after} of the tower",
            "projector": "behind the projector",
            "llm": f"after layer {self.after}",
            "decode": "while decoding",
        }[self.stage.place]


def steps_of(function: str, reduce: Any, keep: int | float | None = None) -> tuple[ReduceStep, ...]:
    """Steps from the options `reduce` and `keep` of a function.

    reduce: a name of METHODS; or a list of names, (name, keep) or (name, {"keep": …, "layer": …}); None or []: nothing.
            For dyrate, "rate" may be the weights that `texturevlm train` made, or a function; for methods in the tower,
            "difference" those of a compensator
    keep:   for the steps that do not say it
    """
    if reduce is None or (isinstance(reduce, (list, tuple)) and not reduce):
        if keep is not None:
            raise ValueError(f"{function}: keep needs reduce, one of {', '.join(METHODS)}, got keep={keep!r} alone")
        return ()
    given = [reduce] if isinstance(reduce, (str, ReduceStep)) else reduce
    if not isinstance(given, Sequence) or any(isinstance(one, (int, float, Mapping)) for one in given):
        raise TypeError(f"{function}: reduce must be {WANTED}, got {reduce!r}")
    return tuple(_step(function, one, keep) for one in given)


def _step(function: str, given: Any, keep: int | float | None) -> ReduceStep:
    if isinstance(given, ReduceStep):
        more = {"keep": given.keep, "layer": given.layers, "rate": given.rate, "difference": given.difference}
        given = (given.method, more)
    pair = (given, {}) if isinstance(given, str) else given
    if not isinstance(pair, Sequence) or not 1 <= len(pair) <= 2:
        raise TypeError(f"{function}: reduce must be {WANTED}, got {given!r}")
    name, more = pair if len(pair) == 2 else (pair[0], {})
    check_choice(function, "reduce", name, METHODS)
    options: Mapping[str, Any] = more if isinstance(more, Mapping) else {"keep": more}
    for option in options:
        check_choice(function, f"option of {name}", option, OPTIONS)
    wanted = options.get("keep", keep)
    if wanted is None:
        raise ValueError(f"{function}: keep must be given for {name}, got None")
    kept, layers = check_keep(function, name, wanted), _layers(function, name, options.get("layer"))
    rate, difference = options.get("rate"), options.get("difference")
    return ReduceStep(name, kept, layers, _rate(function, name, rate), _difference(function, name, difference))


def kept_of(steps: Sequence[ReduceStep], count: int) -> int:
    """Of so many tokens, how many are left behind the last step."""
    for step in steps:
        count = step.target(count)
    return count


def open_steps(reduce: Any) -> list[int]:
    """Which steps of what `steps_of` takes do not say how many tokens stay."""
    given = [reduce] if isinstance(reduce, (str, ReduceStep)) else reduce or ()
    return [index for index, one in enumerate(given) if not (isinstance(one, ReduceStep) or _says_keep(one))]


def _says_keep(given: Any) -> bool:
    more = None if isinstance(given, str) or len(given) < 2 else given[1]
    return "keep" in more if isinstance(more, Mapping) else more is not None


def check_keep(function: str, name: str, keep: int | float) -> int | float:
    """A number of tokens from 1 on, or a share."""
    if not isinstance(keep, float):
        return check_count(function, f"keep of {name}", keep, 1)
    if not 0 < keep <= 1:
        wanted = "a whole number of tokens, or a share above 0 and at most 1"
        raise ValueError(f"{function}: keep of {name} must be {wanted}, got {keep!r}")
    return keep


def _layers(function: str, name: str, layer: int | Sequence[int] | None) -> tuple[int, ...] | None:
    if layer is None:
        return None
    layers = tuple(layer) if isinstance(layer, Sequence) else (layer,)
    inside = [stage for stage in METHODS[name].stages if stage.place == "llm"]
    if not inside:
        known = ", ".join(one for one, method in METHODS.items() if "llm" in method.acts)
        raise ValueError(f"{function}: layer is for {known}; {name} acts elsewhere, got layer={layer!r}")
    if len(layers) != len(inside):
        wanted = "one number" if len(inside) == 1 else f"a list of {len(inside)} numbers, one per stage"
        raise ValueError(f"{function}: layer of {name} must be {wanted}, got {layer!r}")
    return layers


def _rate(function: str, name: str, rate: Any) -> DecodeRate | None:
    if rate is None:
        return None
    if "decode" not in METHODS[name].acts:
        known = ", ".join(one for one, method in METHODS.items() if "decode" in method.acts)
        raise ValueError(f"{function}: rate is for {known}; {name} does not act while decoding, got rate={rate!r}")
    if callable(rate):
        found: DecodeRate = rate
        return found
    if not isinstance(rate, (str, Path)) or not Path(rate).is_file():
        raise FileNotFoundError(f"{function}: rate of {name} must be a file of weights or a function, got {rate!r}")
    return trained_rate(rate)


def _difference(function: str, name: str, path: Any) -> Path | None:
    if path is None:
        return None
    if "tower" not in METHODS[name].acts:
        known = ", ".join(one for one, method in METHODS.items() if "tower" in method.acts)
        raise ValueError(f"{function}: difference is for {known}; {name} does not act in the tower, got {path!r}")
    if not isinstance(path, (str, Path)) or not Path(path).is_file():
        raise FileNotFoundError(f"{function}: difference of {name} must be a file of weights, got {path!r}")
    return Path(path)


def planned(function: str, steps: Sequence[ReduceStep], layers: int, blocks: int) -> list[Planned]:
    """The stages of all steps in the order in which they act.

    layers, blocks: of the language model, and of the tower
    """
    found: list[Planned] = []
    for index, step in enumerate(steps):
        stages = METHODS[step.method].stages
        own = iter(step.layers or ())
        for number, stage in enumerate(stages):
            depth = {"tower": blocks, "llm": layers, "decode": layers}.get(stage.place)
            after = 0 if depth is None else min(max(1, round(stage.depth * depth)), depth - 1)
            if stage.place == "llm":
                after = check_count(function, f"layer of {step.method}", next(own, after), 1, layers - 1)
            found.append(Planned(step, stage, index, len(stages) - number, after))
            if len(found) > 1 and found[-1].order < found[-2].order:
                one, before = found[-1], found[-2]
                raise ValueError(
                    f"{function}: reduce must be in the order of the model: {step.method} acts {one.where}, "
                    f"{before.step.method} before it in the list {before.where}"
                )
    return found


def check_needs(function: str, steps: Sequence[ReduceStep], given: Mapping[str, set[str]], family: str) -> None:
    """Raise if a method acts or needs what models of a family do not allow or give.

    given: place → the fields of Context that are there
    """
    works = ", ".join(name for name in METHODS if not _lacking(name, given))
    for step in steps:
        if lacking := _lacking(step.method, given):
            raise ValueError(f"{function}: {step.method} {lacking} {family}; these work: {works or 'none'}")


def _lacking(method: str, given: Mapping[str, set[str]]) -> str:
    """What a method lacks, in words before the name of a family; empty if nothing."""
    for stage in METHODS[method].stages:
        if stage.place not in given:
            return f"acts at the place {stage.place}, which is not hooked for"
        if missing := sorted(set(stage.needs) - given[stage.place]):
            return f"needs {' and '.join(missing)} at the place {stage.place}, which is not given by"
    return ""
