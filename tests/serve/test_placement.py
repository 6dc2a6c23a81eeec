"""The page's plan, the chat's answer and `place` show the same tokens, whatever the model's own options are."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

import texturevlm as tv
from tests.golden.pictures import stamped
from tests.serve.conftest import client_of, pdf, uploaded
from texturevlm.pages import choose as pages
from texturevlm.placement import Finer, TokenConfig, prepare
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import Limits
from texturevlm.serve.pictures import KeptImage
from texturevlm.serve.uploads import held_bytes, upload_of

QUESTION = "What is the total?"


def page(angle=0):
    """A small page of print, turned clockwise by an angle."""
    image = Image.new("RGB", (360, 480), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(15)
    for row in range(14):
        draw.text((24, 24 + 22 * row), f"Item {row}   {3 * row + 7}.40 EUR", fill="black", font=font)
    return as_png(image.rotate(-angle, expand=True))


def as_png(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


STAMPED = as_png(stamped())  # by 30°


def footprints(tokens):
    return np.concatenate([np.asarray(tokens[name], float) for name in ("centre", "ddx", "ddy")], -1)


def footprints_of(allocation):
    used = allocation.valid[0]
    return footprints({name: getattr(allocation, name)[0][used] for name in ("centre", "ddx", "ddy")})


@pytest.fixture(scope="module")
def reader():
    return tv.load_vlm("reader", captured=False, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def reading(reader):
    with client_of(model=reader, name="reader") as found:
        yield found


def kept_session(client, model):
    """The session of the image that was asked about last."""
    pictures = client.app.app.state.serve.pictures
    return next(reversed(pictures._kept.values())).value.session(model)


@pytest.mark.parametrize("content", [page(), page(90), STAMPED], ids=["small", "turned", "stamped"])
def test_the_plan_the_chat_and_place_have_the_same_tokens(reading, reader, content):
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    blocks = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    body = {"messages": [{"role": "user", "content": blocks}], "max_tokens": 1}
    chat = reading.post("/v1/chat/completions", json=body).json()
    (read,) = kept_session(reading, reader).read[1]
    asked = {"id": uploaded(reading, content)["id"], "question": QUESTION}
    plan = reading.post("/api/plan", json=asked).json()
    wanted = tv.place(Image.open(io.BytesIO(content)), QUESTION, reader.config.tokens)
    assert np.abs(footprints_of(read.given) - footprints_of(wanted.given)).max() < 0.05
    assert np.abs(footprints(plan["tokens"]) - footprints_of(wanted.given)).max() < 0.05
    assert bool(wanted.picture.regions) == (content == STAMPED)
    assert plan["used"] == wanted.tokens == chat["usage"]["prompt_tokens_details"]["visual_tokens"] > 189
    exact = tv.Allocation.from_json(reading.post("/api/allocation", json=asked).text)
    assert torch.equal(exact.centre, wanted.given.centre) and exact.size == wanted.given.size
    weights = reading.post("/api/attention", json=asked).json()["attention"]
    assert len(weights) == plan["used"]


def test_tokens_of_a_turned_page_arrive_upright(client):
    """The pixels are those of the upright page; the footprints lie on the page as it was given."""
    plans = []
    for angle in (0, 90):
        asked = {"id": uploaded(client, page(angle))["id"], "question": QUESTION, "budget": 20, "turn": angle}
        plans.append(client.post("/api/plan", json=asked).json())
    upright, turned = plans
    assert turned["size"] == upright["size"][::-1] and turned["angle"] == 90
    tiles = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(one["atlas"]["url"].partition(",")[2]))), float)
        for one in plans
    ]
    assert np.abs(tiles[0] - tiles[1]).mean() < 1
    own = footprints(turned["tokens"])
    height = upright["size"][0]
    back = np.stack([own[:, 1], height - own[:, 0]], -1)
    assert np.abs(back - footprints(upright["tokens"])[:, :2]).max() < 0.05


def test_relevance_lies_on_the_image_as_it_was_given(client):
    heats = []
    for angle in (0, 90):
        asked = {"id": uploaded(client, page(angle))["id"], "question": QUESTION, "turn": angle}
        heats.append(np.asarray(Image.open(io.BytesIO(client.post("/api/relevance", json=asked).content)))[..., 3])
    assert np.abs(np.rot90(heats[0], -1).astype(float) - heats[1]).mean() < 2


def test_a_model_is_served_with_its_own_options(answering, model, monkeypatch):
    monkeypatch.setattr(model.processor, "allocator", "density")
    monkeypatch.setattr(model.processor, "relevance", "channels")
    asked = {"id": uploaded(answering)["id"], "question": QUESTION}
    about, plan = answering.get("/api/about").json(), answering.post("/api/plan", json=asked).json()
    assert (about["allocator"], about["relevance"], about["budget"]) == ("density", "channels", 24)
    assert (plan["allocator"], plan["scorer"], plan["budget"]) == ("density", "channels", 24)
    blocks = [{"type": "image_url", "image_url": {"url": f"upload:{asked['id']}"}}, {"type": "text", "text": QUESTION}]
    chat = {"messages": [{"role": "user", "content": blocks}]}
    said = answering.post("/v1/chat/completions", json={**chat, "max_tokens": 1}).json()["texturevlm"]
    assert (said["allocator"], said["relevance"], said["budget"]) == ("density", "channels", 24)
    (read,) = kept_session(answering, model).read[1]
    assert np.abs(footprints_of(read.given) - footprints(plan["tokens"])).max() < 0.05
    given = answering.post("/api/plan", json={**asked, "allocator": "resize", "relevance": "none"}).json()
    assert (given["allocator"], given["scorer"]) == ("resize", "none")


@pytest.mark.parametrize("options", [{"allocator": "cascade"}, {"relevance": "embedding"}, {"balance": "/etc/passwd"}])
@pytest.mark.parametrize("path", ["/api/plan", "/api/answer", "/api/relevance"])
def test_a_client_names_what_the_registries_allow(answering, path, options):
    body = {"id": uploaded(answering)["id"], "question": QUESTION, **options}
    answer = answering.post(path, json=body)
    assert answer.status_code == 400 and f"{next(iter(options))} must be one of" in answer.json()["error"]["message"]


def test_what_a_session_holds_counts(reader):
    image = KeptImage(upload_of(page(), "", Limits(), Stop()).open(0, torch.device("cpu")))
    before = held_bytes(image.held())
    (placement,) = image.session(reader).choose(QUESTION)
    enlarged = sum(level.nbytes for level in placement.picture.texture.levels)
    assert placement.picture.frame.scale == 0.5  # the reader enlarges small pages
    both = held_bytes(image.held())
    assert both >= before + enlarged
    image.picture(reader.config.tokens)  # the page shares it
    assert held_bytes(image.held()) == both


def test_pages_are_chosen_once_for_an_answer(answering, monkeypatch):
    calls, chosen = [], pages.choose_pages
    monkeypatch.setattr(
        "texturevlm.ask.session.choose_pages", lambda *given, **more: calls.append(more) or chosen(*given, **more)
    )
    body = {"id": uploaded(answering, pdf(3), "three.pdf")["id"], "question": QUESTION, "whole": True, "max_tokens": 1}
    answer = answering.post("/api/answer", json={**body, "fine_pages": 1})
    assert "event: answer" in answer.text and len(calls) == 1 and calls[0]["fine_pages"] == 1


def test_a_gaze_on_a_turned_page_is_where_the_eye_is(client):
    asked = {"id": uploaded(client, page(90))["id"], "turn": 90, "budget": 24, "patch": 8, "gaze": [400, 60]}
    tokens = client.post("/api/plan", json=asked).json()["tokens"]
    x, y = tokens["centre"][int(np.argmin(tokens["level"]))]
    assert abs(x - 400) < 60 and abs(y - 60) < 60


def test_evidence_leaves_nothing_behind():
    picture = prepare(Image.open(io.BytesIO(page())), TokenConfig(finer=Finer(((1, 2.0),))))
    how = TokenConfig(budget=16, relevance="none", finer=Finer(((1, 2.0),)))
    tv.place(picture, "", how)
    kept = len(picture.memo.readings)
    for _ in range(3):
        tv.place(picture, "", how, evidence=torch.ones(1, 4, 4))
    assert len(prepare(picture, how).memo.readings) == kept
