"""PDFs: pages rendered at the resolution asked for, and errors for what is no readable PDF."""

import sys

import pytest
import torch

from tests.pages.papers import WORDS, paper, pdf_from, pdf_of
from texturevlm import pdfium
from texturevlm.cli import main
from texturevlm.pages import is_document, open_pages
from texturevlm.types import Texture

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def three():
    return pdf_of([paper(word) for word in WORDS[:2]] + [paper("tall", (200, 400))])


def test_a_page_has_at_most_the_pixels_asked_for(three):
    pages = open_pages(three)
    assert len(pages) == 3
    small, large = pages.texture(0, 20_000, CPU), pages.texture(0, 1 << 22, CPU)
    assert 18_000 < small.size[0] * small.size[1] < 21_000
    assert (
        abs(large.size[0] - 480) <= 1 and abs(large.size[1] - 640) <= 1
    )  # 200 dots per inch, although there are pixels for more
    assert pages.texture(2, 20_000, CPU).size[0] > 1.9 * pages.texture(2, 20_000, CPU).size[1]


def test_colours_keep_their_order():
    from PIL import Image

    texture = open_pages(pdf_of([Image.new("RGB", (100, 100), (255, 0, 0))])).texture(0, 10_000, CPU)
    red, green, blue = texture.levels[0].mean((0, 2, 3)).tolist()
    assert red > 0.9 and green < 0.1 and blue < 0.1


def test_what_was_filled_into_a_form_is_drawn():
    black = b"0 0 0 rg 0 0 150 20 re f"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R/AcroForm<</Fields[4 0 R]>>>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Annots[4 0 R]>>",
        b"<</Type/Annot/Subtype/Widget/FT/Tx/T(name)/V(x)/F 4/Rect[20 20 170 40]/P 3 0 R/AP<</N 5 0 R>>>>",
        b"<</Type/XObject/Subtype/Form/BBox[0 0 150 20]/Length %d>>\nstream\n%s\nendstream" % (len(black), black),
    ]
    texture = open_pages(pdf_from(objects)).texture(0, 40_000, CPU)
    assert (texture.levels[0] < 0.5).float().mean() > 0.05


def test_a_document_is_told_from_an_image(three, tmp_path):
    (tmp_path / "report").write_bytes(three)
    paper("x").save(tmp_path / "x.png")
    assert is_document(three) and is_document("a.PDF") and is_document(tmp_path / "report")
    assert not is_document(tmp_path / "x.png") and not is_document(paper("x")) and not is_document(b"\x89PNG")


def test_a_broken_file_is_refused_by_name(tmp_path, three):
    for name, content in {"cut.pdf": three[:200], "empty.pdf": b"", "text.pdf": b"hello"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"choose_pages: .*{name} is not a PDF that can be read"):
            open_pages(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"choose_pages: no such file: nowhere\.pdf"):
        open_pages("nowhere.pdf")
    with pytest.raises(ValueError, match="download it first"):
        open_pages("https://example.org/report.pdf")


def test_an_encrypted_file_is_refused_as_encrypted(tmp_path):
    (tmp_path / "secret.pdf").write_bytes(encrypted())
    with pytest.raises(ValueError, match=r"choose_pages: document must not be encrypted.*secret\.pdf"):
        open_pages(tmp_path / "secret.pdf")


def test_a_document_without_pages_and_one_of_too_many_are_refused(monkeypatch, three, tmp_path):
    with pytest.raises(ValueError, match="at least one page, got an empty list"):
        open_pages([])
    none = pdf_from([b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[]/Count 0>>"])
    (tmp_path / "none.pdf").write_bytes(none)
    with pytest.raises(ValueError, match="encrypted"):
        open_pages(encrypted())  # whose error PDFium still knows afterwards
    for source, name in (none, "document of"), (tmp_path / "none.pdf", ".*none.pdf"):
        with pytest.raises(ValueError, match=f"choose_pages: document must have at least one page, got none in {name}"):
            open_pages(source)
    monkeypatch.setattr(pdfium, "MOST_PAGES", 2)
    with pytest.raises(ValueError, match="choose_pages: document must have at most 2 pages, got 3"):
        open_pages(three)


def test_ten_thousand_pages_are_refused_before_one_is_rendered():
    import pypdfium2

    class Many(pypdfium2.PdfDocument):
        def __len__(self):
            return 10_000

        def __getitem__(self, index):
            raise AssertionError("rendered")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pypdfium2, "PdfDocument", Many)
        with pytest.raises(ValueError, match="at most 1000 pages, got 10000"):
            open_pages(pdf_of([paper("x")]))


def test_the_error_names_the_extra(monkeypatch, three):
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    with pytest.raises(ImportError, match=r"needs the extra pdf: pip install 'texturevlm\[pdf\]'"):
        open_pages(three)


def test_a_pdf_where_an_image_is_expected_says_so(tmp_path, three):
    (tmp_path / "report.pdf").write_bytes(three)
    for source in (tmp_path / "report.pdf", three):
        with pytest.raises(ValueError, match=r"is a PDF, not an image: give it alone to VLM\.ask or choose_pages"):
            Texture.open(source)


def encrypted():
    """A PDF whose trailer names a standard security handler; the key fits no password."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]>>",
        b"<</Filter/Standard/V 1/R 2/P -4/O<" + b"11" * 32 + b">/U<" + b"22" * 32 + b">>>",
    ]
    return pdf_from(objects, b"/Encrypt 4 0 R/ID[<00><00>]")


def test_the_command_line_refuses_what_a_document_cannot_do_before_a_model_is_loaded(tmp_path, three, capsys):
    (tmp_path / "report.pdf").write_bytes(three)
    given = ["ask", str(tmp_path / "report.pdf"), "What is the total?", "--model", "nowhere"]
    for more, wanted in (("--tokens", "merged"), "tokens must be chosen"), (("--looks", "auto"), "looks must be 1"):
        assert main([*given, *more]) == 2
        assert f"{wanted} for a document, got {more[1]}" in capsys.readouterr().err
    assert main([*given, "--fine-pages", "99"]) == 2
    assert "--fine-pages must be between 1 and 20, got 99" in capsys.readouterr().err
    paper("x").save(tmp_path / "x.png")
    for command in (["ask", str(tmp_path / "x.png"), "what?"], ["allocate", str(tmp_path / "x.png")]):
        assert main([*command, "--fine-pages", "2"]) == 2
        assert "a PDF, got " in capsys.readouterr().err


def test_the_command_line_refuses_a_broken_document_before_a_model_is_loaded(tmp_path, capsys):
    (tmp_path / "cut.pdf").write_bytes(b"%PDF-1.4 and no more")
    assert main(["ask", str(tmp_path / "cut.pdf"), "What is the total?", "--model", "nowhere"]) == 2
    assert "cut.pdf is not a PDF that can be read" in capsys.readouterr().err
