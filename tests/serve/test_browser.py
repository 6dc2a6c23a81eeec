"""The page in a real browser: Debian's chromium, driven by Playwright. Skipped where either is missing."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

import texturevlm as tv
from tests.serve.conftest import pdf, png, video
from tests.serve.running import running
from texturevlm.serve.app import Settings, create_app

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright (extra dev)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")
SECONDS = 60_000  # milliseconds: a busy machine


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(model):
    with running(create_app(Settings(model=model, name="tiny"))) as found:
        yield found


@pytest.fixture
def page(browser, address):
    """The page, started; it must say nothing in the console by the end of the test."""
    found = browser.new_page(viewport={"width": 1280, "height": 800})
    said = []
    found.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    found.on("pageerror", lambda error: said.append(str(error)))
    found.allowed = ()
    found.set_default_timeout(SECONDS)
    begin(found, address)
    yield found
    found.close()
    assert [one for one in said if not any(allowed in one for allowed in found.allowed)] == []


def begin(page, address):
    page.goto(address)
    page.wait_for_selector("body[data-ready]")


def choose(page, content, name="page.png"):
    page.evaluate("delete document.body.dataset.milliseconds")
    page.set_input_files("#file", {"name": name, "mimeType": "image/png", "buffer": content})
    page.wait_for_selector("body[data-milliseconds]")


def slide(page, value):
    """Move the budget and wait for its plan; returns the budget."""
    page.eval_on_selector("#budget", f"e => {{ e.value = {value}; e.dispatchEvent(new Event('input')); }}")
    budget = page.inner_text("#budget-said").split()[0]
    page.wait_for_selector(f"body[data-budget='{budget}']")
    return int(budget)


def until(page, expression):
    """Wait until it holds. Playwright's own way evaluates texts inside the page, which its policy forbids."""
    for _ in range(SECONDS // 50):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def bounds(page):
    """What the link says of the zoom: x, y, width and height."""
    until(page, "new URLSearchParams(location.hash.slice(1)).has('v')")
    return [float(one) for one in page.evaluate("new URLSearchParams(location.hash.slice(1)).get('v')").split(",")]


def painted(page, pane):
    """The pixels of the canvas over a picture, as one text."""
    page.wait_for_timeout(100)
    return page.eval_on_selector(f"#{pane} canvas.over", "canvas => canvas.toDataURL()")


def test_upload_shows_the_picture_and_its_tokens(page):
    parts = "document.querySelectorAll('.bar .segments, aside .group, #token-facts')"
    places = f"[...{parts}].map((one) => [one.offsetLeft, one.offsetTop])"
    before = page.evaluate(places)
    choose(page, png())
    assert page.evaluate(places) == before  # nothing jumps
    assert page.inner_text("#file-name") == "page.png · 160 × 120"
    assert page.is_hidden("#empty") and "What the model sees" in page.inner_text("#pane-b")
    assert re.search(r"\d+ tokens · \d+ % legible", page.inner_text("#pane-b p"))


def test_the_slider_changes_the_tokens(page):
    choose(page, png(640, 480))
    few = slide(page, 0), painted(page, "pane-b"), page.inner_text("#pane-b p")
    many = slide(page, 700), painted(page, "pane-b"), page.inner_text("#pane-b p")
    assert few[0] == 16 < many[0] and few[1] != many[1] and few[2] != many[2]
    assert "16 tokens" in few[2]


def test_only_the_last_of_many_steps_counts(page):
    choose(page, png(640, 480))
    page.evaluate("""() => { const slider = document.getElementById('budget');
        for (let value = 0; value <= 600; value += 20) {
            slider.value = value; slider.dispatchEvent(new Event('input')); } }""")
    budget = page.inner_text("#budget-said").split()[0]
    page.wait_for_selector(f"body[data-budget='{budget}']")


def test_compare_shows_two_allocators_in_step(page):
    choose(page, png(640, 480))
    slide(page, 200)
    page.keyboard.press("2")
    until(page, "document.querySelector('#pane-b p').textContent.includes('tokens')")
    assert page.inner_text("#pane-a h2") == "A: auto" and page.inner_text("#pane-b h2") == "B: resize"
    assert painted(page, "pane-a") != painted(page, "pane-b")
    page.select_option("#allocator-b", "auto")
    until(page, "document.querySelector('#pane-b h2').textContent === 'B: auto'")
    assert painted(page, "pane-a") == painted(page, "pane-b")
    page.keyboard.press("3")
    page.wait_for_selector("#pane-b .view.difference")


def test_four_plans_stand_side_by_side(page, browser):
    choose(page, png(640, 480))
    page.keyboard.press("2")
    for _ in range(2):
        page.click("#add-rival")
    until(page, "document.querySelector('#pane-d p').textContent.includes('tokens')")
    titles = page.locator(".pane:not([hidden]) h2").all_inner_texts()
    assert titles == ["A: auto", "B: resize", "C: crops", "D: quadtree"] and page.is_disabled("#add-rival")
    assert len({painted(page, f"pane-{letter}") for letter in "abcd"}) == 4
    page.click("[aria-label='Remove plan B']")
    page.select_option("#scorer-c", "none")
    until(page, "document.querySelector('#pane-c p').textContent.startsWith('none')")
    until(page, "decodeURIComponent(location.hash).includes('vs=crops:,quadtree:none')")
    other = browser.new_page(viewport={"width": 1280, "height": 800})
    begin(other, page.url)
    assert other.locator(".pane:not([hidden]) h2").all_inner_texts() == ["A: auto", "B: crops", "C: quadtree"]
    other.close()


def test_both_pictures_zoom_in_step(page):
    choose(page, png(640, 480))
    whole, before = bounds(page), [painted(page, pane) for pane in ("pane-a", "pane-b")]
    page.hover("#pane-a .view")
    for _ in range(3):
        page.mouse.wheel(0, -300)
        page.wait_for_timeout(400)
    after = [painted(page, pane) for pane in ("pane-a", "pane-b")]
    assert before[0] != after[0] and before[1] != after[1]
    assert bounds(page)[2] < 0.9 * whole[2]
    page.keyboard.press("0")
    until(page, f"Math.abs(location.hash.match(/v=[^&]*/)[0].split('%2C')[2] - {whole[2]}) < 0.01")


@pytest.mark.parametrize("first", [png(640, 300), pdf(2)], ids=["image", "document"])
def test_another_picture_is_shown_as_a_whole(page, first):
    choose(page, first)  # below the pages of a document there is less room
    page.hover("#pane-a .view")
    page.mouse.wheel(0, -900)
    page.wait_for_timeout(600)
    choose(page, png(300, 640))
    until(page, "location.hash.includes('v=')")
    page.wait_for_timeout(800)
    x, y, width, height = bounds(page)
    assert x < 0 and y < 0 and x + width > 1 and y + height > 640 / 300  # the image is 1 wide
    assert height < 1.2 * 640 / 300


def test_a_token_under_the_pointer_is_described(page):
    page.allowed = ("willReadFrequently",)  # of this test's own look at the canvas
    choose(page, png(640, 480))
    assert page.inner_text("#token-facts dd >> nth=0") == "–"
    page.hover("#pane-b .view")
    until(page, "document.querySelector('#token-facts dd').textContent !== '–'")
    assert re.fullmatch(r"\d+ × \d+", page.inner_text("#token-facts dd >> nth=2"))
    until(page, "document.getElementById('patch-original').getContext('2d').getImageData(52, 52, 1, 1).data[3] === 255")


def test_a_link_restores_the_state(page, browser, address):
    choose(page, png(640, 480))
    page.fill("#question", "what is the total ?")
    budget = slide(page, 300)
    page.keyboard.press("Escape")
    page.select_option("#allocator", "density")
    page.select_option("#scorer", "scout")
    until(page, "document.querySelector('#pane-b p').textContent.includes('scout')")
    page.check("#show-relevance", force=True)
    until(page, "location.hash.includes('a=density') && location.hash.includes('h=1')")
    other = browser.new_page(viewport={"width": 1280, "height": 800})
    begin(other, page.url)
    other.wait_for_selector(f"body[data-budget='{budget}']", timeout=SECONDS)
    assert other.input_value("#question") == "what is the total ?" and other.input_value("#allocator") == "density"
    assert other.is_checked("#show-relevance") and other.inner_text("#pane-b p") == page.inner_text("#pane-b p")
    other.close()


def test_an_answer_streams_from_the_model(page):
    choose(page, png())
    page.fill("#question", "what is the total ?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stages:not([hidden])")
    assert page.inner_text("#said").strip() and "% per token" in page.inner_text("#confidence")
    assert "first token" in page.inner_text("#stages")


def test_looks_and_times_are_shown_against_full_resolution(page):
    choose(page, png(640, 480))
    slide(page, 200)
    page.fill("#question", "what is the total ?")
    page.select_option("#looks-choice", "auto")
    page.click("#submit")
    page.wait_for_selector("#stages:not([hidden])")
    assert page.locator("#looks button").count() == 2 and "likely right" in page.inner_text("#confidence")
    before = painted(page, "pane-a")
    page.click("#looks button:first-child")
    assert painted(page, "pane-a") != before  # the tokens of the first look
    page.click(".measure")
    page.wait_for_selector(".rows .bars >> nth=1")
    labels = page.locator(".rows .what").all_inner_texts()
    assert labels[1] == "300 tokens" and int(labels[0].split()[0]) < 300
    widths = page.evaluate("""[...document.querySelectorAll('.rows .bars')].map((bars) =>
        [...bars.children].reduce((sum, one) => sum + parseFloat(one.style.width), 0))""")
    assert max(widths) == pytest.approx(100, abs=0.1)  # one scale for both


def test_markup_is_shown_as_text(page):
    name = "<img src=x onerror=alert(1)>.png"
    choose(page, png(), name)
    assert page.inner_text("#file-name").startswith(name)
    page.fill("#question", "<b>bold</b>")
    page.wait_for_timeout(400)
    assert page.locator("#file-name img, #said b").count() == 0


def test_errors_are_said(page):
    page.allowed = ("415", "404")  # the browser's own words for an answer that is no success
    page.set_input_files("#file", {"name": "x.png", "mimeType": "image/png", "buffer": b"not an image"})
    page.wait_for_selector("#toast.bad")
    assert "must be an image" in page.inner_text("#toast")
    choose(page, png())
    assert page.is_hidden("#toast")  # it was about another file
    page.goto(page.url.partition("#")[0] + "#id=nothing")  # as if it was put into the address bar
    page.wait_for_selector("#toast.bad")
    assert "no such image" in page.inner_text("#toast") and page.is_visible("#empty")


def test_pages_of_a_document_are_turned(page):
    choose(page, pdf(3), "three.pdf")
    assert page.locator("#strip button").count() == 3
    first = painted(page, "pane-b")
    page.keyboard.press("PageDown")
    page.wait_for_selector("#strip button:nth-child(2)[aria-current]")
    until(page, "location.hash.includes('p=1')")
    until(page, "document.querySelectorAll('#strip .share i').length === 3")
    assert painted(page, "pane-b") != first


def test_a_whole_document_is_asked_about(page):
    choose(page, pdf(3), "three.pdf")
    assert page.input_value("#whole") == "1" and page.is_disabled("#looks-choice")
    page.fill("#question", "what is the total ?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stages:not([hidden])")
    assert re.search(r"\d+ tokens on [123] page", page.inner_text("#looks"))
    said = page.inner_text("#said")
    page.keyboard.press("Escape")
    page.keyboard.press("PageDown")
    page.wait_for_selector("#strip button:nth-child(2)[aria-current]")
    assert page.inner_text("#said") == said  # it was about all pages
    page.select_option("#whole", "0")
    assert page.is_enabled("#looks-choice")


def test_a_video_plays_on_a_timeline_of_change_and_tokens(page):
    choose(page, video(frames=16, side=96), "clip.mp4")
    moments = page.locator("#strip button").count()
    until(page, f"document.querySelectorAll('#track .spent').length === {moments}")
    assert moments > 3 and re.search(r"\d+ of \d+ tokens", page.inner_text("#pane-b p"))
    heights = page.locator("#track .changed").evaluate_all("bars => bars.map((one) => +one.getAttribute('height'))")
    assert len(heights) == moments and min(heights) > 0
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/api/clip") else None)
    page.select_option("#speed", "8")
    page.keyboard.press("p")
    until(page, "document.getElementById('play').textContent === 'Pause'")
    until(page, "document.getElementById('play').textContent === 'Play'")
    until(page, f"location.hash.includes('p={moments - 1}')")  # it ends at the last moment
    page.focus("#track")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f"#strip button:nth-child({moments - 1})[aria-current]")
    until(page, "document.getElementById('busy').hidden")
    assert not asked  # all moments have one plan, which is there
    page.select_option("#whole", "0")
    until(page, "document.querySelector('#pane-b p').textContent.includes('legible')")  # one moment, all tokens


