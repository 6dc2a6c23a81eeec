"""Pictures of every kind become the right numbers; what is no picture is refused, and by name."""

import base64
import io
import struct
import threading
import time
import warnings
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, features

from tests.conftest import worst
from texturevlm import Texture, image, staging
from texturevlm.image import MAX_PIXELS, check_header

EXAMPLES = Path(__file__).parents[1] / "examples"


def noise(*shape: int, high: int = 256, dtype: type = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(0, high, shape).astype(dtype)


def level0(source) -> torch.Tensor:
    texture = Texture.open(source)
    assert texture.batch == 1 and texture.levels[0].dtype == torch.float32
    return texture.levels[0][0]


def as_channels(array: np.ndarray) -> torch.Tensor:
    """(H, W, C) → (C, H, W), double."""
    return torch.from_numpy(np.moveaxis(np.asarray(array, dtype=np.float64), -1, 0).copy())


def over_white(grey_or_colour: np.ndarray, alpha: np.ndarray) -> torch.Tensor:
    opacity = alpha[..., None] / 255
    return as_channels(grey_or_colour / 255 * opacity + (1 - opacity))


def png_header(width: int, height: int) -> bytes:
    """A well-formed PNG that claims any size and holds one row of data."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(width + 1))) + chunk(b"IEND", b"")


def encoded(kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(noise(64, 80, 3)).save(buffer, kind, **options)
    return buffer.getvalue()


def test_16_bit_grey_keeps_its_precision(tmp_path):
    values = noise(6, 9, high=65536, dtype=np.uint16)
    values[0, :2] = 0, 65535
    Image.fromarray(values).save(tmp_path / "deep.png")
    wanted = torch.from_numpy(values.astype(np.float64) / 65535).expand(3, -1, -1)
    for source in (tmp_path / "deep.png", Image.fromarray(values), Image.fromarray(values.astype(np.int32))):
        assert worst(level0(source), wanted) < 1e-7


def test_a_palette_with_transparency_is_laid_over_white(tmp_path):
    indices = np.array([[0, 1, 2, 3], [3, 2, 1, 0]], dtype=np.uint8)
    palette = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [10, 20, 30]], dtype=np.uint8)
    alpha = np.array([255, 0, 128, 64], dtype=np.uint8)
    image = Image.fromarray(indices, "P")
    image.putpalette(palette.tobytes())
    image.save(tmp_path / "palette.png", transparency=alpha.tobytes())
    assert worst(level0(tmp_path / "palette.png"), over_white(palette[indices], alpha[indices])) < 1.01 / 255

    image.save(tmp_path / "key.png", transparency=1)
    opaque = np.where(indices == 1, 0, 255).astype(np.uint8)
    assert worst(level0(tmp_path / "key.png"), over_white(palette[indices], opaque)) < 1e-7

    image.save(tmp_path / "plain.png")
    assert worst(level0(tmp_path / "plain.png"), as_channels(palette[indices]) / 255) < 1e-7


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_transparency_is_laid_over_white(tmp_path, mode):
    pixels = noise(8, 9, len(mode))
    pixels[0, :3, -1] = 0, 255, 128
    image = Image.fromarray(pixels, mode)
    image.save(tmp_path / "clear.png")
    colour = np.repeat(pixels[..., :1], 3, -1) if mode == "LA" else pixels[..., :3]
    for source in (image, tmp_path / "clear.png"):
        got = level0(source)
        assert worst(got, over_white(colour, pixels[..., -1])) < 1.01 / 255
        assert got[:, 0, 0].tolist() == [1, 1, 1]
        assert worst(got[:, 0, 1], torch.from_numpy(colour[0, 1] / 255)) < 1e-7


def test_a_colour_key_in_a_grey_or_rgb_png_is_transparent(tmp_path):
    pixels = np.array([[[10, 20, 30], [40, 50, 60]]], dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "key.png", transparency=(10, 20, 30))
    assert worst(level0(tmp_path / "key.png"), as_channels([[[1, 1, 1], [40 / 255, 50 / 255, 60 / 255]]])) < 1e-7


def test_cmyk_jpeg_becomes_rgb(tmp_path):
    inks = np.zeros((32, 64, 4), dtype=np.uint8)
    inks[:, :16] = 0, 0, 0, 0
    inks[:, 16:32] = 255, 0, 0, 0
    inks[:, 32:48] = 0, 255, 255, 0
    inks[:, 48:] = 0, 0, 0, 255
    Image.fromarray(inks, "CMYK").save(tmp_path / "inks.jpg", quality=98)
    got = level0(tmp_path / "inks.jpg")
    for x, colour in ((8, (1, 1, 1)), (24, (0, 1, 1)), (40, (1, 0, 0)), (56, (0, 0, 0))):
        assert worst(got[:, 16, x], torch.tensor(colour)) < 0.03


def test_1_bit_is_black_and_white(tmp_path):
    bits = noise(7, 13, high=2).astype(bool)
    Image.fromarray(bits).save(tmp_path / "fax.png")
    assert Image.open(tmp_path / "fax.png").mode == "1"
    assert torch.equal(level0(tmp_path / "fax.png"), torch.from_numpy(bits).float().expand(3, -1, -1))


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, lambda stored: stored),
        (2, lambda stored: stored[:, ::-1]),
        (3, lambda stored: stored[::-1, ::-1]),
        (4, lambda stored: stored[::-1]),
        (5, lambda stored: stored.transpose(1, 0, 2)),
        (6, lambda stored: np.rot90(stored, -1)),
        (7, lambda stored: stored.transpose(1, 0, 2)[::-1, ::-1]),
        (8, lambda stored: np.rot90(stored)),
    ],
)
def test_a_cameras_orientation_is_obeyed(tmp_path, orientation, upright):
    stored = noise(4, 6, 3)
    tags = Image.Exif()
    tags[0x0112] = orientation
    Image.fromarray(stored).save(tmp_path / "turned.png", exif=tags)
    wanted = as_channels(upright(stored)) / 255
    assert Texture.open(tmp_path / "turned.png").size == wanted.shape[1:]
    assert worst(level0(tmp_path / "turned.png"), wanted) < 1e-7


def test_grey_becomes_three_equal_channels(tmp_path):
    grey = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (16, 1))
    Image.fromarray(grey).save(tmp_path / "grey.jpg", quality=98)
    got = level0(tmp_path / "grey.jpg")
    assert got.shape == (3, 16, 64)
    assert torch.equal(got[0], got[1]) and torch.equal(got[0], got[2])
    assert worst(got[0], torch.from_numpy(grey / 255)) < 0.02


@pytest.mark.parametrize("name", ["invoice.png", "photo.jpg"])
def test_the_examples_open_as_colour(name):
    with Image.open(EXAMPLES / name) as image:
        wanted = as_channels(np.asarray(image.convert("RGB"))) / 255
    assert worst(level0(EXAMPLES / name), wanted) < 1e-7


def test_a_read_only_array_is_taken_without_a_warning():
    array = np.asarray(Image.fromarray(noise(4, 5, 3)))
    array.flags.writeable = False
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert worst(level0(array), as_channels(array) / 255) < 1e-7
    finally:
        torch.set_warn_always(before)


def kinds_of_bytes(folder):
    """All 256 values of a byte, as every kind of source."""
    array = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    array[..., 1] = array[..., 0].T
    Image.fromarray(array).save(folder / "bytes.png")
    wanted = np.moveaxis(array.astype(np.float32) / np.float32(255), -1, 0)
    tensor = torch.from_numpy(array).permute(2, 0, 1)
    return [folder / "bytes.png", Image.fromarray(array), array, tensor], torch.from_numpy(wanted)


def test_bytes_are_scaled_to_the_nearest_float(tmp_path):
    sources, wanted = kinds_of_bytes(tmp_path)
    for source in sources:
        got = level0(source)
        assert torch.equal(got, wanted) and (got.is_contiguous() or isinstance(source, torch.Tensor))


@pytest.mark.gpu
def test_a_gpu_scales_bytes_to_the_same_floats(tmp_path):
    sources, wanted = kinds_of_bytes(tmp_path)
    for source in sources:
        assert torch.equal(Texture.open(source, device="cuda").levels[0][0].cpu(), wanted)


def test_bytes_cross_to_the_device_as_bytes(tmp_path, monkeypatch):
    """A float has four times as many."""
    seen = []
    scale = image._scaled
    monkeypatch.setattr(
        image, "_scaled", lambda tensor: seen.append((tensor.device.type, tensor.dtype)) or scale(tensor)
    )
    sources, _ = kinds_of_bytes(tmp_path)
    for source in sources:
        assert Texture.open(source, device="meta").device.type == "meta"
    assert seen == [("meta", torch.uint8)] * len(sources)


def test_a_colour_image_of_the_caller_is_not_copied_by_pillow(monkeypatch):
    """Pillow copies an upright image to turn it, and one of three colours to convert it."""
    given = Image.fromarray(noise(4, 6, 3))
    monkeypatch.setattr(Image.Image, "copy", lambda self: pytest.fail("copied"))
    assert worst(level0(given), as_channels(noise(4, 6, 3)) / 255) < 1e-7


def test_an_rgb_image_is_not_packed_by_pillow(monkeypatch):
    """`tobytes`, by which numpy gets an image, takes as long as decoding a JPEG."""
    given = Image.fromarray(noise(4, 6, 3))
    monkeypatch.setattr(Image.Image, "tobytes", lambda *_: pytest.fail("packed"))
    assert worst(level0(given), as_channels(noise(4, 6, 3)) / 255) < 1e-7


def test_a_pillow_that_does_not_share_memory_gives_the_same_image(monkeypatch):
    given = Image.fromarray(noise(4, 6, 3))
    share = Image.frombuffer
    monkeypatch.setattr(Image, "frombuffer", lambda *given: share(*given).copy())
    assert worst(level0(given), as_channels(noise(4, 6, 3)) / 255) < 1e-7


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [0, 1 << 20])
def test_an_image_of_any_size_reaches_a_gpu(monkeypatch, pinned):
    monkeypatch.setattr(staging, "MOST_PINNED", pinned)
    given = noise(4, 6, 3)
    found = Texture.open(Image.fromarray(given), device="cuda").levels[0][0].cpu()
    assert worst(found, as_channels(given) / 255) < 1e-7
    whole = encoded("JPEG")
    assert torch.equal(Texture.open(whole, device="cuda").levels[0][0].cpu(), level0(whole))


def jpeg(**options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(noise(40, 56, 3)).save(file, "JPEG", **options)
    return file.getvalue()


def decoded(content: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(content)) as opened:
        return as_channels(np.asarray(opened)) / 255


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0, "quality": 95}])
def test_a_jpeg_file_is_decoded_in_place(monkeypatch, tmp_path, options):
    """Without the copy out of Pillow's own memory."""
    content = jpeg(**options)
    (tmp_path / "page.jpg").write_bytes(content)
    wanted = decoded(content)
    monkeypatch.setattr(image, "image_bytes", lambda *_: pytest.fail("copied"))
    assert worst(level0(content), wanted) < 1e-7
    assert worst(level0(tmp_path / "page.jpg"), wanted) < 1e-7


def test_a_pillow_that_does_not_share_memory_gives_the_same_jpeg(monkeypatch):
    share = Image.frombuffer
    monkeypatch.setattr(Image, "frombuffer", lambda *given: share(*given).copy())
    assert worst(level0(jpeg()), decoded(jpeg())) < 1e-7


def test_a_jpeg_that_the_caller_opened_stays_theirs():
    with Image.open(io.BytesIO(jpeg())) as theirs:
        assert worst(level0(theirs), decoded(jpeg())) < 1e-7
        assert theirs.mode == "RGB" and np.asarray(theirs).shape == (40, 56, 3)


def test_a_jpeg_of_a_camera_on_its_side_is_turned():
    exif = Image.Exif()
    exif[274] = 6  # the top of the scene is at the right
    assert worst(level0(jpeg(exif=exif)), decoded(jpeg()).rot90(-1, (1, 2))) < 1e-7


def test_paths_that_hold_no_image_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"Texture\.open: no such file: .*nowhere\.png"):
        Texture.open(tmp_path / "nowhere.png")
    with pytest.raises(ValueError, match=r"Texture\.open: .* is a folder, not an image"):
        Texture.open(tmp_path)
    for name, content in (("text.png", b"this is no picture"), ("empty.png", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"Texture\.open: .*{name} is not an image"):
            Texture.open(tmp_path / name)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_truncated_file_is_refused(tmp_path, kind, share):
    whole = encoded(kind)
    (tmp_path / "cut").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match=r"Texture\.open: .*cut (cannot be read|is not an image)"):
        Texture.open(tmp_path / "cut")


