"""Kernel parameters, described once: the C struct and the constants in the CUDA source are the truth.

Python reads the source, derives offsets by the natural alignment of C, and packs by field name:

    DENSITY = Layout("density.cu", "Density")
    (MOST_TOKENS,) = constants("density.cu", "MOST_TOKENS")
    parameters = DENSITY.pack(mass=mass, wanted=None, rows=3, …)

A hot path fixes what never changes once (`fix`), and may pack by position (`in_order`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from texturevlm.cuda.compiler import INCLUDE, read_source

# C type: code of Python's struct module. The size of each is its alignment. A pointer is the code Q.
CODES = {
    "bool": "?",
    "char": "b",
    "unsigned char": "B",
    "short": "h",
    "unsigned short": "H",
    "int": "i",
    "unsigned": "I",
    "unsigned int": "I",
    "long long": "q",
    "unsigned long long": "Q",
    "float": "f",
    "double": "d",
}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CONSTANTS = re.compile(r"\bconstexpr (?:int|unsigned|float|double) ([^;]*);")
_ENUM = re.compile(r"\benum \w+ \{([^}]*)\}")
_TYPEDEF = re.compile(r"\btypedef ([^;{}]*?)(\w+);")
_STRUCT = re.compile(r"\bstruct (\w+) \{")
_BRACES = re.compile(r"\{[^{}]*\}")
_DECLARATION = re.compile(r"(?:const )?(unsigned (?:char|short|int|long long)\b|long long|\w+)\s*(.*)", re.DOTALL)
_DECLARED = re.compile(r"\s*(\**)\s*(\w+)\s*(?:\[([^\]]*)\])?\s*")
_NUMBER_SUFFIX = re.compile(r"(?<=[\d.])[fuUlL]+\b")

Convert = Callable[[Any], Any]


class _Field(NamedTuple):
    """One field: its name, offset and size in bytes, the code that packs it, and what turns a value into that."""

    name: str
    offset: int
    size: int
    code: str
    convert: Convert | None


class Definitions(NamedTuple):
    """What a source and its headers define: constants, other names of types, and the bodies of structs."""

    constants: dict[str, float]
    types: dict[str, str]
    structs: dict[str, str]


def constants(source: str, *names: str) -> tuple[int, ...]:
    """The values of integer constants (`constexpr int`) that a source or its headers define."""
    known = definitions(source).constants
    for name in names:
        if not isinstance(known.get(name), int):
            raise KeyError(f"constants: {source} defines no single `constexpr int {name}`")
    return tuple(int(known[name]) for name in names)


def address(tensor: Any) -> int:
    """Where a tensor's data lies; 0 for None. A number is an address already."""
    return 0 if tensor is None else tensor if isinstance(tensor, int) else tensor.data_ptr()


class Layout:
    """How one struct of a source lies in memory.

    A pointer is packed from a tensor, an address or None. An array is packed from a sequence, which may be shorter: the
    rest is zero. A struct inside is packed from its own bytes; None makes all of it zero.
    """

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        self.fields, self.size, self.alignment = _fields(source, name)
        self._use({})

    def _use(self, fixed: dict[str, bytes]) -> None:
        """Prepare `pack` for the fields that are not fixed; neighbours that are become one piece."""
        self._fixed = fixed
        self.names = tuple(field.name for field in self.fields if field.name not in fixed)
        self._slots: list[tuple[str | None, Any]] = []  # a field and how it is converted, or bytes
        codes, end = [], 0
        for field in self.fields:
            gap, end = field.offset - end, field.offset + field.size
            if field.name not in fixed:
                codes.append("x" * gap + field.code)
                self._slots.append((field.name, field.convert))
            elif self._slots and self._slots[-1][0] is None:
                joined = self._slots[-1][1] + bytes(gap) + fixed[field.name]
                self._slots[-1] = (None, joined)
                codes[-1] = f"{len(joined)}s"
            else:
                codes += ["x" * gap, f"{field.size}s"]
                self._slots.append((None, fixed[field.name]))
        self._struct = struct.Struct(f"={''.join(codes)}{self.size - end}x")

    def pack(self, **values: Any) -> bytes:
        """The struct's bytes from all fields that are not fixed, by name."""
        try:
            packed = [
                given if name is None else values[name] if given is None else given(values[name])
                for name, given in self._slots
            ]
            if len(values) == len(self.names):
                return self._struct.pack(*packed)
        except (KeyError, struct.error, TypeError) as error:
            self._check(values)
            raise TypeError(f"{self.name}: {error}, packing {values}") from error
        raise self._check(values)

    def _check(self, values: dict[str, Any]) -> TypeError:
        """Raise if fields are missing or unknown."""
        missing = [name for name in self.names if name not in values]
        unknown = [name for name in values if name not in self.names]
        if missing or unknown:
            raise TypeError(f"struct {self.name} of {self.source}: missing {missing}, unknown {unknown}")
        return TypeError(f"struct {self.name} of {self.source}")

    def fix(self, **values: Any) -> Layout:
        """The same layout with some fields given once and for all."""
        self._check({**dict.fromkeys(self.names), **values})
        new = object.__new__(Layout)
        new.source, new.name = self.source, self.name
        new.fields, new.size, new.alignment = self.fields, self.size, self.alignment
        by_name = {field.name: field for field in self.fields}
        new._use(self._fixed | {name: _pack_field(by_name[name], value) for name, value in values.items()})
        return new

    def in_order(self, *names: str) -> Callable[..., bytes]:
        """The fastest way to pack: by position. `names`, checked here once, are all fields that are not fixed.

        Values are as the struct module takes them: addresses, numbers, and bytes for arrays and structs, zero-padded.
        """
        if names != self.names:
            raise TypeError(f"struct {self.name} of {self.source}: fields in order are {self.names}, not {names}")
        if all(name is not None for name, _ in self._slots):
            return self._struct.pack
        pack, slots = self._struct.pack, self._slots
        if all(name is not None for name, _ in slots[:-1]):
            last = slots[-1][1]
            return lambda *values: pack(*values, last)

        def in_between(*values: Any) -> bytes:
            given = iter(values)
            return pack(*[fixed if name is None else next(given) for name, fixed in slots])

        return in_between


