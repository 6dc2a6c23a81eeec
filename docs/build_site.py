"""Build the documents site: python docs/build_site.py --out site

The documents are read on GitHub, too, and link to files beside docs/. So the site is built from a copy, in which such
links lead to GitHub, with the pages of the API reference and of the notebooks beside it. Warnings are errors.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
SOURCE = "https://github.com/texturevlm/texturevlm/blob/main/"
LINK = re.compile(r"(\]\()([^)\s:]+?)(#[^)\s]*)?(\))")  # of Markdown, without those that name a scheme
PAGE = re.compile(r'"([\w./-]+\.md)"')  # in zensical.toml


def build(out: Path, docs: Path = DOCS) -> int:
    """Build the site into a folder that is made anew; returns the exit status of Zensical."""
    if absent := [name for name in ("zensical", "jupytext") if find_spec(name) is None]:
        raise SystemExit(f"build_site: needs {' and '.join(absent)}: pip install '.[docs]'")
    if out.exists() and not (out / "sitemap.xml").exists():
        raise SystemExit(f"build_site: --out must be a new folder or an earlier site, got {out}")
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder)
        stage(copied, docs)
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", "zensical.toml"]
        status = subprocess.run(command, cwd=copied).returncode
        if status == 0:
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(copied / "site", out)
    return status


def stage(folder: Path, docs: Path) -> None:
    """Write zensical.toml and all pages into a folder."""
    pages = folder / "pages"
    shutil.copytree(docs, pages, ignore=shutil.ignore_patterns("*.py", "*.toml", "__pycache__"))
    for path in pages.rglob("*.md"):
        path.write_text(with_links_out(path.read_text(), path.relative_to(pages)))
    for name, text in made_pages().items():
        (pages / name).parent.mkdir(exist_ok=True)
        (pages / name).write_text(text)
    there = {str(path.relative_to(pages)) for path in pages.rglob("*.md")}
    lines = (docs / "zensical.toml").read_text().splitlines(keepends=True)
    named = [found for line in lines for found in PAGE.findall(line)]
    if missing := sorted(there - set(named)):
        raise SystemExit(f"build_site: nav of docs/zensical.toml must name every page, not there: {', '.join(missing)}")
    kept = [line for line in lines if set(PAGE.findall(line)) <= there]
    (folder / "zensical.toml").write_text("".join(kept))


def with_links_out(text: str, page: Path) -> str:
    """Links that leave docs/ lead to the file on GitHub."""

    def out(match: re.Match[str]) -> str:
        target = (DOCS / page.parent / match[2]).resolve()
        if target.is_relative_to(DOCS):
            return match[0]
        return f"{match[1]}{SOURCE}{target.relative_to(ROOT)}{match[3] or ''}{match[4]}"

    return LINK.sub(out, text)


def made_pages() -> dict[str, str]:
    """The pages that are not files of docs/."""
    import jupytext
    from reference import pages

    notebooks = {
        f"notebooks/{path.stem}.md": without_header(jupytext.writes(jupytext.read(path), "md"))
        for path in sorted((ROOT / "examples" / "notebooks").glob("*.py"))
    }
    return pages() | notebooks


def without_header(text: str) -> str:
    """Markdown without the settings of Jupyter before it."""
    return text.split("---\n", 2)[2].lstrip() if text.startswith("---\n") else text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site", help="a folder that is made anew (default: site)")
    return build(parser.parse_args().out)


if __name__ == "__main__":
    sys.exit(main())
