"""The documents site: a strict build, every page in the navigation, nothing loaded from elsewhere."""

import inspect
import re
import shutil
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

import texturevlm as tv

if find_spec("zensical") is None or find_spec("jupytext") is None:
    pytest.skip("needs Zensical and jupytext: pip install 'texturevlm[docs]'", allow_module_level=True)

ROOT = Path(__file__).parent.parent
RESOURCES = {"stylesheet", "preconnect", "preload", "prefetch", "dns-prefetch", "icon", "manifest", "modulepreload"}


class Loads(HTMLParser):
    """What a browser would load for a page."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "link" and not RESOURCES.isdisjoint((given.get("rel") or "").split()):
            self.found.append(given["href"])
        elif tag in ("script", "img", "iframe", "source", "video"):
            self.found += [given["src"]] if given.get("src") else []


@pytest.fixture(scope="module")
def built():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        import build_site

        yield build_site


@pytest.fixture(scope="module")
def site(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents") / "site"
    assert built.build(folder) == 0
    return folder


def test_every_document_is_a_page_in_the_navigation(site):
    home = (site / "index.html").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        if path.stem != "index":
            assert (site / path.stem / "index.html").exists(), path.name
            assert re.search(
                rf'href="(\./)?{path.stem}/"[^>]*md-nav__link|md-nav__link[^>]*href="(\./)?{path.stem}/"', home
            ), f"{path.name} is not in the navigation"
    assert len(list((site / "notebooks").rglob("index.html"))) == 3


def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    loaded = [(page.name, one) for page in pages for one in Loads(page.read_text()).found]
    assert len(pages) > 20 and len(loaded) > 100
    assert [one for one in loaded if re.match(r"(https?:)?//", one[1])] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert styles and not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", styles)
    assert not re.search(
        r"fonts\.g|data-md-component=\"source\"|class=\"mermaid\"", "".join(p.read_text() for p in pages)
    )


def test_the_reference_has_every_public_name_and_its_docstring(site):
    page = (site / "reference" / "texturevlm" / "index.html").read_text()
    for name in tv.__all__:
        assert re.search(rf'<h2 id="{name.lower()}(_\d+)?"', page), name
    assert tv.choose_tokens.__doc__.split(".")[0] in page
    assert "(B, C, H, W), the size of the image, or of the box" in page  # columns of a docstring, as they are
    for name in tv.__all__:
        if inspect.ismodule(module := getattr(tv, name)):
            page = (site / "reference" / name / "index.html").read_text()
            assert all(f'id="{one.lower()}"' in page for one in module.__all__)


def test_a_signature_is_shown_as_it_is_written(built):
    from reference import signature

    def short(first: "str | None", *, second: int = 1) -> "list[str]": ...

    def long(first: str, *, second: str = "a" * 50, third: "dict[str, int]") -> None: ...

    assert signature("short", short) == "def short(first: str | None, *, second: int = 1) -> list[str]"
    shown = ["def long(", "    first: str,", "    *,", f"    second: str = '{'a' * 50}',"]
    assert signature("long", long).splitlines() == [*shown, "    third: dict[str, int],", ") -> None"]


def test_links_out_of_the_documents_lead_to_github(built, site):
    page = built.with_links_out("[a](../CONTRIBUTING.md#style) [b](design.md#video) ![c](look.png)", Path("x.md"))
    assert page == f"[a]({built.SOURCE}CONTRIBUTING.md#style) [b](design.md#video) ![c](look.png)"
    for link in re.findall(
        rf'href="?{re.escape(built.SOURCE)}([^"#\s>]+)', (site / "design" / "index.html").read_text()
    ):
        assert (ROOT / link).exists(), link


def test_a_broken_document_fails_the_build(built, tmp_path, capfd):
    docs = shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (docs / "extra.md").write_text("# Extra\n")
    with pytest.raises(SystemExit, match=r"nav of docs/zensical\.toml must name every page, not there: extra\.md"):
        built.build(tmp_path / "site", docs)
    (docs / "extra.md").unlink()
    (docs / "ideas.md").write_text("# Ideas\n\n[nowhere](gone.md)\n")
    assert built.build(tmp_path / "site", docs) != 0 and not (tmp_path / "site").exists()
    with pytest.raises(SystemExit, match="--out must be a new folder or an earlier site"):
        built.build(docs)