def _pack_field(field: _Field, value: Any) -> bytes:
    return struct.pack(f"={field.code}", value if field.convert is None else field.convert(value))


@lru_cache(maxsize=None)
def _fields(source: str, name: str) -> tuple[tuple[_Field, ...], int, int]:
    """The fields of a struct in order, its size and its alignment."""
    known = definitions(source)
    if name not in known.structs:
        raise KeyError(f"Layout: {source} and its headers define no struct {name}, only {sorted(known.structs)}")
    fields, end, widest = [], 0, 1
    for declaration in known.structs[name].split(";"):
        match = _DECLARATION.fullmatch(declaration.strip())
        if match is None or "(" in declaration:
            continue  # a method
        for declared in match[2].split(","):
            stars, field, length = _DECLARED.fullmatch(declared).groups()  # type: ignore[union-attr]
            code, size, alignment, convert = _type(source, match[1] + stars)
            if length is not None:
                count = int(_evaluate(length, known.constants))
                code, size, convert = f"{count * size}s", count * size, _array(code, size, count, convert)
            start = -(-end // alignment) * alignment
            fields.append(_Field(field, start, size, code, convert))
            end, widest = start + size, max(widest, alignment)
    return tuple(fields), -(-end // widest) * widest, widest


def _type(source: str, name: str) -> tuple[str, int, int, Convert | None]:
    """Code, size, alignment and conversion of a C type."""
    if name.endswith("*"):
        return "Q", 8, 8, address
    if name in CODES:
        size = struct.calcsize(f"={CODES[name]}")
        return CODES[name], size, size, None
    known = definitions(source)
    if name in known.types:
        return _type(source, known.types[name])
    _, size, alignment = _fields(source, name)
    return f"{size}s", size, alignment, _whole(size)


def _whole(size: int) -> Convert:
    def convert(value: bytes | None) -> bytes:
        if value and len(value) != size:
            raise TypeError(f"a struct inside has {size} bytes, not {len(value)}")
        return value or b""

    return convert


def _array(code: str, size: int, count: int, convert: Convert | None) -> Convert:
    packs = [struct.Struct("=" + code * length).pack for length in range(count + 1)]

    def pack(values: Sequence[Any]) -> bytes:
        if len(values) > count:
            raise TypeError(f"an array has room for {count} values, not {len(values)}")
        return packs[len(values)](*(values if convert is None else map(convert, values)))

    return pack


@lru_cache(maxsize=None)
def definitions(source: str) -> Definitions:
    """Read a source and its headers."""
    code = _COMMENT.sub("", read_source(source))
    found = Definitions({}, {}, {})
    for header in INCLUDE.findall(code):
        theirs = definitions(header)
        found.constants.update(theirs.constants)
        found.types.update(theirs.types)
        found.structs.update(theirs.structs)
    for new, old in ((match[2], match[1].strip()) for match in _TYPEDEF.finditer(code)):
        found.types[new] = old.removeprefix("const ").replace(" *", "*")
    seen: set[str] = set()
    for match in _CONSTANTS.finditer(code):
        for name, expression in re.findall(r"(\w+) = ([^,]*)", match[1]):
            try:
                found.constants[name] = _evaluate(expression, found.constants)
            except (SyntaxError, NameError, TypeError):  # not a number that Python can work out
                found.constants.pop(name, None)
            if name in seen:  # in two namespaces
                found.constants[name] = float("nan")
            seen.add(name)
    for match in _ENUM.finditer(code):
        value = -1
        for name, expression in re.findall(r"(\w+)(?: = ([^,]*))?", match[1]):
            value = int(_evaluate(expression, found.constants)) if expression else value + 1
            found.constants[name] = value
    for match in _STRUCT.finditer(code):
        found.structs[match[1]] = _body(code, match.end())
    return found


def _body(code: str, start: int) -> str:
    """The declarations of a struct; bodies of methods become semicolons."""
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(code[end], 0)
        end += 1
    body = code[start : end - 1]
    while _BRACES.search(body):
        body = _BRACES.sub(";", body)
    return body


def _evaluate(expression: str, known: dict[str, float]) -> float:
    """A C expression of numbers and known constants."""
    plain = _NUMBER_SUFFIX.sub("", expression) if "0x" not in expression else expression
    whole = "." not in plain and all(isinstance(known.get(name, 0), int) for name in re.findall(r"[A-Za-z_]\w*", plain))
    return eval(plain.replace("/", "//") if whole else plain, {"__builtins__": {}}, dict(known))  # type: ignore[no-any-return]