def test_a_box_is_read(page):
    pytest.importorskip("rapidocr", reason="needs OCR (extra ocr)")
    choose(page, png(640, 480))
    page.keyboard.press("b")
    box = page.locator("#pane-b .view").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.7 * box["height"], steps=4)
    page.mouse.up()
    until(page, "document.getElementById('said').textContent.startsWith('Delivered')")
    assert "% alike" in page.inner_text("#confidence")


def test_channels_and_gaze(page):
    choose(page, png(640, 480))
    page.click("#open-channels")
    page.wait_for_timeout(300)
    before = painted(page, "pane-a")
    page.click("[data-channel=edges]")
    page.wait_for_selector("[data-channel=edges][aria-pressed=true]")
    until(page, "document.getElementById('busy').hidden")
    assert painted(page, "pane-a") != before
    assert page.locator("#channels button").count() == 40 and page.is_disabled("[data-channel=gaze]")
    page.keyboard.press("g")
    assert page.locator("body.gazing").count() == 1
    box = page.locator("#pane-a .view").bounding_box()
    seen = []
    for share in (0.3, 0.7):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        until(page, "document.getElementById('busy').hidden")
        seen.append(painted(page, "pane-b"))
    assert seen[0] != seen[1]  # the tokens follow
    page.mouse.move(5, 5)
    page.wait_for_selector("[data-channel=gaze]:enabled")  # where it was is a channel now
    page.click("[data-channel=gaze]")
    page.wait_for_selector("[data-channel=gaze][aria-pressed=true]")


