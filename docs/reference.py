"""Pages of the API reference, from signatures and docstrings.

A docstring here is a sentence, then names and shapes in columns. Tools that read docstrings as Markdown would run those
columns together, so they are shown as they are.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import texturevlm

WIDTH = 100  # of a signature on one line
INTRODUCTION = """# {title}

Made from the docstrings of `{module}`. [By example](../api.md) has code that runs, in the order in which you need it.
"""


def pages() -> dict[str, str]:
    """The path of each page → its text."""
    names = sorted(texturevlm.__all__, key=str.lower)
    operations = sorted(texturevlm.ops.__all__, key=str.lower)
    return {
        "reference/texturevlm.md": _page(
            "Reference", "texturevlm", {name: getattr(texturevlm, name) for name in names}
        ),
        "reference/ops.md": _page(
            "Reference: operations", "texturevlm.ops", {name: getattr(texturevlm.ops, name) for name in operations}
        ),
    }


def _page(title: str, module: str, members: dict[str, Any]) -> str:
    parts = [INTRODUCTION.format(title=title, module=module)]
    for name, member in members.items():
        if inspect.ismodule(member):
            parts.append(f"## {name}\n\nA module: [operations](ops.md).\n")
        elif isinstance(member, dict):
            parts.append(f"## {name}\n\nA dict by name: {', '.join(f'`{key}`' for key in member)}.\n")
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
            method = getattr(method, "__func__", method)
            if not own.startswith("_") and inspect.isfunction(method) and inspect.getdoc(method):
                yield from _described(f"{name}.{own}", method, "###")


def signature(name: str, member: Any) -> str:
    """On one line if it fits, else one parameter per line."""
    kind = "class" if inspect.isclass(member) else "def"
    found = inspect.signature(member)
    if len(line := f"{kind} {name}{found}") <= WIDTH:
        return line
    parameters = []
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(one.startswith("*") for one in parameters):
            parameters.append("*")
        parameters.append(str(parameter))
    result = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    return f"{kind} {name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){result}"
