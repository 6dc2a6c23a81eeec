"""Our kernels on a CPU: the real .cu files compiled by g++ against a small stand-in for CUDA, started by our launchers.

It shows what a GPU test would, except for speed and for what only hardware does (textures, half precision): wrong
indices, barriers in the wrong place, texels that no thread wrote, shared memory that was not initialised, reads beyond
the end of a tensor, a missing `wait_for_previous()`. The GPU tests remain the judge.
"""

import ctypes
import fcntl
import hashlib
import importlib
import os
import random
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.sources import kernels
from texturevlm.cuda import kernel as launching
from texturevlm.cuda.compiler import INCLUDE, PACKAGE_FOLDER, read_source

HERE = Path(__file__).parent
LAB_FOLDER = HERE.parent.parent / "lab" / "texturevlm_lab"
ENTRY = """
static {struct} {kernel}_parameters;
extern "C" const char* emulate_{kernel}(unsigned width, unsigned height, int threads, const void* from, unsigned seed,
                                        int early) {{
    std::memcpy(&{kernel}_parameters, from, sizeof({struct}));
    return emulator::run(width, height, threads, [] {{ {kernel}({kernel}_parameters); }}, seed, early);
}}
"""
OPTIONS = ["-O2", "-std=c++17", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-U_FORTIFY_SOURCE"]


class Emulator:
    """Compiles a source when it is first needed; `launch` takes the place of texturevlm.cuda.kernel.launch.

    folder:    where compiled sources are kept
    mutations: (source or header, text, replacement), to see whether an error is found
    launches:  how often each kernel was started
    watchers:  each is told of every launch: source, kernel, grid, parameters, the rest by name
    """

    def __init__(self, folder: Path, *mutations: tuple[str, str, str]) -> None:
        self.folder, self.mutations = folder, mutations
        self.libraries: dict[str, ctypes.CDLL] = {}
        self.launches: Counter[str] = Counter()
        self.watchers: list[Callable[[str, str, Any, bytes, dict[str, Any]], None]] = []

    def launch(self, source, name, device, blocks, parameters, *, early=False, threads=256, **define) -> None:
        self.launches[name] += 1
        for watcher in self.watchers:
            watcher(source, name, blocks, parameters, {"early": early, "threads": threads, **define})
        width, height = blocks if isinstance(blocks, tuple) else (blocks, 1)
        entry = getattr(self._library(source, {**define, "SCALAR": 32}), f"emulate_{name}")
        entry.restype = ctypes.c_char_p
        if failure := entry(width, height, threads, parameters, random.getrandbits(31), early):
            raise RuntimeError(f"emulated kernel {name}: {failure.decode()}")

    def _library(self, source: str, define: dict[str, int]) -> ctypes.CDLL:
        flags = sorted(f"-D{name}={value}" for name, value in define.items())
        key = " ".join([source, *flags])
        if key not in self.libraries:
            code = self._code(source, set())
            code = re.sub(r'asm volatile\("griddepcontrol.wait;".*?\);', "emulator::wait_for_previous();", code)
            code = re.sub(r'asm volatile\("griddepcontrol.launch_dependents;".*?\);', "", code)
            entries = "".join(ENTRY.format(kernel=kernel, struct=struct) for kernel, struct in kernels(source).items())
            # Shared variables of templates need internal linkage to lie in one section.
            program = f"{(HERE / 'cuda_on_cpu.h').read_text()}\nnamespace {{\n{code}\n}}\n{entries}"
            self.libraries[key] = build(self.folder, source, program, [*OPTIONS, *flags])
        return self.libraries[key]

    def _code(self, name: str, seen: set[str]) -> str:
        """A source with its headers in place, each once."""
        code = read_source(name).replace("#pragma once", "")
        for where, text, replacement in self.mutations:
            if where == name:
                assert text in code, f"{name} has no {text!r} to mutate"
                code = code.replace(text, replacement)

        def included(match: re.Match[str]) -> str:
            if match[1] in seen:
                return ""
            seen.add(match[1])
            return self._code(match[1], seen)

        return INCLUDE.sub(included, code)


def build(folder: Path, name: str, program: str, options: list[str]) -> ctypes.CDLL:
    """Compile a C++ program to a shared library, or take it from the folder."""
    digest = hashlib.sha256("\0".join([program, *options]).encode()).hexdigest()[:16]
    library = folder / f"{name}-{digest}.so"
    with (folder / f"{name}-{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a parallel worker that needs the same one waits instead of compiling it
        if not library.exists():
            _compile(library, program, options)
    return ctypes.CDLL(str(library))


def _compile(library: Path, program: str, options: list[str]) -> None:
    text = library.with_suffix(f".{os.getpid()}.cpp")
    text.write_text(program)
    built = text.with_suffix(".so")
    found = subprocess.run(["g++", "-o", built, text, *options], capture_output=True, text=True)
    text.unlink()
    assert found.returncode == 0, found.stderr
    os.replace(built, library)


class Guard:
    """Guard pages around all tensors on the CPU, and NaN in new ones, while switched on; see guard.cpp."""

    def __init__(self, folder: Path) -> None:
        home = Path(torch.__file__).parent
        options = ["-O2", "-std=c++17", "-w", "-shared", "-fPIC", f"-I{home / 'include'}", f"-L{home / 'lib'}", "-lc10"]
        options += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
        self.library = build(folder, f"guard-{torch.__version__}", (HERE / "guard.cpp").read_text(), options)
        self.library.guard_install()

    def __enter__(self) -> None:
        self.library.guard_tensors(1)

    def __exit__(self, *_) -> None:
        self.library.guard_tensors(0)

    def check(self) -> None:
        """Raise if bytes around a tensor were overwritten; known once the tensor is freed."""
        assert not self.library.guard_damaged(), "a kernel wrote outside of a tensor"


def replace_launch(monkeypatch, launch) -> None:
    """Let `launch` take the place of the real one in every module of the package and the lab."""
    real = launching.launch
    for path in [*PACKAGE_FOLDER.rglob("*.py"), *LAB_FOLDER.rglob("*.py")]:
        if path.name in ("kernel.py", "__init__.py"):
            continue
        if re.search(r"from texturevlm\.cuda(\.kernel)? import [^.]*\blaunch\b", path.read_text("utf-8")):
            top = LAB_FOLDER.parent if path.is_relative_to(LAB_FOLDER) else PACKAGE_FOLDER.parent
            module = importlib.import_module(".".join(path.relative_to(top).with_suffix("").parts))
            if getattr(module, "launch", None) is real:
                monkeypatch.setattr(module, "launch", launch)
