"""Take the screenshots of the page of `texturevlm serve`: python docs/render_serve.py --out docs/images

The reader answers about examples/invoice.png, on the CPU, in chromium. Needs the extras serve, hf, video and dev.
"""

import argparse
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SIZES = {"": (1280, 800), "-tablet": (820, 1180)}
QUESTION = "What is the total?"
WAIT = 180_000  # milliseconds


def clip(path: Path) -> None:
    """A screen recording, as MP4: the invoice is scrolled to its end, then a box is drawn around the total."""
    import av

    invoice = Image.open(EXAMPLES / "invoice.png").convert("RGB")
    marked = invoice.copy()
    ImageDraw.Draw(marked).rectangle((702, 1205, 1150, 1290), outline=(216, 27, 96), width=8)
    tall = 880
    ends = invoice.height - tall - 100
    shown = [(invoice, 0)] * 4 + [(invoice, ends // 3), (invoice, 2 * ends // 3)] + [(invoice, ends)] * 3
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=2)
        stream.width, stream.height, stream.bit_rate = invoice.width, tall, 16_000_000
        for picture, top in [*shown, *[(marked, ends)] * 3]:
            view = np.asarray(picture.crop((0, top, invoice.width, top + tall)))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(view, format="rgb24")))
        container.mux(stream.encode())


def opened(page: Any, path: Path) -> None:
    page.evaluate("delete document.body.dataset.milliseconds")
    page.set_input_files("#file", path)
    page.wait_for_selector("body[data-milliseconds]")


def answered(page: Any, question: str = QUESTION) -> None:
    page.fill("#question", question)
    page.keyboard.press("Enter")
    page.wait_for_selector("#stages:not([hidden])")


def settled(page: Any) -> None:
    """Nothing is under way any more."""
    page.wait_for_timeout(600)
    page.wait_for_selector("#busy", state="hidden")
    page.wait_for_timeout(400)


def look(page: Any, folder: Path) -> None:
    """An answer, and its time next to that of full resolution."""
    opened(page, EXAMPLES / "invoice.png")
    page.eval_on_selector("#budget", "e => { e.value = 682; e.dispatchEvent(new Event('input')); }")
    answered(page)
    page.click(".measure")
    page.wait_for_selector(".rows .bars >> nth=1")


def compare(page: Any, folder: Path) -> None:
    """Four plans at one budget."""
    opened(page, EXAMPLES / "invoice.png")
    page.fill("#question", QUESTION)
    page.keyboard.press("Escape")
    page.eval_on_selector("#budget", "e => { e.value = 430; e.dispatchEvent(new Event('input')); }")
    page.keyboard.press("2")
    page.click("#add-rival")
    page.click("#add-rival")
    page.wait_for_timeout(300)


def video(page: Any, folder: Path) -> None:
    """A whole video under one budget."""
    clip(folder / "screen.mp4")
    opened(page, folder / "screen.mp4")
    answered(page)
    page.click("#strip button:last-child")
    page.wait_for_timeout(500)


def empty(page: Any, folder: Path) -> None:
    """Nothing is open yet."""


def channels(page: Any, folder: Path) -> None:
    """A channel over the original, the shelf below."""
    opened(page, EXAMPLES / "photo.jpg")
    page.click("#open-channels")
    page.click("[data-channel=edges]")


def attention(page: Any, folder: Path) -> None:
    """What the question attends to, over what the model sees."""
    opened(page, EXAMPLES / "invoice.png")
    page.fill("#question", QUESTION)
    page.check("#show-attention", force=True)
    page.wait_for_timeout(1000)


def gaze(page: Any, folder: Path) -> None:
    """The pointer as the eye, after a while."""
    opened(page, EXAMPLES / "photo.jpg")
    page.eval_on_selector("#budget", "e => { e.value = 450; e.dispatchEvent(new Event('input')); }")
    page.check("#show-gaze", force=True)
    box = page.locator("#pane-a .view").bounding_box()
    for x, y in ((0.3, 0.3), (0.5, 0.25), (0.7, 0.6), (0.45, 0.3)):
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=3)
        page.wait_for_timeout(300)


# What docs/ shows: the scene, the theme and the size of each file.
SHOWN = {
    "serve-light": (look, "light", ""),
    "serve-dark": (compare, "dark", ""),
    "serve-video": (video, "dark", ""),
    "serve-tablet": (look, "light", "-tablet"),
}
SCENES = {one.__name__: one for one in (look, compare, video, empty, channels, attention, gaze)}


def take(browser: Any, address: str, scene: Any, theme: str, size: str, path: Path) -> None:
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    page.set_default_timeout(WAIT)
    page.goto(address)
    page.wait_for_selector("body[data-ready]")
    with tempfile.TemporaryDirectory() as folder:
        scene(page, Path(folder))
    settled(page)
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(path, optimize=True)
    page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the pictures")
    parser.add_argument("--every", action="store_true", help="every scene in both themes and sizes, to look at")
    parser.add_argument("--only", choices=sorted(SCENES), help="with --every: one scene")
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    import texturevlm as tv
    from texturevlm_lab.bench.serve import serving

    wanted = SHOWN
    if given.every:
        wanted = {
            f"{name}-{theme}{size}": (scene, theme, size)
            for name, scene in SCENES.items()
            for theme in ("light", "dark")
            for size in SIZES
            if given.only in (None, name)
        }
    given.out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with serving(tv.load_vlm("reader", device="cpu"), "cpu", name="reader") as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (scene, theme, size) in wanted.items():
            take(browser, address, scene, theme, size, given.out / f"{name}.png")
            print(given.out / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
