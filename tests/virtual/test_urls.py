"""Texture.open of a URL: pages by ranges of bytes, from a local web server."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

import texturevlm as tv
from tests.virtual.conftest import SIZE
from texturevlm.cli import main
from texturevlm.virtual import open_paged, opening
from texturevlm.virtual.ranges import BLOCK

pytest.importorskip("aiohttp")


class Handler(BaseHTTPRequestHandler):
    """Files by their names, with ranges or without."""

    protocol_version = "HTTP/1.1"
    files: dict = {}  # noqa: RUF012  # set per server
    ranges, broken = True, False

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, body):
        content, status = self.files.get(self.path.partition("?")[0]), 200
        if content is None:
            status, content = 404, b"nothing here"
        size, first = len(content), 0
        wanted = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted and self.ranges and status == 200:
            first, last = int(wanted[1]), int(wanted[2] or size - 1)
            content, status = content[first : last + 1], 206
            if self.broken and first > 0:
                content, status = b"out of order", 500
        self.server.sent += len(content) * body
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{size}")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """(files, options of Handler) → the address of a server that answers with them, and the server."""
    running = []

    def begin(files, **options):
        handler = type("Own", (Handler,), {"files": files, **options})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.sent, server.handler, server.daemon_threads = 0, handler, True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        running.append(server)
        return f"http://127.0.0.1:{server.server_port}", server

    yield begin
    for server in running:
        server.shutdown()
        server.server_close()


def test_a_pyramid_at_a_url_is_read_by_pages_with_the_same_tokens(pyramid, serve):
    content = pyramid.read_bytes()
    address, server = serve({"/large.tif": content})
    there, here = tv.Texture.open(f"{address}/large.tif?token=1"), tv.Texture.open(pyramid)
    assert there.size == SIZE and torch.equal(there.levels[0], here.levels[0])
    allocation = tv.foveate(SIZE, fixation=(3000, 2600), budget=40, patch=16)
    assert torch.equal(tv.sample(there, allocation).pixels, tv.sample(here, allocation).pixels)
    done = there.pages.counters
    assert done.pages_read == here.pages.counters.pages_read and not done.errors
    # The last block of a header is counted whole, and the few bytes of a pointer not at all.
    assert abs(server.sent - done.bytes_read) < BLOCK and server.sent < len(content) / 2


def test_look_takes_a_url(pyramid, serve, tmp_path, capsys):
    address, _ = serve({"/large.tif": pyramid.read_bytes()})
    assert main(["look", f"{address}/large.tif", "--budget", "16", "--out", str(tmp_path / "seen.png")]) == 0
    said = capsys.readouterr()
    assert (
        "4200×4100 seen with 16 tokens" in said.out and "pages read" in said.err and (tmp_path / "seen.png").is_file()
    )
    assert main(["look", f"{address}/none.tif", "--out", str(tmp_path / "no.png")]) == 2
    assert "the server answers 404" in capsys.readouterr().err


def test_a_server_without_ranges(exact, serve, monkeypatch):
    path, _ = exact
    address, _ = serve({"/small.tif": path.read_bytes()}, ranges=False)
    with pytest.raises(ConnectionError, match=r"small\.tif cannot be read by pages: its server does not answer .*rang"):
        open_paged(f"{address}/small.tif")
    assert tv.Texture.open(f"{address}/small.tif").levels[0].shape[2:] == (700, 900)  # a download will do
    monkeypatch.setattr(opening, "MAX_BYTES", 1000)
    with pytest.raises(ConnectionError, match="download the file"):
        tv.Texture.open(f"{address}/small.tif")


def test_a_server_that_fails_later_costs_pages(exact, serve, monkeypatch):
    monkeypatch.setattr("texturevlm.virtual.mips.WHOLE_PIXELS", 200 * 300)
    address, server = serve({"/small.tif": exact[0].read_bytes()})
    texture = open_paged(f"{address}/small.tif")
    server.handler.broken = True
    texture.pages.fetch({0: 1.0, 1: 0.5})
    assert len(texture.pages.counters.errors) == 2 and "the server answers 500" in texture.pages.counters.errors[0]


def test_what_is_not_there(serve):
    address, _ = serve({"/text.tif": b"no image"})
    with pytest.raises(ConnectionError, match=r"none\.tif cannot be read: the server answers 404"):
        tv.Texture.open(f"{address}/none.tif")
    with pytest.raises(ValueError, match=r"text\.tif is not an image that Pillow can read"):
        tv.Texture.open(f"{address}/text.tif")
    with pytest.raises(ConnectionError, match=r"away\.tif cannot be read: .*[Cc]onnect"):
        tv.Texture.open("http://127.0.0.1:1/away.tif")
    with pytest.raises((ImportError, ConnectionError), match=r"Texture.open: nowhere://a/b\.tif cannot be read"):
        tv.Texture.open("nowhere://a/b.tif")
