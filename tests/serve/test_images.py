"""Uploads, plans, tiles, relevance and layers, as the page calls them."""

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.serve.conftest import client_of, pdf, png, uploaded, video
from texturevlm.placement import TokenConfig, place
from texturevlm.serve.drawing import ATLAS_COLUMNS
from texturevlm.serve.lanes import Stop
from texturevlm.serve.limits import Limits
from texturevlm.serve.pictures import KeptImage, Pictures
from texturevlm.serve.uploads import held_bytes, upload_of


def opened(answer):
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(answer.content))


def planned(client, found, **more):
    body = {"id": found["id"], "budget": 4, "relevance": "none", **more}
    return client.post("/api/plan", json=body).json()


def test_upload_says_what_it_is(client):
    found = uploaded(client)
    assert found["kind"] == "image" and found["size"] == [120, 160] and found["pages"] == 1
    assert client.get(f"/api/images/{found['id']}").json()["size"] == [120, 160]


def test_plan_is_what_choose_tokens_gives(client):
    identity = uploaded(client)["id"]
    options = {"budget": 9, "patch": 16, "allocator": "layers"}
    plan = client.post("/api/plan", json={"id": identity, "question": "total", "relevance": "scout", **options}).json()
    texture = tv.Texture.open(png()).mipmapped()
    wanted = tv.choose_tokens(texture, "total", relevance="scout", **options)
    assert plan["used"] == int(wanted.valid.sum()) and plan["scorer"] == "scout"
    assert np.allclose(plan["tokens"]["centre"], wanted.centre[0][wanted.valid[0]].numpy(), atol=1e-3)
    same = client.post("/api/allocation", json={"id": identity, "question": "total", "relevance": "scout", **options})
    assert torch.equal(tv.Allocation.from_json(same.text).centre, wanted.centre)


def test_plan_has_the_pixels_of_each_token(client):
    identity = uploaded(client)["id"]
    plan = client.post("/api/plan", json={"id": identity, "budget": 40, "patch": 16}).json()
    atlas = Image.open(io.BytesIO(base64.b64decode(plan["atlas"]["url"].partition(",")[2])))
    assert plan["atlas"]["columns"] == ATLAS_COLUMNS and atlas.width == 24 * ATLAS_COLUMNS and plan["used"] > 32
    texture = tv.Texture.open(png()).mipmapped()
    body = {"id": identity, "budget": 40, "patch": 16}
    allocation = tv.Allocation.from_json(client.post("/api/allocation", json=body).text)
    wanted = tv.sample(texture, allocation).pixels[0, 33].permute(1, 2, 0).numpy() * 255
    tile = np.asarray(atlas.crop((28, 28, 44, 44)), dtype=float)  # slot 33: second row, second column
    assert np.abs(tile - wanted).mean() < 6  # JPEG


def test_gaze_moves_the_tokens(client):
    identity = uploaded(client)["id"]

    def finest(gaze):
        body = {"id": identity, "budget": 12, "patch": 8, "gaze": gaze, "pixels": False, "relevance": "none"}
        tokens = client.post("/api/plan", json=body).json()["tokens"]
        return tokens["centre"][int(np.argmin(tokens["level"]))]

    left, right = finest([10, 60]), finest([150, 60])
    assert left[0] < 60 and right[0] > 100
    assert (
        client.post("/api/plan", json={"id": identity, "gaze": [1e9, -5], "budget": 4, "relevance": "none"}).status_code
        == 200
    )


def test_where_a_person_has_looked_stays_relevant(client):
    identity = uploaded(client)["id"]
    body = {"id": identity, "budget": 12, "patch": 8, "pixels": False, "relevance": "none", "allocator": "density"}

    def mean_x(trail):
        tokens = client.post("/api/plan", json={**body, "trail": trail}).json()["tokens"]
        return np.mean([x for x, _ in tokens["centre"]])

    assert mean_x([[20, 60, 1]]) < mean_x([]) < mean_x([[140, 60, 1]])
    looks = [{"id": identity, "relevance": "none", "trail": [[x, 60, 1]]} for x in (20, 140)]
    left, right = (np.asarray(opened(client.post("/api/gaze", json=look)), float) for look in looks)
    assert np.abs(left - right[:, ::-1]).mean() < 8 < np.abs(left - right).mean()  # one mirrors the other
    opacity = [np.asarray(opened(client.post("/api/relevance", json=look)), float)[..., 3] for look in looks]
    heat = [own.sum(0) @ np.arange(own.shape[1]) / own.sum() for own in opacity]
    assert heat[0] < heat[1]


