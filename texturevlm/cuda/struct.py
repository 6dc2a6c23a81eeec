"""Kernel parameters, described once: the C struct and the constants in the CUDA source are the truth.

Python reads the source, derives offsets by the natural alignment of C, and packs by field name:

    DENSITY = Layout("density.cu", "Density")
    (MOST_TOKENS,) = constants("density.cu", "MOST_TOKENS")
    parameters = DENSITY.pack(mass=mass, wanted=None, rows=3, …)

A hot path fixes what never changes once (`fix`), and may pack by position (`in_order`) or fill in addresses alone
(`template`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from texturevlm.cuda.compiler import INCLUDE, read_source

# C types and their codes in Python's struct module. The alignment of each is its size. A pointer has the code Q.
_TYPES = ("bool", "char", "unsigned char", "short", "unsigned short", "int", "unsigned", "unsigned int", "float")
CODES = dict(zip((*_TYPES, "double", "long long", "unsigned long long"), "?bBhHiIIfdqQ"))
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_CONSTANTS = re.compile(r"\bconstexpr (?:int|unsigned|float|double) ([^;]*);")
_ENUM = re.compile(r"\benum \w+ \{([^}]*)\}")
_TYPEDEF = re.compile(r"\btypedef ([^;{}]*?)(\w+);")
_STRUCT = re.compile(r"\bstruct (\w+) \{")
_BRACES = re.compile(r"\{[^{}]*\}")
# A method has parentheses.
_DECLARATION = re.compile(r"(?:const )?(unsigned (?:char|short|int|long long)\b|long long|\w+)\s*([^()]*)", re.DOTALL)
_DECLARED = re.compile(r"(\**)\s*(\w+)\s*(?:\[([^\]]*)\])?")
_SUFFIX = re.compile(r"(?<=[\d.])[fuUlL]+\b")

_Convert = Callable[[Any], Any]


class _Field(NamedTuple):
    """One field: its name, offset and size in bytes, the code that packs it, and what turns a value into that."""

    name: str
    offset: int
    size: int
    code: str
    convert: _Convert | None


class Definitions(NamedTuple):
    """What a source and its headers define: constants, other names of types, and the bodies of structs."""

    constants: dict[str, float]
    types: dict[str, str]
    structs: dict[str, str]


def constants(source: str, *names: str) -> tuple[int, ...]:
    """The values of integer constants (`constexpr int` or enumerators) that a source or its headers define."""
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

    def __init__(self, source: str, name: str, fixed: dict[str, bytes] | None = None) -> None:
        self.source, self.name, self._fixed = source, name, fixed or {}
        self.fields, self.size, self.alignment = _fields(source, name)
        self.names = tuple(field.name for field in self.fields if field.name not in self._fixed)
        self._slots: list[tuple[str | None, Any]] = []  # a field and how it is converted, or None and bytes
        codes: list[str] = []
        end = 0
        for field in self.fields:
            gap, end = field.offset - end, field.offset + field.size
            code = field.code
            slot: tuple[str | None, Any] = (field.name, field.convert)
            if field.name in self._fixed:
                piece = self._fixed[field.name]
                if self._slots and self._slots[-1][0] is None:  # neighbours that are fixed become one piece
                    piece, gap = self._slots.pop()[1] + bytes(gap) + piece, codes.pop().count("x")
                code, slot = f"{len(piece)}s", (None, piece)
            codes.append("x" * gap + code)
            self._slots.append(slot)
        self._struct = struct.Struct(f"={''.join(codes)}{self.size - end}x")

    def pack(self, **values: Any) -> bytes:
        """The struct's bytes from all fields that are not fixed, by name."""
        if len(values) != len(self.names):
            self._check(values)
        try:
            filled = [
                given if name is None else values[name] if given is None else given(values[name])
                for name, given in self._slots
            ]
            return self._struct.pack(*filled)
        except (KeyError, struct.error, TypeError) as error:
            self._check(values)
            raise TypeError(f"struct {self.name} of {self.source}: {error}, from {values}") from error

    def _check(self, values: dict[str, Any]) -> None:
        missing = [name for name in self.names if name not in values]
        unknown = [name for name in values if name not in self.names]
        if missing or unknown:
            raise TypeError(f"struct {self.name} of {self.source}: missing {missing}, unknown {unknown}")

    def fix(self, **values: Any) -> Layout:
        """The same layout with some fields given once and for all."""
        self._check({**dict.fromkeys(self.names), **values})
        fixed = dict(self._fixed)
        for field in self.fields:
            if field.name in values:
                value = values[field.name]
                fixed[field.name] = struct.pack(f"={field.code}", field.convert(value) if field.convert else value)
        return Layout(self.source, self.name, fixed)

    def in_order(self, *names: str) -> Callable[..., bytes]:
        """The fastest way to pack: by position. `names`, checked here once, are all fields that are not fixed.

        Values are as the struct module takes them: addresses, numbers, and bytes for arrays and structs, zero-padded.
        Fixed fields must come last in the struct.
        """
        if names != self.names or any(name is None for name, _ in self._slots[:-1]):
            raise TypeError(f"struct {self.name} of {self.source}: fields in order are {self.names}, not {names}")
        pack, (name, last) = self._struct.pack, self._slots[-1]
        return pack if name is not None else lambda *values: pack(*values, last)


