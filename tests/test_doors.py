"""Every door places the same tokens: for one explicit config, and with the reader for each door's own defaults."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.serve.conftest import client_of, uploaded
from texturevlm.ask.pretrained import SHIPPED
from texturevlm.ask.session import ImageSession
from texturevlm.cli import main
from texturevlm.pages import choose_pages
from texturevlm.placement import TokenConfig, choose_tokens, place
from texturevlm.types import Allocation
from texturevlm_lab.evaluate.asked_page import AskedPage
from texturevlm_lab.evaluate.page_cache import PageCache

pytest.importorskip("transformers")
READER = SHIPPED["reader"]
CLOSE = 0.05  # pixels
QUESTION = "What is the total?"
ROOT = Path(__file__).parent.parent
EXPLICIT = TokenConfig(64, "quadtree", "scout", turn=0.0, patch=32)


@pytest.fixture(scope="module")
def image() -> Image.Image:
    """The lower half of the invoice, above a million pixels: no door enlarges it."""
    return Image.open(ROOT / "examples" / "invoice.png").convert("RGB").crop((0, 600, 1240, 1754))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reader without its table of how finely it reads, so that one config holds at every door."""
    if not (READER / "model.safetensors").is_file():
        pytest.skip("the reader's weights are not in this copy")
    folder = tmp_path_factory.mktemp("reader")
    for path in READER.iterdir():
        if path.suffix == ".safetensors":
            (folder / path.name).symlink_to(path)
        else:
            shutil.copy(path, folder)
    for name in ("config.json", "texturevlm.json"):
        table = json.loads((folder / name).read_text())
        held = table.get("model", table)
        held["texturevlm"].pop("finer")
        (folder / name).write_text(json.dumps(table))
    return tv.load_vlm(folder, device="cpu", dtype="float32", captured=False)


def numbers(*allocations: Allocation) -> np.ndarray:
    """The corners of all used footprints, in any order of the slots, sorted."""
    rows = []
    for allocation in allocations:
        used = allocation.valid[0]
        columns = [getattr(allocation, name)[0][used].double() for name in ("centre", "ddx", "ddy")]
        rows.append(torch.cat(columns, -1).numpy())
    table = np.concatenate(rows)
    return table[np.lexsort(table.round(1).T)]


def options(how: TokenConfig = EXPLICIT) -> dict[str, Any]:
    return {name: getattr(how, name) for name in ("budget", "allocator", "relevance", "turn")}


def by_ask(model: Any, image: Image.Image, **given: Any) -> np.ndarray:
    answer = model.ask(image, QUESTION, return_details=True, max_new_tokens=1, **given)
    return numbers(*[placement.given for placement in answer.placements])


def by_look(model: Any, image: Image.Image, monkeypatch: pytest.MonkeyPatch, **given: Any) -> np.ndarray:
    """What is drawn after an answer: the placements that the model read, nothing is placed again."""
    drawn: list[Any] = []
    monkeypatch.setattr("texturevlm.ask.session.draw", lambda placements, title: drawn.extend(placements))
    session = model.prepare(image)
    session.ask(QUESTION, max_new_tokens=1, **given)
    monkeypatch.setattr("texturevlm.ask.session.place_together", None)
    session.look(QUESTION, **given)
    return numbers(*[placement.given for placement in drawn])


def by_processor(model: Any, image: Image.Image, monkeypatch: pytest.MonkeyPatch, **given: Any) -> np.ndarray:
    """`attach` and a call of the processor."""
    placed: list[Any] = []
    processor = tv.attach(model.model, model.processor.processor, **given)
    own = processor._placed
    monkeypatch.setattr(processor, "_placed", lambda *given: placed.extend(own(*given)) or placed)
    processor(images=image, text=processor.image_token, question=QUESTION)
    tv.detach(processor)
    return numbers(*[placement.given for placement in placed])


def by_command(image: Image.Image, tmp_path: Path, **given: Any) -> np.ndarray:
    path, out = tmp_path / "page.png", tmp_path / "tokens.json"
    image.save(path)
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    assert main(["allocate", str(path), "--query", QUESTION, "--json", str(out), *words]) == 0
    return numbers(Allocation.from_json(out.read_text()))


def by_plan(model: Any, image: Image.Image, **given: Any) -> np.ndarray:
    """The server's plan, as the page draws it."""
    with client_of(model=model, name="reader") as client:
        held = io.BytesIO()
        image.save(held, "PNG")
        identity = uploaded(client, held.getvalue())["id"]
        tokens = client.post("/api/plan", json={"id": identity, "question": QUESTION, **given}).json()["tokens"]
    table = np.concatenate([np.asarray(tokens[name]) for name in ("centre", "ddx", "ddy")], -1)
    return table[np.lexsort(table.round(1).T)]