def test_a_truncated_file_opened_by_pillow_is_refused_too(tmp_path):
    whole = encoded("JPEG")
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    with Image.open(tmp_path / "cut.jpg") as lazy, pytest.raises(ValueError, match=r"Texture\.open: "):
        Texture.open(lazy)


@pytest.mark.parametrize(
    "content",
    [
        b"P6\nx0 40\n255\n" + bytes(99),
        b"qoif" + struct.pack(">IIBB", 50, 40, 3, 0) + b"\xfe\x01\x02\x03",
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 5) + b"IHDRabcde" + struct.pack(">I", zlib.crc32(b"IHDRabcde")),
    ],
    ids=["ppm", "qoi", "png"],
)
def test_a_damaged_file_is_refused_and_named(tmp_path, content):
    (tmp_path / "damaged").write_bytes(content)
    with pytest.raises(ValueError, match=r"Texture\.open: .*damaged"):
        Texture.open(tmp_path / "damaged")


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_a_damaged_avif_is_refused_and_named(tmp_path):
    (tmp_path / "damaged.avif").write_bytes(encoded("AVIF").replace(b"pitm", b"free", 1))
    with pytest.raises(ValueError, match=r"Texture\.open: .*damaged\.avif"):
        Texture.open(tmp_path / "damaged.avif")


