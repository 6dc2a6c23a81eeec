"""Kernel parameters: what Python derives from a struct is what the compiler does with it."""

import struct

import pytest
import torch

from tests.sources import kernels, variants
from texturevlm.cuda import compiler
from texturevlm.cuda.struct import HOLE, Layout, constants, definitions, template


def offsets(source: str) -> list[str]:
    """static_asserts about every struct that a kernel takes or reads by pointer; __INTADDR__ is NVRTC's offsetof."""
    names, checks = sorted({*kernels(source).values()}), []
    if "change.cuh" in compiler.read_source(source):
        names.append("Turn")
    for name in names:
        layout = Layout(source, name)
        checks.append(f"static_assert(sizeof({name}) == {layout.size} && alignof({name}) == {layout.alignment});")
        for field in layout.fields:
            checks.append(f"static_assert(__INTADDR__(&(({name}*)0)->{field.name}) == {field.offset});")
            checks.append(f"static_assert(sizeof({name}::{field.name}) == {field.size});")
    return checks


@pytest.mark.parametrize("source", compiler.SOURCES)
def test_offsets_are_the_compilers(source):
    pytest.importorskip("cuda.bindings")
    headers = {name: compiler.read_source(name) for name in compiler.HEADERS}
    code = compiler.read_source(source) + "\n" + "\n".join(offsets(source))
    options = ["--gpu-architecture=compute_90", "--std=c++17"]
    options += [f"-D{name}={value}" for name, value in variants(source)[0].items()]
    compiler._nvrtc(source, code, headers, options)


@pytest.fixture
def written(monkeypatch):
    """A struct of our own, in a source that does not exist."""
    code = """
    #include "marks.cuh"
    constexpr int ROOM = 2 * 2, LAST = ROOM - 1; // constexpr int ROOM = 9;
    enum Kind { A, B, C = 7, KINDS };
    struct Inner { unsigned char flag; double value; __device__ int f(int a) const { if (a) { return 1; } return a; } };
    struct Job {
        const float *a, *b;   // pointers; and a comment
        unsigned char small;
        long long far[ROOM];
        Inner inner, more[2];
        unsigned short last, kinds[KINDS];
    };
    """
    read = compiler.read_source
    monkeypatch.setattr("texturevlm.cuda.struct.read_source", lambda name: code if name == "own.cu" else read(name))
    yield Layout("own.cu", "Job")
    definitions.cache_clear()


def test_every_kind_of_field_is_packed(written):
    inner = Layout("own.cu", "Inner").pack(flag=1, value=2.5)
    assert inner == struct.pack("=B7xd", 1, 2.5)
    tensor = torch.zeros(3)
    values = {"a": tensor, "b": None, "small": 3, "far": [-1, 5], "inner": inner, "more": [inner], "last": 9}
    values["kinds"] = range(8)
    wanted = struct.pack("=2QB7x4q", tensor.data_ptr(), 0, 3, -1, 5, 0, 0) + inner * 2 + bytes(16)
    wanted += struct.pack("=9H6x", 9, *range(8))
    assert written.pack(**values) == wanted and written.size == len(wanted)
    fixed = written.fix(far=[-1, 5], inner=inner, last=9, b=0)
    assert fixed.names == ("a", "small", "more", "kinds")
    assert fixed.pack(a=tensor.data_ptr(), small=3, more=[inner], kinds=range(8)) == wanted
    with pytest.raises(TypeError, match="fields in order"):  # fixed ones are in between
        fixed.in_order(*fixed.names)
    kinds = struct.pack("=8H", *range(8))
    fixed = written.fix(last=9, kinds=range(8))
    pack = fixed.in_order("a", "b", "small", "far", "inner", "more")
    assert pack(tensor.data_ptr(), 0, 3, struct.pack("=2q", -1, 5), inner, inner) == wanted
    pack = written.in_order(*written.names)
    assert pack(tensor.data_ptr(), 0, 3, struct.pack("=2q", -1, 5), inner, inner, 9, kinds) == wanted


def test_a_template_takes_addresses_alone(written):
    values = {"a": 5, "b": 9, "small": 3, "far": [-1], "inner": None, "more": [], "last": 9, "kinds": []}
    fill = template(written.pack(**{**values, "a": HOLE, "b": HOLE}))
    assert fill(5, 9) == written.pack(**values) and fill(9, 5) != written.pack(**values)
    assert template(written.pack(**values))() == written.pack(**values)
    with pytest.raises(ValueError, match="size 1 to extended slice of size 2"):
        fill(5)


def test_constants_aredefinitions_from_the_source(written):
    assert constants("own.cu", "ROOM", "LAST", "KINDS", "C") == (4, 3, 8, 7)
    with pytest.raises(KeyError, match=r"own.cu defines no single `constexpr int NONE`"):
        constants("own.cu", "NONE")


def test_mistakes_are_named(written):
    values = {"a": 0, "b": 0, "small": 3, "far": [], "inner": None, "more": [], "last": 9, "kinds": []}
    assert len(written.pack(**values)) == written.size
    for change, message in [
        ({"other": 1}, r"struct Job of own.cu: missing \[\], unknown \['other'\]"),
        ({"far": [1] * 5}, r"Job.*an array has room for 4 values, not 5"),
        ({"inner": b"short"}, r"Job.*a struct inside has 16 bytes, not 5"),
        ({"small": 256}, r"Job.*255"),
    ]:
        with pytest.raises(TypeError, match=message):
            written.pack(**values, **change) if "other" in change else written.pack(**{**values, **change})
    del values["last"]
    with pytest.raises(TypeError, match=r"missing \['last'\], unknown \[\]"):
        written.pack(**values)
    with pytest.raises(TypeError, match=r"unknown \['other'\]"):
        written.fix(other=1)
    with pytest.raises(TypeError, match=r"fields in order are \('a', 'b'"):
        written.in_order("b", "a")
    with pytest.raises(KeyError, match=r"own.cu and its headers define no struct Absent"):
        Layout("own.cu", "Absent")