HOLE = 0x7E57_ADD2_E55E_0001  # stands for an address in a packed struct; no memory lies there


def template(parameters: bytes) -> Callable[..., bytes]:
    """Pack a struct once, with HOLE as every address that changes; the result takes these addresses, in that order."""
    first, *pieces = parameters.split(HOLE.to_bytes(8, "little"))
    pack = struct.Struct("=" + "Q".join(f"{len(piece)}s" for piece in (first, *pieces))).pack
    values: list[Any] = [first]
    for piece in pieces:
        values += (0, piece)

    def fill(*addresses: int) -> bytes:
        filled = values.copy()
        filled[1::2] = addresses  # raises if their number is wrong
        return pack(*filled)

    return fill


@lru_cache(maxsize=None)
def _fields(source: str, name: str) -> tuple[tuple[_Field, ...], int, int]:
    """The fields of a struct in order, its size and its alignment."""
    known = definitions(source)
    if name not in known.structs:
        raise KeyError(f"Layout: {source} and its headers define no struct {name}, only {sorted(known.structs)}")
    fields, end, widest = [], 0, 1
    for declaration in map(_DECLARATION.fullmatch, map(str.strip, known.structs[name].split(";"))):
        for stars, field, length in _DECLARED.findall(declaration[2]) if declaration else ():
            assert declaration is not None
            code, size, alignment, convert = _type(source, declaration[1] + stars)
            if length:
                count = int(_evaluate(length, known.constants))
                code, size, convert = f"{count * size}s", count * size, _array(code, count, convert)
            start = -(-end // alignment) * alignment
            fields.append(_Field(field, start, size, code, convert))
            end, widest = start + size, max(widest, alignment)
    return tuple(fields), -(-end // widest) * widest, widest


def _type(source: str, name: str) -> tuple[str, int, int, _Convert | None]:
    """Code, size, alignment and conversion of a C type."""
    if name.endswith("*"):
        return "Q", 8, 8, address
    if name in CODES:
        size = struct.calcsize(f"={CODES[name]}")
        return CODES[name], size, size, None
    types = definitions(source).types
    if name in types:
        return _type(source, types[name])
    _, size, alignment = _fields(source, name)

    def convert(value: bytes | None) -> bytes:
        if value and len(value) != size:
            raise TypeError(f"a struct inside has {size} bytes, not {len(value)}")
        return value or b""

    return f"{size}s", size, alignment, convert


def _array(code: str, count: int, convert: _Convert | None) -> _Convert:
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
    for header in map(definitions, INCLUDE.findall(code)):
        found.constants.update(header.constants)
        found.types.update(header.types)
        found.structs.update(header.structs)
    found.types.update((new, old.strip().removeprefix("const ")) for old, new in _TYPEDEF.findall(code))
    own: set[str] = set()
    for declared in _CONSTANTS.findall(code):
        for name, expression in re.findall(r"(\w+) = ([^,]*)", declared):
            try:
                value = _evaluate(expression, found.constants)
            except (SyntaxError, NameError, TypeError):  # not a number that Python can work out
                continue
            found.constants[name] = value if name not in own else float("nan")  # defined in two namespaces
            own.add(name)
    for enumerators in _ENUM.findall(code):
        value = -1
        for name, expression in re.findall(r"(\w+)(?: = ([^,]*))?", enumerators):
            found.constants[name] = value = _evaluate(expression, found.constants) if expression else value + 1
    for match in _STRUCT.finditer(code):
        body = code[match.end() :]
        while body.find("{") in range(body.find("}")):  # bodies of methods, the innermost first
            body = _BRACES.sub(";", body)
        found.structs[match[1]] = body[: body.index("}")]
    return found


def _evaluate(expression: str, known: dict[str, float]) -> float:
    """A C expression of numbers and known constants."""
    plain = _SUFFIX.sub("", expression) if "0x" not in expression else expression
    whole = "." not in plain and all(isinstance(known.get(name, 0), int) for name in re.findall(r"[A-Za-z_]\w*", plain))
    return eval(plain.replace("/", "//") if whole else plain, {"__builtins__": {}}, dict(known))  # type: ignore[no-any-return]