def exported(page, kind):
    page.click("#export summary")
    with page.expect_download() as waiting:
        page.click(f"[data-export={kind}]")
    return Path(waiting.value.path()).read_bytes()


def run_python(code, folder, name, content):
    """The variables after the exported code has run beside the file."""
    (folder / name).write_bytes(content)
    found, here = {}, os.getcwd()
    os.chdir(folder)
    try:
        exec(compile(code, "exported", "exec"), found)
    finally:
        os.chdir(here)
    return found


@pytest.mark.parametrize(("name", "content"), [
    ("page.png", png(640, 480)), ("three.pdf", pdf(3)), ("clip.mp4", video(frames=8, side=96)),
])  # fmt: skip
def test_exports_can_be_used(page, tmp_path, name, content):
    choose(page, content, name)
    if not name.endswith("png"):  # another page or moment than the first, by itself
        page.select_option("#whole", "0")
        page.keyboard.press("PageDown")
        page.wait_for_selector("#strip button:nth-child(2)[aria-current]")
        until(page, "document.getElementById('busy').hidden")
        slide(page, 50)
    drawn = tv.Texture.open(exported(page, "png"))
    allocation = tv.Allocation.from_json(exported(page, "json").decode())
    found = run_python(exported(page, "python"), tmp_path, name, content)
    assert found["allocation"].to_json() == allocation.to_json() and drawn.size == found["picture"].original.size


