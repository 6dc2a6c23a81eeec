"""A server in this process, and small files to upload."""

import io

import numpy as np
import pytest
from PIL import Image, ImageDraw

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("httpx", reason="needs the extra serve")

from fastapi.testclient import TestClient

from tests.ask import models
from texturevlm import vlm
from texturevlm.serve.app import Settings, create_app
from texturevlm.serve.limits import Limits

LOCAL = "http://127.0.0.1:8080"


def png(width=160, height=120, seed=0):
    """A page with a few dark marks."""
    image = Image.new("RGB", (width, height), "white")
    draw, places = ImageDraw.Draw(image), np.random.default_rng(seed)
    for _ in range(12):
        x, y = int(places.integers(0, width - 30)), int(places.integers(0, height - 8))
        draw.text((x, y), "total 12", fill="black")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def pdf(pages=3):
    images = [Image.open(io.BytesIO(png(seed=seed))) for seed in range(pages)]
    file = io.BytesIO()
    images[0].save(file, "PDF", save_all=True, append_images=images[1:])
    return file.getvalue()


def video(frames=12, side=64):
    """A square that moves, as MP4."""
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=4)
        stream.width = stream.height = side
        for index in range(frames):
            picture = np.full((side, side, 3), 255, np.uint8)
            picture[8:40, 4 * index : 4 * index + 24] = 0
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def client_of(**given):
    limits = given.pop("limits", Limits())
    return TestClient(create_app(Settings(limits=limits, **given)), base_url=LOCAL, raise_server_exceptions=False)


def uploaded(client, content=None, name="page.png"):
    answer = client.post("/api/images", files={"file": (name, png() if content is None else content)})
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def client():
    with client_of() as found:
        yield found


@pytest.fixture(scope="session")
def model():
    """A tiny model that answers anything."""
    return models.asked(vlm.adapt(*models.built("qwen3_vl")), budget=24, relevance="none")


@pytest.fixture
def answering(model):
    with client_of(model=model, name="tiny") as found:
        yield found
