"""Data flows one way, and so do imports: a stage may know the stages before it and nothing of those after it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import texturevlm

PACKAGE = Path(__file__).parent.parent / "texturevlm"

# From the first to the last; a module may import from its own layer and from those before it.
LAYERS = [
    {"defaults"},
    {"paths"},
    {"extras"},
    {"pdfium"},
    {"registry"},
    {"check"},
    {"text"},
    {"progress"},
    {"cuda"},
    {"ops"},
    {"staging"},
    {"image"},
    {"types"},
    {"frame"},
    {"virtual"},
    {"channels"},
    {"scout"},
    {"relevance"},
    {"allocate"},
    {"sampling"},
    {"placement"},
    {"rebuilding"},
    {"draw_parts"},
    {"draw"},
    {"draw_terms"},
    {"vlm"},
    {"codebook"},
    {"pages"},
    {"video"},
    {"ask", "video"},  # ask takes clips from video; a watched video (video/live.py) is asked
    {"corpus"},
    {"vllm_plugin"},
    {"serve"},
    {"__init__"},
    {"cli", "commands"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
# What the command line may reach through the package's own public names.
PUBLIC = "__init__"
# Methods that lead to a later stage; imported when they are called.
METHODS = {
    ("types.py", "texturevlm.sampling"),  # Texture.sample_foveated
    ("types.py", "texturevlm.virtual.opening"),  # Texture.open
    ("types.py", "texturevlm.virtual.pages"),  # the type of Texture.pages
}


def stage(module: str) -> str:
    """The stage of a module: texturevlm.ops.mip_kernel → ops, texturevlm → __init__."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else PUBLIC


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            found += [f"texturevlm.{alias.name}" if base == "texturevlm" else base for alias in node.names]
    return [name for name in found if name.split(".")[0] == "texturevlm"]


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_import_points_backwards(path):
    relative = path.relative_to(PACKAGE)
    own = relative.parts[0].removesuffix(".py")
    assert own in RANK, f"{relative} belongs to no layer: add it to LAYERS and to docs/design.md"
    for module in imports(path):
        if (str(relative), module) in METHODS:
            continue
        target = stage(module)
        if target not in RANK:  # a public name such as texturevlm.Texture, or __version__
            target = PUBLIC
        assert RANK[target] <= RANK[own], f"{relative} imports {module}, which comes after it"


def test_operations_know_nothing_but_checks():
    for path in (PACKAGE / "ops").rglob("*.py"):
        for module in imports(path):
            assert stage(module) in ("check", "cuda", "ops"), f"{path.name} imports {module}"


# What changes a model while it runs, by the beginnings of module names; and the rooms that may import it. The core
# finds it by entry points alone (registry.py).
HOOKS = ("reduce", "vlm.reduction", "vlm.attention", "vlm.merged", "allocate.merge")
HOOKS += ("ops.hierarchical", "ops.block_", "ops.key_value_texture")
LAB = (*HOOKS, "evaluate", "train.", "bench.", "commands.eval", "commands.train", "commands.bench")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_does_not_import_what_changes_a_model(path):
    if ".".join(path.relative_to(PACKAGE).with_suffix("").parts).startswith(LAB):
        return
    found = [name for name in imports(path) if name.removeprefix("texturevlm.").startswith(HOOKS)]
    assert not found, f"{path.relative_to(PACKAGE)} imports {', '.join(found)}"


@pytest.mark.parametrize("arguments", [None, ["--help"], ["look", "--help"], ["ask", "--help"], ["look", "gone.png"]])
def test_torch_is_not_imported_until_something_needs_it(arguments):
    code = f"""
import sys, texturevlm
if {arguments}:
    from texturevlm.cli import main
    try:
        main({arguments})
    except SystemExit:
        pass
assert "torch" not in sys.modules and "numpy" not in sys.modules
assert texturevlm.Texture and "torch" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0, done.stderr


def test_a_module_hides_no_public_name():
    """`import texturevlm.sample` would put the module where the function `tv.sample` is found."""
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert {name for name in texturevlm.__all__ if name in modules} == {"corpus", "ops"}