def never(*_):
    raise AssertionError("decoded a picture that is too large")


@pytest.mark.parametrize("pillow_limit", [Image.MAX_IMAGE_PIXELS, None])
@pytest.mark.parametrize("side", [12_000, 30_000])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_enormous_picture_is_refused_before_it_is_decoded(tmp_path, monkeypatch, side, pillow_limit):
    (tmp_path / "enormous.png").write_bytes(png_header(side, side))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", pillow_limit)
    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    with pytest.raises(ValueError, match=rf"Texture\.open: .*enormous\.png has .*pixels.*{MAX_PIXELS}"):
        Texture.open(tmp_path / "enormous.png")


def test_the_header_of_the_enormous_picture_is_a_good_one(tmp_path):
    (tmp_path / "row.png").write_bytes(png_header(300, 1))
    assert Texture.open(tmp_path / "row.png").size == (1, 300)


@pytest.mark.parametrize(
    "source",
    [
        np.zeros((0, 4)),
        np.zeros((4, 0, 3)),
        np.zeros((4, 4, 0)),
        torch.zeros(0, 3, 4, 4),
        torch.zeros(3, 0, 4),
        Image.new("RGB", (0, 3)),
    ],
    ids=["rows", "columns", "channels", "batch", "height", "pil"],
)
def test_nothing_is_no_image(source):
    with pytest.raises(ValueError, match=r"Texture\.open: image must not be empty"):
        Texture.open(source)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_must_be_finite(bad):
    array = np.zeros((4, 5, 3), dtype=np.float32)
    array[1, 2, 0] = bad
    for source in (array, torch.from_numpy(array), array.astype(np.float64), torch.from_numpy(array).half()):
        with pytest.raises(
            ValueError, match=r"Texture\.open: image must be finite, got 1 NaN or infinite values of 60"
        ):
            Texture.open(source)


