"""Count lines, imports, options and names of the package, and what one `ask` runs: before and after issue 36.

A room is a folder of texturevlm/ or of lab/texturevlm_lab/; files beside the folders are the room "root". Counts of
files and rooms of one `ask` come from a warm one of the reader about examples/invoice.png.
"""

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
while not (ROOT / "texturevlm").is_dir():  # this file may move into the lab
    ROOT = ROOT.parent
PACKAGES = [folder for folder in (ROOT / "texturevlm", ROOT / "lab" / "texturevlm_lab") if folder.is_dir()]
OTHERS = [ROOT / "studies", ROOT / "lab" / "studies", ROOT / "tests", ROOT / "lab" / "tests"]
CODE = (".py", ".cu", ".cuh")
HOW = {"budget", "allocator", "relevance"}  # what stands together in signatures and classes
SHORT = 3  # words of a docstring
QUESTION = "What is the total?"


def files(folder: Path, *suffixes: str) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in suffixes and "build" not in path.parts)


def lines(paths: Iterable[Path]) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def room(path: Path) -> str:
    """The room of a file, with its package if that is the lab."""
    for package in PACKAGES:
        if path.is_relative_to(package):
            inside = path.relative_to(package).parts
            name = inside[0] if len(inside) > 1 else "root"
            return name if package.name == "texturevlm" else f"{package.name}/{name}"
    return path.relative_to(ROOT).parts[0]