def test_what_a_gaze_left_is_exported(page, tmp_path):
    choose(page, png(640, 480))
    page.keyboard.press("g")
    page.hover("#pane-a .view")
    until(page, "document.querySelector('#pane-b p').textContent.startsWith('gaze')")
    page.mouse.move(5, 5)
    until(page, "!document.querySelector('#pane-b p').textContent.startsWith('gaze')")
    allocation = tv.Allocation.from_json(exported(page, "json").decode())
    found = run_python(exported(page, "python"), tmp_path, "page.png", png(640, 480))
    assert found["trail"] and found["allocation"].to_json() == allocation.to_json()


def test_a_whole_video_is_exported(page, tmp_path, capsys):
    content = video(frames=8, side=96)
    choose(page, content, "clip.mp4")
    moments = json.loads(exported(page, "json"))
    capsys.readouterr()
    run_python(exported(page, "python"), tmp_path, "clip.mp4", content)
    said = [f"{one['time']:.1f} s: {one['used']} tokens" for one in moments if one["used"]]
    assert capsys.readouterr().out.splitlines() == said


def test_the_title_says_what_the_tokens_follow(page):
    choose(page, png(640, 480))
    page.keyboard.press("g")
    page.hover("#pane-a .view")
    until(page, "document.querySelector('#pane-b p').textContent.startsWith('gaze')")  # and not the scorer
    page.keyboard.press("g")
    choose(page, pdf(2), "two.pdf")
    # The question is about all pages.
    until(page, "document.querySelector('#pane-b h2').textContent === 'Seen of this page'")
    page.select_option("#whole", "0")
    until(page, "document.querySelector('#pane-b h2').textContent === 'What the model sees'")


