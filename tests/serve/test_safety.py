"""What a client must not be able to do."""

import io
import struct
import time
import zlib

import pytest
import torch
from PIL import Image

from tests.serve.conftest import client_of, pdf, png, uploaded, video
from texturevlm.pages.document import PdfPages
from texturevlm.serve import pdf_process
from texturevlm.serve.guard import is_loopback
from texturevlm.serve.lanes import Stop, Stopped
from texturevlm.serve.limits import Limits
from texturevlm.serve.pdfs import SafePdf
from texturevlm.serve.uploads import upload_of

PATHS = ("/etc/passwd", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%00", "a" * 500)


def test_every_answer_has_the_security_headers(client):
    for path in ("/", "/static/main.js", "/api/about", "/nothing", "/api/images/x"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
        assert "set-cookie" not in headers


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.1.4:8080", "", "[::1"])
def test_a_foreign_host_is_refused(client, host):
    assert client.get("/api/about", headers={"host": host}).status_code == 403  # DNS rebinding
    assert client.get("/api/about", headers={"origin": f"http://{host}"}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080"])
def test_this_machine_is_served(client, host):
    assert client.get("/api/about", headers={"host": host}).status_code == 200


def test_another_web_site_cannot_upload(client):
    given = {"file": ("page.png", png())}
    foreign = client.post("/api/images", files=given, headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403
    assert client.post("/api/images", files=given, headers={"origin": "null"}).status_code == 403
    assert client.post("/api/images", files=given, headers={"origin": "http://127.0.0.1:8080"}).status_code == 200


def test_a_token_opens_everything_and_nothing_else_does():
    with client_of(token="secret") as client:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}, {"authorization": "Bearer "}):
            assert client.get("/api/about", headers=given).status_code == 401
            assert client.post("/v1/chat/completions", json={}, headers=given).status_code == 401
        opened = client.get("/api/about", headers={"authorization": "Bearer secret", "host": "any.example"})
        assert opened.status_code == 200
        assert client.get("/", headers={"host": "any.example"}).status_code == 200  # the page holds no secret
        assert client.get("/static/../api/about").status_code == 401


@pytest.mark.parametrize(
    ("host", "alone"), [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True),
                        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.evil", False)]
)  # fmt: skip
def test_which_addresses_are_this_machine_alone(host, alone):
    assert is_loopback(host) is alone


@pytest.mark.parametrize("path", PATHS)
def test_no_path_reaches_the_file_system(client, path):
    for route in (
        f"/static/{path}",
        f"/api/images/{path}",
        f"/api/tiles/{path}/0/0_0.jpg",
        f"/api/channels/{path}/edges.jpg",
    ):
        answer = client.get(route)
        assert answer.status_code in (403, 404) and b"root:" not in answer.content, route


@pytest.mark.parametrize("relevance", ["embedding:/etc/passwd,/etc/passwd", "attention", "../x", "embedding"])
def test_a_client_names_no_model_and_no_file(client, relevance):
    identity = uploaded(client)["id"]
    answer = client.post("/api/plan", json={"id": identity, "relevance": relevance})
    assert answer.status_code == 400 and "relevance must be one of" in answer.json()["error"]["message"]


def test_ids_cannot_be_guessed(client):
    ids = {uploaded(client)["id"] for _ in range(5)}
    assert len(ids) == 5 and all(len(one) >= 22 for one in ids)  # 128 bits each
    assert client.get("/api/images/0").status_code == 404


def test_markup_in_names_and_questions_comes_back_as_text(client):
    name = '<img src=x onerror="alert(1)">.png'
    found = uploaded(client, png(), name)
    answer = client.get(f"/api/images/{found['id']}")
    assert answer.headers["content-type"] == "application/json" and answer.json()["name"].startswith("<img src=x")
    bad = client.post("/api/plan", json={"id": "<script>", "budget": 0})
    assert bad.headers["content-type"] == "application/json"


def bomb(side):
    """A PNG whose header says side × side."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def refused(client, content, status, said, name="x.png"):
    began = time.monotonic()
    answer = client.post("/api/images", files={"file": (name, content)})
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]
    return time.monotonic() - began


@pytest.mark.parametrize("side", [7000, 60000, 2**31 - 1])
def test_decompression_bombs_are_refused_by_their_header(client, side):
    assert refused(client, bomb(side), 413, "pixels") < 5


def endless_pdf(depth=9, width=20):
    """Forms that draw forms that draw forms: 20 to the power of 10 rectangles in three kilobytes."""

    def stream(content, more=b""):
        return b"<<" + more + b"/Length %d>>stream\n" % len(content) + content + b"\nendstream"

    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</XObject<</F 5 0 R>>>>>>"
    parts = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>", page, stream(b"/F Do\n" * width)]
    for level in range(depth):
        last = level == depth - 1
        below = b"" if last else b"/Resources<</XObject<</F %d 0 R>>>>" % (6 + level)
        drawn = (b"0 0 600 700 re f\n" if last else b"/F Do\n") * width
        parts.append(stream(drawn, b"/Type/XObject/Subtype/Form/BBox[0 0 612 792]" + below))
    content, places = b"%PDF-1.4\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(content))
        content += b"%d 0 obj\n" % number + part + b"\nendobj\n"
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(parts) + 1
    tail = b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (size, len(content))
    return content + b"xref\n0 %d\n0000000000 65535 f \n" % size + table + tail


def test_a_document_that_takes_for_ever_hurts_nobody():
    with client_of(limits=Limits(page_seconds=0.5)) as client:
        refused(client, endless_pdf(), 422, "longer than 0.5 s", "x.pdf")
        assert uploaded(client)["kind"] == "image"
    with client_of() as client:
        assert uploaded(client, pdf(2), "two.pdf")["pages"] == 2


def test_a_document_is_drawn_as_it_is_without_a_process():
    content, device = pdf(2), torch.device("cpu")
    safe, plain = SafePdf(content, 60), PdfPages(content)
    assert len(safe) == 2 and torch.equal(
        safe.texture(1, 90_000, device).levels[0], plain.texture(1, 90_000, device).levels[0]
    )
    for seed in range(pdf_process.MOST_OPEN + 1):  # the first is closed, and opened again
        image = io.BytesIO()
        Image.new("RGB", (20 + seed, 20)).save(image, "PDF")
        SafePdf(image.getvalue(), 60)
    assert safe.texture(0, 90_000, device).size == plain.texture(0, 90_000, device).size


def test_a_picture_of_endless_passes_is_refused(client):
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    refused(client, content[:-2] + last * 200 + content[-2:], 413, "scans", "x.jpg")
    assert uploaded(client, content, "x.jpg")["size"] == [64, 64]


def test_a_picture_that_is_all_length_is_refused(client):
    file = io.BytesIO()
    Image.new("1", (40_000, 2)).save(file, "PNG")
    refused(client, file.getvalue(), 413, "at most 32768 pixels along a side, got 40000×2")


def test_a_video_is_decoded_only_while_somebody_waits():
    stop = Stop()
    stop.set()
    with pytest.raises(Stopped):
        upload_of(video(), "clip.mp4", Limits(), stop)


def test_wrong_files_are_refused(client):
    refused(client, b"", 400, "empty")
    refused(client, b"hello", 415, "must be an image")
    refused(
        client, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run", 415, "must be an image"
    )  # runs a program
    refused(client, b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", 415, "must be an image", "list.m3u8")
    refused(client, b"ffconcat version 1.0\nfile /etc/passwd\n", 415, "must be an image", "clip.mp4")
    refused(client, png()[:100], 400, "cannot be read")
    refused(client, pdf()[:200], 400, "not a PDF that can be read", "x.pdf")
    refused(client, video()[:200], 400, "cannot be read as a video", "x.mp4")


def test_limits_of_uploads():
    limits = Limits(upload_bytes=3000, pixels=100 * 100, pages=2)
    with client_of(limits=limits) as client:
        refused(client, png()[:1] * 4000, 413, "at most 3000 bytes")
        refused(client, b"x" * (2 << 20), 413, "at most")  # before the body is read
    with client_of(limits=Limits(pixels=100 * 100, pages=2)) as client:
        refused(client, png(), 413, "at most 10000 pixels, got 160×120")
        refused(client, pdf(3), 413, "at most 2 pages, got 3")
        refused(client, video(2, side=128), 400, "at most 10000 pixels")
        small = io.BytesIO()
        Image.new("RGB", (20, 20)).save(small, "JPEG")
        assert uploaded(client, small.getvalue())["size"] == [20, 20]


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/api/plan", b"{" + b" " * (1 << 20) + b"}", 413, "at most 1048576 bytes"),
        ("/api/plan", b'{"trail": [' + b"[0,0,0]," * 30_000 + b"[0,0,0]]}", 413, "at most 100000 values"),
        ("/v1/chat/completions", b'{"messages": [' + b"{}," * 100_000 + b"{}]}", 413, "at most 100000 values"),
        ("/v1/chat/completions", b'{"messages": [{}], "user": "' + b"A" * (1 << 21) + b'"}', 409, "no model"),
    ],
)
def test_json_that_would_stop_all_others_is_not_parsed(client, path, body, status, said):
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == status and said in answer.json()["error"]["message"]


def test_a_long_video_is_read_up_to_its_limit():
    with client_of(limits=Limits(video_seconds=1.0)) as client:
        assert max(uploaded(client, video(frames=12), "clip.mp4")["times"]) < 1.0


@pytest.mark.parametrize("body", [
    {"budget": 0}, {"budget": 10**9}, {"budget": "many"}, {"patch": 1000}, {"question": "x" * 5000}, {"gaze": [1]},
    {"page": -1}, {"allocator": "nothing"}, {"question": None},
])  # fmt: skip
def test_bad_plans_are_refused_with_a_reason(client, body):
    answer = client.post("/api/plan", json={"id": uploaded(client)["id"], **body})
    assert answer.status_code in (400, 422)
    assert next(iter(body)) in answer.json()["error"]["message"]


@pytest.mark.parametrize(("path", "body", "said"), [
    ("/api/plan", '"gaze": [NaN, 1]', "gaze"), ("/api/plan", '"gaze": [1, Infinity]', "gaze"),
    ("/api/read", '"box": [0, 0, Infinity, 9]', "box"), ("/api/read", '"box": [NaN, 0, 9, 9]', "box"),
    ("/api/plan", '"budget": ', "the request: JSON"), ("/api/plan", '"budget": 1e999', "budget"),
])  # fmt: skip
def test_numbers_that_are_none_are_refused(client, path, body, said):
    pytest.importorskip("rapidocr", reason="needs OCR (extra ocr)")
    content = f'{{"id": "{uploaded(client)["id"]}", "relevance": "none", {body}}}'
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 422 and answer.json()["error"]["message"].startswith(said), answer.text


def test_an_error_inside_is_not_shown_to_the_client(client, monkeypatch):
    monkeypatch.setattr("texturevlm.serve.page.plan", lambda *given: 1 / 0)
    answer = client.post("/api/plan", json={"id": uploaded(client)["id"]})
    assert answer.status_code == 500 and "ZeroDivision" not in answer.text
    monkeypatch.undo()
    assert client.post("/api/plan", json={"id": uploaded(client)["id"], "relevance": "none"}).status_code == 200


def test_nothing_is_loaded_from_elsewhere():
    from texturevlm.serve.app import STATIC

    for path in STATIC.iterdir():
        if path.suffix in (".html", ".js", ".css"):
            text = path.read_text()
            assert "http://" not in text.replace("http://www.w3.org", "") and "https://" not in text, path
            assert "innerHTML" not in text and "cookie" not in text.replace("no cookies", ""), path