def by_chat(model: Any, image: Image.Image, monkeypatch: pytest.MonkeyPatch, **given: Any) -> np.ndarray:
    """The server's chat: the placements of the request that the model answers."""
    placed: list[Any] = []
    own = ImageSession.request
    monkeypatch.setattr(
        ImageSession, "request", lambda *given, **more: placed.append(own(*given, **more)) or placed[-1]
    )
    held = io.BytesIO()
    image.save(held, "PNG")
    url = "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()
    content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": url}}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, **given}
    with client_of(model=model, name="reader") as client:
        assert client.post("/v1/chat/completions", json=body).status_code == 200
    return numbers(*[placement.given for placement in placed[0].placements])


def by_eval(model: Any, image: Image.Image, tmp_path: Path, how: TokenConfig) -> np.ndarray:
    """A page of `texturevlm eval`."""
    path = tmp_path / "page.png"
    image.save(path)
    page = AskedPage(path, model.adapter, PageCache(tmp_path / "words"))
    return numbers(page.placed(QUESTION, how.allocator, how.relevance, how.budget, turn=how.turn).given)


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < CLOSE


def doors(plain: Any, image: Image.Image, tmp_path: Path, patch: pytest.MonkeyPatch) -> dict[str, Callable[[], Any]]:
    texture = tv.Texture.open(image)
    return {
        "choose_tokens": lambda: numbers(choose_tokens(texture, QUESTION, how=EXPLICIT)),
        "choose_tokens by options": lambda: numbers(choose_tokens(texture, QUESTION, patch=32, **options())),
        "place": lambda: numbers(place(image, QUESTION, EXPLICIT).given),
        "ask": lambda: by_ask(plain, image, **options()),
        "look": lambda: by_look(plain, image, patch, **options()),
        "attach": lambda: by_processor(plain, image, patch, **options()),
        "allocate": lambda: by_command(image, tmp_path, **options()),
        "clip": lambda: by_ask(plain, [np.asarray(image)], fps=1.0, **options()),
        "document": lambda: numbers(
            *[page.placement.given for page in choose_pages([texture], QUESTION, how=EXPLICIT)]
        ),
        "plan": lambda: by_plan(plain, image, **options()),
        "chat": lambda: by_chat(plain, image, patch, **options()),
        "eval": lambda: by_eval(plain, image, tmp_path, EXPLICIT),
        "compile": lambda: numbers(
            tv.compile(texture.size, 64, "quadtree", relevance="scout", device="cpu")(
                texture.levels[0], QUESTION
            ).allocation
        ),
    }


NAMES = ("choose_tokens by options", "place", "ask", "look", "attach", "allocate", "clip", "document", "plan", "chat")
NAMES = (*NAMES, "eval", "compile")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_pixels_and_one_config_give_the_same_footprints(name, plain, image, tmp_path, monkeypatch):
    every = doors(plain, image, tmp_path, monkeypatch)
    same(every[name](), every["choose_tokens"]())


def test_another_config_gives_others(plain, image, tmp_path, monkeypatch):
    """The comparison can fail."""
    every = doors(plain, image, tmp_path, monkeypatch)
    other = numbers(choose_tokens(tv.Texture.open(image), QUESTION, how=EXPLICIT.given(allocator="layers")))
    wanted = every["choose_tokens"]()
    assert other.shape != wanted.shape or np.abs(other - wanted).max() > 1


def test_with_the_reader_every_door_has_its_own_defaults(image, monkeypatch, tmp_path):
    """A small page that lies on its side: the reader turns it, enlarges it, and has a budget of its own."""
    reader = tv.load_vlm("reader", device="cpu", dtype="float32", captured=False)
    small = image.resize((496, 462)).rotate(-90, expand=True)
    how = reader.config.tokens
    wanted = numbers(place(small, QUESTION, how).given)
    assert how.turn == "auto" and how.budget == 512 and how.finer.most > 1
    same(by_ask(reader, small), wanted)
    same(by_look(reader, small, monkeypatch), wanted)
    monkeypatch.undo()
    same(by_processor(reader, small, monkeypatch), wanted)
    same(by_plan(reader, small), wanted)
    same(by_chat(reader, small, monkeypatch), wanted)
    same(by_eval(reader, small, tmp_path, how), wanted)
    same(numbers(choose_tokens(tv.Texture.open(small), QUESTION, how=how)), wanted)