@pytest.mark.parametrize(
    "source",
    [
        np.zeros((4, 4), dtype=np.complex64),
        torch.zeros(4, 4, dtype=torch.complex64),
        np.full((4, 4), "a"),
        np.full((4, 4), None),
        np.zeros((4, 4), dtype="datetime64[s]"),
        torch.zeros(4, 4).to(torch.float8_e4m3fn),
    ],
    ids=["complex array", "complex tensor", "text", "objects", "dates", "float8"],
)
def test_values_must_be_ordinary_numbers(source):
    with pytest.raises(TypeError, match=r"Texture\.open: (an array|a tensor|image) must "):
        Texture.open(source)


@pytest.mark.parametrize("shape", [(), (4,), (2, 2, 2, 2, 2)])
def test_rank_must_be_that_of_an_image(shape):
    with pytest.raises(
        ValueError, match=r"Texture\.open: a tensor must be \(H, W\), \(C, H, W\) or \(B, C, H, W\), got"
    ):
        Texture.open(torch.zeros(shape))
    with pytest.raises(ValueError, match=r"Texture\.open: an array must be \(H, W\) or \(H, W, C\), got"):
        Texture.open(np.zeros(shape))
    with pytest.raises(ValueError, match=r"Texture\.open: an array must be \(H, W\) or \(H, W, C\), got"):
        Texture.open(np.zeros((2, 3, 4, 5)))


