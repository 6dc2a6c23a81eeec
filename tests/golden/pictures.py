"""The images that goldens are made of: the repository's two, and what numpy and Pillow make of them.

None has text of a font of this machine: print is cut from examples/invoice.png.
"""

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

EXAMPLES = Path(__file__).parents[2] / "examples"
INVOICE = EXAMPLES / "invoice.png"


@cache
def invoice() -> Image.Image:
    """2.2 million pixels, so that the reader does not enlarge it."""
    return Image.open(INVOICE).convert("RGB")


@cache
def half() -> Image.Image:
    """The invoice with half the width and height: the reader enlarges it."""
    return invoice().resize((620, 877), Image.Resampling.BICUBIC)


def head() -> Image.Image:
    return invoice().crop((0, 0, 900, 600))


def foot() -> Image.Image:
    return invoice().crop((200, 900, 1240, 1754))


def turned() -> Image.Image:
    """Turned clockwise by a quarter."""
    return half().transpose(Image.Transpose.ROTATE_270)


def upside_down() -> Image.Image:
    return head().transpose(Image.Transpose.ROTATE_180)


def askew() -> Image.Image:
    return half().rotate(15, Image.Resampling.BICUBIC, expand=True, fillcolor="white")


def large_askew() -> Image.Image:
    return invoice().rotate(15, Image.Resampling.BICUBIC, expand=True, fillcolor="white")


def stamped() -> Image.Image:
    """The half page; on its lower part stands a piece of print that is turned by 30°."""
    return _stamped(half(), 1)


def large_stamped() -> Image.Image:
    return _stamped(invoice(), 2)


def _stamped(page: Image.Image, scale: int) -> Image.Image:
    found = page.copy()
    stamp = invoice().crop((40, 40, 640, 240)).resize((300 * scale, 100 * scale), Image.Resampling.BICUBIC)
    stamp = stamp.rotate(30, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    found.paste(stamp, (140 * scale, 640 * scale))
    return found


def photo() -> Image.Image:
    return Image.open(EXAMPLES / "photo.jpg").convert("RGB")


def wide_photo() -> Image.Image:
    """1.5 million pixels."""
    return photo().resize((1500, 1000), Image.Resampling.BICUBIC)


def chart() -> Image.Image:
    """Bars with axes and pieces of print below them."""
    image = np.full((500, 700, 3), 255, np.uint8)
    image[440:443, 60:660] = image[40:443, 58:61] = 0
    for index, height in enumerate(np.random.default_rng(7).integers(60, 380, 8)):
        image[440 - height : 440, 80 + 70 * index : 125 + 70 * index] = (40 + 25 * index, 90, 200 - 20 * index)
    found = Image.fromarray(image)
    for index in range(8):
        label = half().crop((40, 300 + 24 * index, 85, 320 + 24 * index))
        found.paste(label, (80 + 70 * index, 450))
    return found


def screen() -> Image.Image:
    """White print on black, beside a picture."""
    found = Image.new("RGB", (960, 540), "black")
    found.paste(Image.eval(half().crop((0, 0, 500, 540)), lambda value: 255 - value), (0, 0))
    found.paste(photo().resize((400, 400), Image.Resampling.BICUBIC), (530, 70))
    return found


def columns() -> Image.Image:
    """Two half pages side by side: a million pixels, wider than high."""
    found = Image.new("RGB", (1240, 877), "white")
    found.paste(half(), (0, 0))
    found.paste(half().transpose(Image.Transpose.FLIP_TOP_BOTTOM), (620, 0))
    return found


def noise() -> Image.Image:
    return Image.fromarray(np.random.default_rng(3).integers(0, 256, (384, 512, 3), np.uint8))


def blank() -> Image.Image:
    return Image.new("RGB", (600, 400), "white")


def tiny() -> Image.Image:
    return head().crop((40, 60, 90, 90))


def thin() -> Image.Image:
    return invoice().crop((0, 200, 1240, 260))


def grey() -> Image.Image:
    return half().convert("L")


def large() -> Image.Image:
    """Four pages: 8.7 million pixels."""
    found = Image.new("RGB", (2480, 3508), "white")
    for index in range(4):
        found.paste(invoice(), (1240 * (index % 2), 1754 * (index // 2)))
    return found


PICTURES: dict[str, Callable[[], Image.Image]] = {
    made.__name__: cache(made)
    for made in (
        invoice,
        half,
        head,
        foot,
        turned,
        upside_down,
        askew,
        large_askew,
        stamped,
        large_stamped,
        photo,
        wide_photo,
        chart,
        screen,
        columns,
        noise,
        blank,
        tiny,
        thin,
        grey,
        large,
    )
}


@cache
def paper(pages: int = 4) -> bytes:
    """A PDF: half pages whose upper and lower parts differ."""
    found = []
    for index in range(pages):
        page = Image.new("RGB", (620, 877), "white")
        page.paste(half().crop((0, 219 * index, 620, 219 * index + 219)), (0, 60 + 40 * index))
        found.append(page)
    file = io.BytesIO()
    found[0].save(file, "PDF", save_all=True, append_images=found[1:], resolution=100)
    return file.getvalue()


@cache
def moments(count: int = 3) -> list[np.ndarray]:
    """Frames (H, W, 3) of a piece of the page that moves to the left over a photograph."""
    found = []
    for index in range(count):
        frame = photo().resize((480, 320), Image.Resampling.BICUBIC)
        frame.paste(half().crop((30, 30, 330, 180)), (150 - 40 * index, 90))
        found.append(np.asarray(frame))
    return found
