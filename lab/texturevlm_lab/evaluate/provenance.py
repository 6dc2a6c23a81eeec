"""Which code made a table: a digest of the code and weights that its numbers depend on, and the commit.

A module depends on everything of this repository that it imports, directly or not, also inside functions, and on the
kernels and shipped weights beside those modules. What only formats a report, or only trains, is not part of the digest;
nor are comments, docstrings and blank lines. Nor is where a file lies: its path, imports of this repository, `__all__`
and the folders in a module's name; so code that was only moved keeps its digest. (Which modules a command happened to
load would not do: a run that resumes loads less than the run that made its rows.)
"""

import ast
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from tokenize import COMMENT, generate_tokens
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
EVALUATION = (
    "texturevlm_lab.evaluate.run+texturevlm_lab.evaluate.compare"  # what a table of `texturevlm eval` comes from
)
_PACKAGES = {"texturevlm": "", "texturevlm_lab": "lab"}  # and the folder of the repository that holds each
_OWN_NAME = re.compile(rf"\b(?:{'|'.join(_PACKAGES)})(?:\.\w+)*\.(\w+)")  # a module, or a name in one
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WEIGHTS = (".cu", ".cuh", ".npz", ".json", ".safetensors")  # kernels and shipped weights
_MADE_BY = re.compile(r"Code: ([\w.+]+), digest ([0-9a-f]{16}), commit ([^;.\s]+(?: with changes)?)")


class Origin(NamedTuple):
    """A module (or several, joined by +), the digest of what it depends on, and the commit."""

    module: str
    digest: str
    commit: str

    def __str__(self) -> str:
        return f"Code: {self.module}, digest {self.digest}, commit {self.commit}"


def origin(module: str = EVALUATION, *, root: Path = ROOT) -> Origin:
    """Where a table that this module makes today comes from."""
    return Origin(module, code_digest(module, root=root), commit(module, root=root))


def named_origin(table: str) -> Origin | None:
    """What a table says about where it comes from; None if it says nothing."""
    found = _MADE_BY.search(table)
    return None if found is None else Origin(*found.groups())


def code_digest(module: str = EVALUATION, *, root: Path = ROOT) -> str:
    """16 hexadecimal digits; results of other code or other weights are not resumed."""
    digests = {_digest(path, path.stat().st_mtime_ns) for path in dependencies(module, root=root)}
    return hashlib.blake2b(b"".join(sorted(digests)), digest_size=8).hexdigest()


@cache
def _digest(path: Path, _changed: int) -> bytes:
    """Of what a file holds; empty of an empty one."""
    python = path.suffix == ".py"
    content = statements(path.read_text(encoding="utf-8")).encode() if python else path.read_bytes()
    return hashlib.blake2b(content, digest_size=16).digest() if content else b""


def statements(source: str) -> str:
    """What Python does, as it is laid out: without comments, docstrings, blank lines and what says where files lie."""
    lines = source.split("\n")
    for token in generate_tokens(StringIO(source).readline):
        if token.type == COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(source)):
        left_out: ast.AST = node
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            left_out = node.body[0]
        elif not _says_where(node):
            continue
        assert isinstance(left_out, ast.stmt)
        first, last = left_out.lineno - 1, left_out.end_lineno or left_out.lineno
        if not lines[first][: left_out.col_offset].strip():  # on lines of its own
            lines[first:last] = [""] * (last - first)
    return _OWN_NAME.sub(r"\1", "\n".join(line.rstrip() for line in lines if line.strip()))


def _says_where(node: ast.AST) -> bool:
    """Whether a statement imports from this repository alone, or lists the names of a package."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] in _PACKAGES
    if isinstance(node, ast.Import):
        return all(alias.name.partition(".")[0] in _PACKAGES for alias in node.names)
    return isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "__all__" for name in node.targets)


def commit(module: str = EVALUATION, *, root: Path = ROOT) -> str:
    """The commit, and whether files that the module depends on differ from it.

    $TEXTUREVLM_COMMIT names it where it is set: on a machine that got a copy of the sources git knows nothing, or names
    a commit that was copied earlier. Outside of a repository it is `unknown`.
    """
    if named := os.environ.get("TEXTUREVLM_COMMIT"):
        return named
    files = [path.relative_to(root).as_posix() for path in dependencies(module, root=root)]
    head = _git(root, "rev-parse", "--short=7", "HEAD")
    if head is None:
        return "unknown"
    return f"{head.strip()} with changes" if _git(root, "status", "--porcelain", "--", *files) else head.strip()


def _git(root: Path, *command: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def dependencies(module: str, *, root: Path = ROOT) -> list[Path]:
    """The files that a module depends on, sorted."""
    waiting = module.split("+")
    if unknown := [name for name in waiting if _file_of(name, root) is None]:
        raise ValueError(f"dependencies: module must be one of {root}, got {unknown[0]!r}")
    found: set[Path] = set()
    while waiting:
        path = _file_of(waiting.pop(), root)
        if path is not None and path not in found:
            found.add(path)
            waiting += _imported(path, root)
    weights = (path for folder in {path.parent for path in found} for path in folder.iterdir())
    return sorted(found | {path for path in weights if path.suffix in _WEIGHTS})


def module_now(module: str, *, root: Path = ROOT) -> str:
    """The name that a module (or several, joined by +) has today: of those with its last part, the one that shares most
    of its last parts; the name itself if there is none, or if two share as many."""
    found = []
    for name in module.split("+"):
        parts, alike = name.split("."), list[tuple[int, str]]()
        for package, folder in _PACKAGES.items():
            for path in (root / folder / package).rglob(f"{parts[-1]}.py"):
                now = path.relative_to(root / folder).with_suffix("").parts
                shared = next((n for n, pair in enumerate(zip(now[::-1], parts[::-1])) if len(set(pair)) > 1), len(now))
                alike.append((shared, ".".join(now)))
        best = [other for shared, other in alike if shared == max(alike)[0]]
        found.append(best[0] if len(best) == 1 else name)
    return "+".join(found)


def _file_of(module: str, root: Path) -> Path | None:
    """The file of a module or package; None if the name is a class or a function."""
    parts = module.split(".")
    path = root.joinpath(_PACKAGES.get(parts[0], ""), *parts)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _imported(path: Path, root: Path) -> tuple[str, ...]:
    return _imports_of(path, root, path.stat().st_mtime_ns)


@cache
def _imports_of(path: Path, root: Path, _changed: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_own_imports(ast.parse(path.read_bytes()), root)))


def _own_imports(tree: ast.AST, root: Path) -> Iterator[str]:
    """Modules of this repository, and the subpackages that hold them."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if not all(_file_of(name, root) for name in names):  # not a module but a name in the package's own file
                names.append(node.module)
        for name in names:
            parts = name.split(".")
            if parts[0] in _PACKAGES:
                yield name
                yield from (".".join(parts[:count]) for count in range(2, len(parts)))
