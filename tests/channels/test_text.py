"""text_map: lines of text of either polarity, at many sizes; nothing where there is none."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from texturevlm.channels import text
from texturevlm.channels.text import TEXT_REACH, text_map, text_map_ocr
from texturevlm.ops import mipmap
from texturevlm_lab.studies.channels import main

LINES = ("Minimum total 1,234.50", "The quick brown fox")


def found_in(image: torch.Tensor) -> torch.Tensor:
    return text_map(image, mipmap(image))


def as_image(page: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(page.convert("RGB"))).permute(2, 0, 1)[None].float() / 255


def page_of_text(ink: int, paper: int, height: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two lines of text, and which pixels lie in their boxes."""
    page = Image.new("L", (13 * height + 80, 4 * height + 80), paper)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(height)
    inside = torch.zeros(page.height, page.width, dtype=torch.bool)
    for number, line in enumerate(LINES):
        corner = (40, 40 + 2 * number * height)
        draw.text(corner, line, fill=ink, font=font)
        x0, y0, x1, y1 = (round(edge) for edge in draw.textbbox(corner, line, font=font))
        inside[y0:y1, x0:x1] = True
    return as_image(page), inside


def f1(found: torch.Tensor, inside: torch.Tensor) -> float:
    return (2 * (found & inside).sum() / (found.sum() + inside.sum())).item()


@pytest.mark.parametrize("ink, paper", [(0, 255), (255, 0), (255, 128), (0, 128), (200, 40)])
@pytest.mark.parametrize("height", [10, 14, 20, 32, 48, 64])
def test_lines_of_text_are_found_in_both_polarities(ink, paper, height):
    image, inside = page_of_text(ink, paper, height)
    assert f1(found_in(image)[0] > 0.5, inside) > 0.85


@pytest.mark.parametrize("ink, paper", [(140, 128), (116, 128), (190, 200)])
@pytest.mark.parametrize("height", [14, 20, 32, 48])
def test_low_contrast_text_is_found(ink, paper, height):
    image, inside = page_of_text(ink, paper, height)
    assert f1(found_in(image)[0] > 0.5, inside) > 0.75


def blank(value: float = 1.0) -> torch.Tensor:
    return torch.full((1, 3, 200, 300), value)


def gradient() -> torch.Tensor:
    return torch.linspace(0, 1, 300).expand(1, 3, 200, 300).contiguous()


def circle() -> torch.Tensor:
    page = Image.new("L", (300, 200), 255)
    ImageDraw.Draw(page).ellipse((70, 20, 230, 180), fill=0)
    return as_image(page)


def ruled() -> torch.Tensor:
    page = Image.new("L", (300, 200), 255)
    for at in range(20, 200, 40):
        ImageDraw.Draw(page).line((10, at, 290, at), fill=0, width=2)
        ImageDraw.Draw(page).line((at + 20, 5, at + 20, 195), fill=0, width=2)
    return as_image(page)


@pytest.mark.parametrize("page", [blank(), blank(0.0), blank(0.4), gradient(), gradient().mT.contiguous(), circle()])
def test_nothing_is_found_where_there_is_no_text(page):
    assert found_in(page).max() < 0.3


def test_ruled_lines_and_noise_are_not_text():
    assert (found_in(ruled()) > 0.5).float().mean() < 0.02
    noise = (200 + torch.randn(1, 3, 200, 300)).round() / 255
    assert (found_in(noise) > 0.5).float().mean() < 0.02


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (5, 3), (40, 400), (3, 700), (37, 53)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_any_size_stays_within_0_and_1(size, dtype):
    found = found_in((torch.rand(2, 3, *size) > 0.5).to(dtype))
    assert found.shape == (2, *size) and found.dtype == dtype
    assert found.min() >= 0 and found.max() <= 1


@pytest.mark.parametrize("size", [(512, 512), (511, 575), (401, 640)])
def test_a_pixel_acts_no_further_than_declared(size):
    # Strokes at random, so that every stage has something to close, open and count.
    image = torch.rand(1, 1, size[0] // 4 + 1, size[1] // 3 + 1).round()
    image = image.repeat_interleave(4, 2).repeat_interleave(3, 3)[..., : size[0], : size[1]].expand(1, 3, -1, -1)
    y, x = size[0] // 2, size[1] // 2
    changed = image.clone()
    changed[..., y - 8 : y + 8, x - 8 : x + 8] = 0.5
    different = (found_in(image) != found_in(changed))[0].nonzero()
    assert len(different)
    low, high = different.amin(0), different.amax(0)
    assert (low >= torch.tensor([y - 8, x - 8]) - TEXT_REACH).all()
    assert (high <= torch.tensor([y + 7, x + 7]) + TEXT_REACH).all()


def test_bad_input_is_named():
    image = torch.rand(1, 3, 8, 8)
    with pytest.raises(ValueError, match=r"text_map: image must be \(B, 3, H, W\), got \(3, 8, 8\)"):
        text_map(image[0], mipmap(image))
    with pytest.raises(ValueError, match=r"text_map_ocr: image must be \(B, 3, H, W\), got \(3, 8, 8\)"):
        text_map_ocr(image[0])


def test_a_missing_ocr_names_the_extra(monkeypatch):
    text._detector.cache_clear()
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    with pytest.raises(ImportError, match=r"text_map_ocr: needs the extra ocr: pip install 'texturevlm\[ocr\]'"):
        text_map_ocr(torch.rand(1, 3, 64, 64))


def test_the_ocr_detector_paints_its_boxes():
    pytest.importorskip("rapidocr")
    image, inside = page_of_text(0, 255, 32)
    found = text_map_ocr(torch.cat([image, torch.ones_like(image)]))
    assert found.shape == (2, *image.shape[2:]) and found.dtype == image.dtype
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert f1(found[0] > 0.5, inside) > 0.7 and found[1].max() == 0


def write_data(folder, count: int = 2) -> None:
    """Text and objects as `texturevlm_lab.studies.channels` wants them."""
    for name, listing in (("funsd", "text_boxes"), ("sroie", "text_boxes"), ("coco", "questions")):
        (folder / name).mkdir()
        rows = []
        for split in ("train", "eval"):
            for number in range(count):
                image, inside = page_of_text(0, 255, 16 + 4 * number)
                path = f"{split}{number}.png"
                Image.fromarray((image[0].permute(1, 2, 0).numpy() * 255).astype(np.uint8)).save(folder / name / path)
                (y0, x0), (y1, x1) = inside.nonzero().amin(0).tolist(), inside.nonzero().amax(0).tolist()
                rows.append({"image": path, "boxes": [[x0, y0, x1 + 1, y1 + 1]], "split": split})
        (folder / name / f"{listing}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def test_the_measuring_command_writes_its_report(tmp_path, capsys):
    write_data(tmp_path)
    assert main([str(tmp_path), "--out", str(tmp_path / "out"), "--limit", "1"]) == 0
    record = json.loads((tmp_path / "out" / "channels.json").read_text())
    table = (tmp_path / "out" / "channels.md").read_text()
    for method in [*record["text"]["scores"], *record["saliency"]["scores"], *record["polarity"]]:
        assert f"| {method} |" in table
    assert "1/1 images of funsd, eval" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 2
    assert "DATA must hold funsd/text_boxes.jsonl" in capsys.readouterr().err
