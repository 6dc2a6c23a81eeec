"""What OCR reads in a box, and which pages and moments a question is about."""

import io

import pytest
from PIL import Image, ImageDraw, ImageFont

from tests.serve.conftest import pdf, uploaded, video


def big_print(text):
    image = Image.new("RGB", (300, 200), "white")
    ImageDraw.Draw(image).text((50, 60), text, fill="black", font=ImageFont.load_default(56))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_a_box_is_read_as_delivered_and_as_it_was(client):
    pytest.importorskip("rapidocr", reason="needs OCR (extra ocr)")
    body = {"id": uploaded(client, big_print("4711"))["id"], "relevance": "none", "allocator": "resize"}
    body["box"] = [30, 30, 230, 170]  # nearly square: RapidOCR enlarges the shorter side
    fine = client.post("/api/read", json={**body, "budget": 300}).json()
    coarse = client.post("/api/read", json={**body, "budget": 2, "patch": 8}).json()
    assert "4711" in fine["original"] and "4711" in fine["seen"] and fine["alike"] > 0.85
    assert "4711" not in coarse["seen"] and coarse["alike"] < 0.6 and coarse["original"] == fine["original"]


@pytest.mark.parametrize("box", [[0, 0, 1, 1], [5, 5], "all", [-9, -9, -3, -3]])
def test_a_bad_box_is_refused(client, box):
    pytest.importorskip("rapidocr", reason="needs OCR (extra ocr)")
    answer = client.post("/api/read", json={"id": uploaded(client)["id"], "relevance": "none", "box": box})
    assert answer.status_code == 422 and "box" in answer.json()["error"]["message"]


def test_pages_have_shares_as_choose_pages_sees_them(client):
    import torch

    from texturevlm.pages import open_pages
    from texturevlm.pages.pictures import PagePictures
    from texturevlm.pages.scouting import scouted
    from texturevlm.placement import TokenConfig

    content = pdf(2)
    found = client.post("/api/shares", json={"id": uploaded(client, content)["id"], "question": "total"}).json()
    pages = PagePictures(open_pages(content))
    (sights,) = scouted(pages, ["total"], how=TokenConfig(), device=torch.device("cpu"))
    assert found["shares"] == pytest.approx([one.worth for one in sights]) and sum(found["shares"]) == pytest.approx(1)


def test_a_video_has_one_budget_over_its_moments(client):
    found = uploaded(client, video(side=96))
    body = {"id": found["id"], "budget": 24, "relevance": "none", "patch": 16}
    clip = client.post("/api/clip", json=body).json()
    shown = [one for one in clip["moments"] if one["used"]]
    assert len(clip["moments"]) == found["pages"] and len(shown) > 1
    assert sum(one["used"] for one in shown) == clip["used"] <= 24
    assert [one["first"] for one in shown] == [sum(one["used"] for one in shown[:n]) for n in range(len(shown))]
    assert all(len(one["tokens"]["centre"]) == one["used"] for one in shown)
    assert clip["moments"][0]["changed"] == 1 and 0 < clip["moments"][1]["changed"] < 1  # the square moves


def test_a_clip_reads_each_moment_once_and_ends_when_nobody_waits(monkeypatch):
    from dataclasses import replace

    import torch

    from texturevlm.placement import TokenConfig
    from texturevlm.relevance import ScoutScorer
    from texturevlm.serve.clips import clip_of
    from texturevlm.serve.lanes import Stop, Stopped
    from texturevlm.serve.limits import Limits
    from texturevlm.serve.plans import PlanRequest
    from texturevlm.serve.uploads import upload_of

    read, prepare = [], ScoutScorer.prepare
    monkeypatch.setattr(ScoutScorer, "prepare", lambda self, texture: read.append(1) or prepare(self, texture))
    stop = Stop()
    upload = upload_of(video(side=96), "clip.mp4", Limits(), stop)
    before = upload.nbytes
    asked, how, device = PlanRequest(id="x", question="total"), TokenConfig(patch=16), torch.device("cpu")
    first = clip_of(upload, asked, replace(how, budget=24), device, stop)
    count = len(read)
    assert count > 1 and upload.nbytes > before  # what is kept counts
    second = clip_of(upload, asked, replace(how, budget=16), device, stop)
    assert len(read) == count and second["used"] <= 16 < first["used"]
    stop.set()
    with pytest.raises(Stopped):
        clip_of(upload, asked, replace(how, budget=24), device, stop)


def test_shares_are_of_documents_and_clips_of_videos(client):
    for path in ("shares", "clip"):
        answer = client.post(f"/api/{path}", json={"id": uploaded(client)["id"]})
        assert answer.status_code == 400 and "got image" in answer.json()["error"]["message"]
