"""Open registries: what the package holds by name, and what other packages add by entry points.

A registry is a dict literal and the name of an entry point group. The group is looked up only for a name that the
literal does not have; a package adds a name with `[project.entry-points."texturevlm.hooks"]` in its pyproject.toml.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

T = TypeVar("T")
LIKENESS = 0.76  # how alike a misspelled name and the one that was meant are, for difflib
INSTALL = "pip install ./lab"


def near_miss(name: str, known: Collection[str]) -> str:
    """What may have been meant by the name of an unknown option, for an error; empty if nothing comes near."""
    near = difflib.get_close_matches(name, sorted(known), 1, LIKENESS)
    return f" (did you mean {near[0]}?)" if near else ""


@lru_cache(maxsize=None)
def plug_ins(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name. What two packages call by one name is left out, but for the first."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if found.setdefault(point.name, point).value != point.value:
            got = f"{point.value} beside {found[point.name].value}"
            warnings.warn(f"{group}: {point.name} must name one thing, got {got}, which stays", stacklevel=2)
    return found


class Registry(Mapping[str, T], Generic[T]):
    """Things by name: those of the package first, then the plug-ins, which cannot replace them.

    argument: by which users give a name, such as "allocator"
    group:    of the entry points, such as "texturevlm.allocators"
    built_in: name → the thing, or where it is ("package.module:name"), which is then imported when it is needed
    lab:      names that the lab adds: without it an error says what to install
    clients:  built-in names that a web client may choose; never a plug-in
    fits:     whether an object, given in the place of a name, is such a thing
    """

    def __init__(
        self,
        argument: str,
        group: str,
        built_in: Mapping[str, T | str],
        *,
        lab: Collection[str] = (),
        clients: Collection[str] = (),
        fits: Callable[[Any], bool] = callable,
    ) -> None:
        if unknown := sorted(set(clients) - set(built_in)):
            raise ValueError(f"Registry: clients must be built-in names of {group}, got {', '.join(unknown)}")
        self.argument, self.group, self.built_in = argument, group, dict(built_in)
        self.lab, self.clients, self.fits = tuple(lab), tuple(clients), fits

    def __contains__(self, name: object) -> bool:
        return name in self.built_in or name in plug_ins(self.group)

    def __iter__(self) -> Iterator[str]:
        return iter({**self.built_in, **plug_ins(self.group)})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise KeyError(name)
        return self._loaded(self.group, name)

    def knows(self, name: str) -> bool:
        """Whether a name means something here, although what it names may have to be installed first."""
        return name in self.lab or name in self

    def find(self, function: str, given: Any, *, argument: str | None = None, said: str | None = None) -> T:
        """The thing that a caller gives by name or as an object; the error says what there is.

        function: that the caller called
        argument: by which it was given, if not by that of the registry
        said:     what the caller wrote, if it was more than the name
        """
        argument = argument or self.argument
        if not isinstance(given, str):
            if self.fits(given):
                found: T = given
                return found
            raise TypeError(f"{function}: {argument} must be a name, or an object of its kind, got {given!r:.80}")
        if given in self:
            return self._loaded(function, given)
        if given in self.lab:
            raise ImportError(f"{function}: {said or f'{argument} {given!r}'} comes with the lab: {INSTALL}")
        known = ", ".join(self)
        raise ValueError(f"{function}: {argument} must be one of {known}, got {given!r:.80}{near_miss(given, self)}")

    def find_for_client(self, function: str, given: Any) -> T:
        """The same for a web client, which may give the names in `clients` and nothing else."""
        if not isinstance(given, str) or given not in self.clients:
            known = ", ".join(self.clients)
            raise ValueError(f"{function}: {self.argument} must be one of {known}, got {given!r:.80}")
        return self._loaded(function, given)

    def _loaded(self, function: str, name: str) -> T:
        known = self.built_in.get(name)
        if known is not None and not isinstance(known, str):
            return known
        point = plug_ins(self.group)[name] if known is None else EntryPoint(name, known, self.group)
        try:
            found: T = point.load()
        except (ImportError, AttributeError) as error:  # no such module, or nothing of that name in it
            raise ImportError(f"{function}: {self.argument} {name!r} ({point.value}) fails to load: {error}") from error
        return found
