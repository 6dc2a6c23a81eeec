"""Pages of the API reference, from signatures and docstrings.

A docstring here is a sentence, then names and shapes in columns. Tools that read docstrings as Markdown would run those
columns together, so they are shown as they are.
"""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import texturevlm

WIDTH = 88  # of a signature on one line
INTRODUCTION = """# {title}

Made from the docstrings of `{module}`. [By example](../api.md) has code that runs, in the order in which you need it.
"""


class Written(str):
    """An annotation that is shown as it is written, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def pages() -> dict[str, str]:
    """The path of each page → its text: one for the package, one for each public module."""
    found = {"reference/texturevlm.md": _page("Reference", texturevlm)}
    for name, module in _members(texturevlm).items():
        if inspect.ismodule(module):
            found[f"reference/{name}.md"] = _page(f"Reference: {name}", module)
    return found


def _members(module: ModuleType) -> dict[str, Any]:
    return {name: getattr(module, name) for name in sorted(module.__all__, key=str.lower)}


def _page(title: str, module: ModuleType) -> str:
    parts = [INTRODUCTION.format(title=title, module=module.__name__)]
    for name, member in _members(module).items():
        if inspect.ismodule(member):
            parts.append(f"## {name}\n\nA module with [a page of its own]({name}.md).\n")
        elif isinstance(member, (int, float, str)):
            parts.append(f"## {name}\n\n`{member!r}`\n")
        elif not callable(member):
            keys = ", ".join(f"`{key}`" for key in member)
            parts.append(f"## {name}\n\n{type(member).__name__} of: {keys}.\n")
        else:
            parts += _described(name, member, "##")
    return "\n".join(parts)


def _described(name: str, member: Any, heading: str) -> Iterator[str]:
    """Heading, signature and docstring; of a class also those of its public methods that have a docstring."""
    yield f"{heading} {name}\n\n```python\n{signature(name, member)}\n```\n"
    first, _, rest = (inspect.getdoc(member) or "").partition("\n\n")
    yield f"{first}\n"
    if rest:
        yield f"```text\n{rest}\n```\n"
    if inspect.isclass(member):
        for own, method in vars(member).items():
            bound = getattr(member, own) if isinstance(method, (classmethod, staticmethod)) else method
            is_method = inspect.isfunction(bound) or inspect.ismethod(bound)
            if is_method and not own.startswith("_") and inspect.getdoc(bound):
                yield from _described(f"{name}.{own}", bound, "###")


def signature(name: str, member: Any) -> str:
    """On one line if it fits, else one parameter per line."""
    found = inspect.signature(member)
    given = [_written(one) for one in found.parameters.values()]
    kind, result = "class" if inspect.isclass(member) else "def", ""
    if kind == "def" and found.return_annotation is not found.empty:
        result = f" -> {inspect.formatannotation(_shown(found.return_annotation))}"
    line = f"{kind} {name}{found.replace(parameters=given, return_annotation=found.empty)}{result}"
    if len(line) <= WIDTH:
        return line
    parameters: list[str] = []
    for parameter in given:
        if parameter.kind is parameter.KEYWORD_ONLY and not any(one.startswith("*") for one in parameters):
            parameters.append("*")
        parameters.append(str(parameter))
    return f"{kind} {name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){result}"


def _written(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(annotation=_shown(parameter.annotation))


def _shown(annotation: Any) -> Any:
    return Written(annotation) if isinstance(annotation, str) else annotation