def module(path: Path) -> str:
    """The dotted name of a file."""
    package = next(folder for folder in PACKAGES if path.is_relative_to(folder))
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Sources:
    """The Python files of the packages, parsed.

    trees: by file; modules: files by dotted name
    """

    def __init__(self) -> None:
        paths = [path for package in PACKAGES for path in files(package, ".py")]
        self.trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
        self.modules = {module(path): path for path in paths}

    def nodes(self, *kinds: type[Any]) -> Iterator[tuple[Path, Any]]:
        """All nodes of these kinds, with their files."""
        for path, tree in self.trees.items():
            yield from ((path, node) for node in ast.walk(tree) if isinstance(node, kinds))

    def imports(self) -> Iterator[tuple[Path, Path, bool]]:
        """Each import of a file of the packages by another: importer, imported, and whether it names a file.

        `from texturevlm.ask import VLM` and `from texturevlm.ask import model` are told apart by whether there is such
        a file.
        """
        for path, node in self.nodes(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            else:
                start = node.module or ""
                inside = [f"{start}.{name.name}" for name in node.names]
                names = [name if name in self.modules else start for name in inside]
            for name in dict.fromkeys(names):
                if (target := self.modules.get(name)) is not None and target != path:
                    yield path, target, target.name != "__init__.py"

    def across(self) -> tuple[int, int]:
        """Imports between rooms: those that name a file inside another room, and all of them.

        What imports a file of the root is not counted, because the root has no `__init__` that exports names.
        """
        pairs = [(one, other, deep) for one, other, deep in self.imports() if room(one) != room(other)]
        into = [own for own in pairs if room(own[1]).rpartition("/")[2] != "root"]
        return sum(deep for _, _, deep in into), len(into)

    def single(self) -> list[Path]:
        """The files that one other file of the packages imports; an `__init__` is no such file."""
        importers: dict[Path, set[Path]] = defaultdict(set)
        for importer, imported, deep in self.imports():
            if deep:
                importers[imported].add(importer)
        return [path for path, by in importers.items() if len(by) == 1]

    def options(self) -> Counter[str]:
        """Calls that declare an option of a command, by the name of what is called."""
        called = [node.func.attr for _, node in self.nodes(ast.Call) if isinstance(node.func, ast.Attribute)]
        return Counter(name for name in called if name in ("add_argument", "add_option"))

    def signatures(self) -> tuple[int, int]:
        """Signatures that have budget, allocator and relevance together, and classes with these attributes."""
        functions = [node.args for _, node in self.nodes(ast.FunctionDef, ast.AsyncFunctionDef)]
        named = [{one.arg for one in (*own.posonlyargs, *own.args, *own.kwonlyargs)} for own in functions]
        classes = [node for _, node in self.nodes(ast.ClassDef)]
        fields = [{*map(_field, own.body), *_attributes(own)} for own in classes]
        return sum(own >= HOW for own in named), sum(own >= HOW for own in fields)

    def docstrings(self) -> list[str]:
        """Docstrings of at most three words."""
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [ast.get_docstring(node) for _, node in self.nodes(*kinds)]
        return [text for text in found if text is not None and len(text.split()) <= SHORT]

    def bound(self, name: str) -> int:
        """How often a name is bound: assigned, looped over, or a parameter."""
        stored = [node.id for _, node in self.nodes(ast.Name) if isinstance(node.ctx, ast.Store)]
        parameters = [node.arg for _, node in self.nodes(ast.arg)]
        return Counter([*stored, *parameters])[name]

    def public(self) -> list[str]:
        """texturevlm.__all__"""
        for node in self.trees[self.modules["texturevlm"]].body:
            if isinstance(node, ast.Assign) and _target(node) == "__all__":
                return list(ast.literal_eval(node.value))
        return []


def _field(node: ast.stmt) -> str:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return node.name if isinstance(node, ast.FunctionDef) and node.decorator_list else ""


def _attributes(node: ast.ClassDef) -> Iterator[str]:
    """What its methods assign to self."""
    for own in ast.walk(node):
        if isinstance(own, ast.Attribute) and isinstance(own.ctx, ast.Store) and isinstance(own.value, ast.Name):
            yield own.attr


def _target(node: ast.Assign) -> str:
    (first, *_) = node.targets
    return first.id if isinstance(first, ast.Name) else ""


def one_ask() -> tuple[Counter[str], int, int]:
    """What one warm `ask` runs: files by room, calls of functions, and how often a call goes to another room."""
    import torch

    import texturevlm

    torch.set_num_threads(1)
    model = texturevlm.load_vlm("reader", captured=False, device="cpu", dtype="float32")
    model.ask(str(ROOT / "examples" / "invoice.png"), QUESTION)
    homes = {str(path): room(path) for package in PACKAGES for path in files(package, ".py")}
    ran, counts, stack = set(), Counter[str](), [""]

    def watch(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name in homes:
            ran.add(name)
            counts["calls"] += 1
            counts["changes"] += stack[-1] not in ("", homes[name])
            stack.append(homes[name])
        elif event == "return" and name in homes and len(stack) > 1:
            stack.pop()

    sys.setprofile(watch)
    try:
        model.ask(str(ROOT / "examples" / "invoice.png"), QUESTION)
    finally:
        sys.setprofile(None)
    return Counter(homes[name] for name in ran), counts["calls"], counts["changes"]


def room_rows() -> Iterator[tuple[str, int, int, int]]:
    """Each room, and the other folders: files, lines of Python, lines of CUDA."""
    for package in PACKAGES:
        rooms: dict[str, list[Path]] = defaultdict(list)
        for path in files(package, *CODE):
            rooms[room(path)].append(path)
        yield package.name, *_sizes(files(package, *CODE))
        yield from ((f"– {name}", *_sizes(paths)) for name, paths in sorted(rooms.items()))
    for folder in OTHERS:
        if folder.is_dir():
            yield str(folder.relative_to(ROOT)), *_sizes(files(folder, *CODE))


def _sizes(paths: Iterable[Path]) -> tuple[int, int, int]:
    python, cuda = ([path for path in paths if (path.suffix == ".py") == wanted] for wanted in (True, False))
    return len(python) + len(cuda), lines(python), lines(cuda)


def facts() -> Iterator[tuple[str, str]]:
    """Each claim, and its number."""
    sources, (ran, calls, changes) = Sources(), one_ask()
    deep, across = sources.across()
    single, options, (signatures, classes) = sources.single(), sources.options(), sources.signatures()
    small = sum(lines([path]) <= 120 for path in single)
    yield "files that one warm ask runs", f"{ran.total()} in {len(ran)} rooms"
    yield "calls of the package in it, and changes of room", f"{calls:,} and {changes:,}"
    yield "imports past another room's __init__", f"{deep} of {across} ({deep / max(1, across):.0%})"
    yield "files with one importer, and of at most 120 lines", f"{len(single)} and {small}"
    yield "options declared", " + ".join(f"{count} {name}" for name, count in sorted(options.items()))
    yield "signatures with budget, allocator and relevance", str(signatures)
    yield "classes with these attributes", str(classes)
    yield f"docstrings of at most {SHORT} words", str(len(sources.docstrings()))
    yield "`one` bound", str(sources.bound("one"))
    yield "public names", str(len(sources.public()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print two tables in Markdown: the rooms, and the claims."""
    description = (__doc__ or "").split("\n")[0]
    argparse.ArgumentParser("python -m texturevlm_lab.studies.count", description=description).parse_args(arguments)
    print("| folder | files | Python | CUDA | lines |\n|---|--:|--:|--:|--:|")
    for name, count, python, cuda in room_rows():
        print(f"| {name} | {count} | {python:,} | {cuda:,} | {python + cuda:,} |")
    print("\n| claim | count |\n|---|--:|")
    for claim, found in facts():
        print(f"| {claim} | {found} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