@pytest.mark.parametrize("trail", [[[1, 2]], "a,b,c", [[1, 2, -3]], [[1, 2, "nan"]], [[1, 1, 1]] * 65])
def test_a_bad_trail_is_refused(client, trail):
    identity = uploaded(client)["id"]
    answer = client.post("/api/relevance", json={"id": identity, "trail": trail})
    assert answer.status_code == 422 and "trail" in answer.json()["error"]["message"]


def test_tiles_join_to_the_image(client):
    found = uploaded(client, png(700, 300))
    whole = Image.new("RGB", (700, 300))
    for column in range(2):
        whole.paste(opened(client.get(f"/api/tiles/{found['id']}/0/{column}_0.jpg")), (512 * column, 0))
    given = Image.open(io.BytesIO(png(700, 300)))
    assert np.abs(np.asarray(whole, float) - np.asarray(given, float)).mean() < 4
    assert opened(client.get(f"/api/tiles/{found['id']}/2/0_0.jpg")).size == (175, 75)


@pytest.mark.parametrize("place", ["0/2_0", "0/0_1", "99/0_0", "-1/0_0", "0/-1_0"])
def test_a_tile_outside_is_not_found(client, place):
    found = uploaded(client, png(700, 300))
    assert client.get(f"/api/tiles/{found['id']}/{place}.jpg").status_code == 404


def test_relevance_is_strong_where_it_is(client):
    identity = uploaded(client)["id"]
    picture = opened(client.post("/api/relevance", json={"id": identity, "question": "total", "relevance": "none"}))
    opacity = np.asarray(picture)[..., 3]
    assert picture.mode == "RGBA" and opacity.max() > 200 and opacity.min() < 60


def test_channels_are_drawn(client):
    identity = uploaded(client)["id"]
    assert max(opened(client.get(f"/api/channels/{identity}/edges.jpg?small=true")).size) == 160
    assert client.get(f"/api/channels/{identity}/gaze.jpg").status_code == 404  # an image alone gives none
    assert client.get(f"/api/channels/{identity}/nothing.jpg").status_code == 404


def test_a_document_has_pages(client):
    found = uploaded(client, pdf(3), "three.pdf")
    assert found["kind"] == "document" and found["pages"] == 3
    plans = [planned(client, found, page=page) for page in (0, 2)]
    assert plans[0]["tokens"] != plans[1]["tokens"]
    assert client.post("/api/plan", json={"id": found["id"], "page": 3}).status_code == 404
    assert max(opened(client.get(f"/api/thumbnails/{found['id']}.jpg?page=1")).size) == 160


def test_a_video_has_moments(client):
    found = uploaded(client, video(), "clip.mp4")
    assert found["kind"] == "video" and found["pages"] == len(found["times"]) > 1
    assert found["times"] == sorted(found["times"])
    last = found["pages"] - 1
    assert (
        client.post("/api/plan", json={"id": found["id"], "page": last, "budget": 4, "relevance": "none"}).status_code
        == 200
    )


def test_the_second_look_at_an_image_opens_nothing(client):
    first, second = uploaded(client), uploaded(client)
    assert first["id"] != second["id"]
    for identity in (first["id"], second["id"]):
        client.post("/api/plan", json={"id": identity, "question": "total"})
    assert client.get("/api/about").json()["cache"]["opened"] == 1  # by content, not by id


def test_the_cache_keeps_to_its_bytes():
    uploads = [upload_of(png(seed=seed), "", Limits(), Stop()) for seed in range(4)]
    size = held_bytes(KeptImage(uploads[0].open(0, torch.device("cpu"))).held())
    pictures = Pictures(int(2.5 * size), torch.device("cpu"))
    kept = [pictures.get(one) for one in uploads]
    assert size > 160 * 120 * 3 * 4 and pictures.held == 2 * size
    assert pictures.get(uploads[3]) is kept[3] and pictures.get(uploads[0]) is not kept[0]


def test_what_is_made_of_a_picture_counts():
    image = KeptImage(upload_of(png(), "", Limits(), Stop()).open(0, torch.device("cpu")))
    before = held_bytes(image.held())
    how = TokenConfig(relevance="scout")
    place(image.picture(how), "total", how)
    read = held_bytes(image.held())
    image.layer("edges")
    assert before < read < held_bytes(image.held())


def test_uploads_leave_when_there_are_too_many_bytes():
    with client_of(limits=Limits(kept_bytes=2 * len(png()) + 500)) as client:
        ids = [uploaded(client, png(seed=seed))["id"] for seed in range(3)]
        assert [client.get(f"/api/images/{one}").status_code for one in ids] == [404, 200, 200]