def test_share_says_where_the_link_is_if_there_is_no_clipboard(page):
    choose(page, png())
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")  # as on other addresses
    page.click("#share")
    until(page, "document.getElementById('toast').textContent === 'The link is in the address bar.'")
    assert "id=" in page.url


def test_the_token_is_taken_from_the_address(browser):
    with running(create_app(Settings(token="secret"))) as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("#toast.bad")
        assert "open the address that it printed" in page.inner_text("#toast")
        page.goto(f"{address}/#token=secret")
        page.wait_for_selector("body[data-ready]")
        choose(page, png())
        until(page, "location.hash.startsWith('#id=')")
        assert "secret" not in page.url  # a link that is shared must not hold it
        page.close()


@pytest.mark.parametrize("width", [1280, 1024, 820, 768])
def test_the_page_is_as_wide_as_the_window(browser, address, width):
    page = browser.new_page(viewport={"width": width, "height": 800})
    begin(page, address)
    choose(page, png(640, 480), "a rather long name of a file that was scanned yesterday.png")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.querySelector('#token-facts').getBoundingClientRect().bottom") <= (
        800 if width > 1023 else 1300
    )
    page.close()


def test_every_control_has_a_name_and_the_keyboard_reaches_it(page):
    nameless = page.evaluate("""() => [...document.querySelectorAll('button, input, select, summary, [role=img]')]
        .filter((one) => !(one.ariaLabel || one.textContent.trim() || one.labels?.length))
        .map((one) => one.outerHTML)""")
    assert nameless == []
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "question"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(browser, address, scheme):
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    begin(page, address)
    contrasts = page.evaluate("""() => {
        const numbers = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
        const light = (colour) => colour.map((value) => value / 255)
            .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
            .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
        const ground = (one) => { for (let at = one; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (!colour.endsWith(', 0)')) return colour; } return 'rgb(255, 255, 255)'; };
        return [...document.querySelectorAll('label, p, h1, h2, span, button, output, figcaption, dt')]
            .filter((one) => one.offsetParent && one.textContent.trim() && !one.closest(':disabled'))
            .map((one) => { const pair = [light(numbers(getComputedStyle(one).color)), light(numbers(ground(one)))];
                const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
                return [contrast, one.textContent.trim().slice(0, 30)]; });
    }""")
    page.close()
    assert len(contrasts) > 15 and [one for one in contrasts if one[0] < 4.5] == [], json.dumps(contrasts)