def test_pictures_without_an_agreed_range_are_refused():
    with pytest.raises(ValueError, match=r"Texture\.open: a float image has no agreed range"):
        Texture.open(Image.new("F", (4, 4)))
    for value in (65536, -1):
        with pytest.raises(ValueError, match=r"Texture\.open: a 32-bit image has no agreed range"):
            Texture.open(Image.new("I", (4, 4), value))


@pytest.mark.parametrize("source", [None, 5, [[0.0, 1.0]], {"size": 3}])
def test_other_types_are_refused(source):
    with pytest.raises(TypeError, match=r"source must be a path, a URL, bytes, a PIL image, an array or a tensor"):
        Texture.open(source)


class Files(BaseHTTPRequestHandler):
    """Serves one picture, and other answers."""

    picture = b""

    def do_GET(self):
        if self.path == "/slow.png":
            time.sleep(1)
        self.send_response(404 if self.path == "/gone.png" else 200)
        self.end_headers()
        self.wfile.write(b"<html>" if self.path == "/page.png" else self.picture)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    buffer = io.BytesIO()
    Image.fromarray(noise(6, 8, 3)).save(buffer, "PNG")
    Files.picture = buffer.getvalue()
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_bytes_and_urls_are_opened_like_files(server):
    wanted = as_channels(noise(6, 8, 3) / 255)
    inline = "data:image/png;base64," + base64.b64encode(Files.picture).decode()
    for source in (Files.picture, bytearray(Files.picture), f"{server}/a.png", Path(f"{server}/a.png"), inline):
        assert worst(level0(source), wanted) < 1e-6


def test_a_download_that_fails_is_one_clear_error(server, monkeypatch):
    monkeypatch.setattr("texturevlm.image.PATIENCE", 0.2)
    for name, reason in (("gone", "the server answers 404"), ("slow", "timed out")):
        with pytest.raises(ConnectionError, match=rf"Texture.open: {server}/{name}.png cannot be downloaded: {reason}"):
            Texture.open(f"{server}/{name}.png")
    with pytest.raises(ConnectionError, match=r"http://127.0.0.1:9/a.png cannot be downloaded: .*refused"):
        Texture.open("http://127.0.0.1:9/a.png")
    monkeypatch.setattr("texturevlm.image.MAX_BYTES", 9)
    with pytest.raises(ConnectionError, match="it has more than 9 bytes"):
        Texture.open(f"{server}/a.png")


def test_bytes_and_urls_without_a_picture_are_named(server):
    with pytest.raises(ValueError, match=rf"{server}/page.png is not an image that Pillow can read"):
        Texture.open(f"{server}/page.png")
    with pytest.raises(ValueError, match="source of 7 bytes is not an image that Pillow can read"):
        Texture.open(b"nothing")
    for scheme in ("file:///etc/passwd", "ftp://example.org/a.png"):
        with pytest.raises(ValueError, match=f"must be a path or a URL of http, https or data, got {scheme}"):
            Texture.open(scheme)


def test_a_header_is_checked_without_reading_pixels_or_the_network(tmp_path):
    (tmp_path / "text.txt").write_text("no image")
    with pytest.raises(ValueError, match=r"text\.txt is not an image"):
        check_header(tmp_path / "text.txt")
    for unread in ("https://localhost:1/x.png", "data:image/png;base64,AAAA", np.zeros((2, 2)), None):
        check_header(unread)
    Image.fromarray(noise(40, 40)).save(tmp_path / "cut.png")
    cut = (tmp_path / "cut.png").read_bytes()[:800]
    check_header(cut)  # damaged pixels, which only reading them tells
    with pytest.raises(ValueError, match="source of 800 bytes"):
        Texture.open(cut)
