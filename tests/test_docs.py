"""The documents name only files, modules, commands and public names that exist."""

import re
from pathlib import Path

import pytest

import texturevlm
from texturevlm.allocate import ALLOCATORS
from texturevlm.cli import REGISTRY
from texturevlm.commands.arguments import Parser
from texturevlm.relevance import SCORERS
from texturevlm_lab.commands.eval import add_eval
from texturevlm_lab.evaluate.metrics import METRICS
from texturevlm_lab.evaluate.ocr import ENGINES
from texturevlm_lab.studies import allocators

ROOT = Path(__file__).parent.parent
GONE = "removed.md"  # names what is no longer there
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
PAGES += [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != GONE]


BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")


def code(text: str) -> str:
    """The lines of fenced blocks, and each inline code span on a line of its own."""
    return "\n".join([*BLOCK.findall(text), *SPAN.findall(BLOCK.sub("", text))])


def without_code(text: str) -> str:
    return SPAN.sub("", BLOCK.sub("", text))


def subcommands() -> set[str]:
    return set(REGISTRY)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def page(request):
    return request.param


def test_links_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert target.is_relative_to(ROOT), f"{page.name} links to {link}, which is outside the repository"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {link}: no such heading"


def test_paths_exist(page):
    text = re.sub(r"https?://\S+", "", page.read_text())
    for path in re.findall(r"(?<![\w/.-])((?:texturevlm|lab|tests|examples|results|docs)/[\w./-]*\w)", text):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_files_named_without_their_folder_exist(page):
    folders = ("texturevlm", "lab", "tests", "docs", "examples")
    known = {path.name for folder in folders for path in (ROOT / folder).rglob("*.*")}
    for name in re.findall(r"`([a-z_]\w*\.(?:py|cu|cuh))`", page.read_text()):
        assert name in known or (ROOT / name).exists(), f"{page.name} names {name}"


def test_the_layout_names_every_room_and_every_module():
    block = (ROOT / "docs" / "design.md").read_text().split("```\ntexturevlm/\n")[1].split("lab/")[0]
    named = re.findall(r"[a-z]\w*(?:\.py(?= )|/(?= ))", re.sub(r" {3,}\S.*", " ", block))
    package = ROOT / "texturevlm"
    there = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}
    there |= {path.name for path in package.glob("*.py") if path.name != "__init__.py"}
    assert set(named) == there


def test_commands_exist(page):
    written = code(page.read_text())
    for module in re.findall(r"python -m (texturevlm(?:_lab)?[\w.]*\w)", written):
        found = (
            ROOT.joinpath("lab" if module.startswith("texturevlm_lab") else "", *module.split("."))
            .with_suffix(".py")
            .exists()
        )
        assert found or module == "texturevlm_lab.studies.NAME", f"{page.name} runs {module}"
    for command in re.findall(r"^texturevlm ([a-z][a-z-]*)", written, re.MULTILINE):
        assert command in subcommands(), f"{page.name} runs texturevlm {command}"
    for target in re.findall(r"^make ([a-z][a-z-]*)", written, re.MULTILINE):
        rule = re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert rule, f"{page.name} runs make {target}"


def test_the_commands_of_whole_tables_are_understood(tmp_path):
    text = (ROOT / "docs" / "findings.md").read_text().split("## How to make each table")[1]
    commands = [line.split() for block in BLOCK.findall(text) for line in block.splitlines()]
    parser = Parser()
    add_eval(parser.add_subparsers())
    found = [parser.parse_args(words[1:]) for words in commands if words[:2] == ["texturevlm", "eval"]]
    for options in found:
        assert set(options.relevance) <= set(SCORERS) and set(options.allocators or ()) <= set(ALLOCATORS)
        assert set(options.metrics or ()) <= set(METRICS) and options.out
    pages = found[0]  # both OCR engines judge every relevance at every budget
    assert set(pages.ocr) == set(ENGINES) and set(pages.relevance) == {"scout", "none", "prior", "words"}
    assert {32, 48, 64, 96, 273, 512} == set(pages.budgets)
    (study,) = [words for words in commands if words[:3] == ["python", "-m", "texturevlm_lab.studies.allocators"]]
    assert allocators.main([str(tmp_path / word) if word == "DATA" else word for word in study[3:]]) == 2  # no data


def test_public_names_exist(page):
    for name in re.findall(r"\btv\.([A-Za-z_]\w*)", page.read_text()):
        assert name in texturevlm.__all__, f"{page.name} names tv.{name}"


def test_the_glossary_stays_short():
    text = (ROOT / "docs" / "design.md").read_text()
    glossary = text.split("## Glossary")[1].split("\n## ")[0]
    assert 20 <= len(re.findall(r"^\| (?!word|---)", glossary, re.MULTILINE)) <= 30
