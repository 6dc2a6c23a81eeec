"""Chat completions and answers: by a tiny model here, and by a fake upstream."""

import asyncio
import base64
import io
import json
import threading

import httpx
import pytest
import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from PIL import Image

from tests.serve.conftest import client_of, pdf, png, uploaded, video
from tests.serve.running import running, wait_for
from texturevlm.ask import session as documents
from texturevlm.serve import uploads
from texturevlm.serve.answers import Answerer, Question
from texturevlm.serve.app import Settings, create_app
from texturevlm.serve.asking import events_of
from texturevlm.serve.chat import without_images
from texturevlm.serve.limits import Limits
from texturevlm.serve.pdfs import SafePdf
from texturevlm.serve.proxy import Upstream

CHAT = "/v1/chat/completions"


def data_url(content):
    return "data:image/png;base64," + base64.b64encode(content).decode()


def message(*urls, text="what is the total ?"):
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]


def chat(client, *urls, text="what is the total ?", **more):
    body = {"model": "any", "messages": message(*urls, text=text), "max_tokens": 4, "relevance": "none", **more}
    return client.post(CHAT, json=body)


def events(text):
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


def test_a_chat_is_answered_as_ask_does(answering, model):
    answer = chat(answering, data_url(png()), budget=12)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    wanted = model.ask(png(), "what is the total ?", budget=12, relevance="none", max_new_tokens=4)
    assert found["choices"][0]["message"] == {"role": "assistant", "content": wanted}
    assert found["object"] == "chat.completion" and found["model"] == "tiny"
    usage = found["usage"]
    assert usage["prompt_tokens_details"]["visual_tokens"] == found["texturevlm"]["visual_tokens"] == 12
    assert 1 <= usage["completion_tokens"] <= 4 and usage["prompt_tokens"] > 12
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert found["texturevlm"]["mode"] == answer.headers["x-texturevlm-mode"] == "local"
    assert 0 < found["texturevlm"]["confidence"] <= 1


def test_a_streamed_chat_says_the_same(answering):
    whole = chat(answering, data_url(png())).json()
    answer = chat(answering, data_url(png()), stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.text.endswith("data: [DONE]\n\n")
    chunks = events(answer.text)
    pieces = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"] and len([one for one in pieces if one]) > 1
    assert chunks[-1]["usage"] == whole["usage"] and chunks[-2]["choices"][0]["finish_reason"] in ("stop", "length")
    assert all(chunk["texturevlm"]["mode"] == "local" for chunk in chunks)


def test_an_upload_is_asked_about_by_its_id(answering):
    identity = uploaded(answering)["id"]
    by_id, by_data = chat(answering, f"upload:{identity}").json(), chat(answering, data_url(png())).json()
    assert by_id["choices"] == by_data["choices"]
    assert answering.get("/api/about").json()["cache"]["opened"] == 1  # the second question costs only the question


def test_several_images_share_the_budget(answering):
    found = chat(answering, data_url(png()), data_url(png(seed=1)), budget=10).json()
    assert found["usage"]["prompt_tokens_details"]["visual_tokens"] <= 10


@pytest.mark.parametrize("url", [
    "http://127.0.0.1:1/x.png", "https://example.com/x.png", "file:///etc/passwd", "/etc/passwd", "ftp://x/y",
    "data:image/png,abc", "upload:../x", "data:image/png;base64,!!!", "data:image/png;base64,aGVsbG8=", "",
])  # fmt: skip
def test_no_address_is_fetched_and_no_file_is_read(answering, url, monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *given, **more: pytest.fail("an address was fetched"))
    answer = chat(answering, url)
    assert answer.status_code in (400, 404, 415) and "error" in answer.json()


@pytest.mark.parametrize("body", [
    {"messages": []}, {"messages": [{"role": "user"}]}, {"messages": [{"role": "system", "content": "x"}]},
    {"messages": [{"role": "user", "content": [{"type": "video", "video": "/etc/passwd"}]}]}, {"n": 2},
    {"messages": [{"role": "user", "content": [{"type": "image", "path": "/etc/passwd"}]}]}, {"budget": 0},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, {"temperature": 9}, {"max_tokens": 0},
    {"messages": [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]},
    {"messages": [{"role": "user", "content": "x"}, {"role": {}, "content": "y"}]},
])  # fmt: skip
def test_bad_chats_are_refused(answering, body):
    answer = answering.post(CHAT, json={"messages": message(data_url(png())), **body})
    assert answer.status_code == 422 and answer.json()["error"]["type"] == "invalid_request_error"


def test_a_chat_needs_an_image_and_not_too_many(answering):
    assert "an image is needed" in chat(answering).json()["error"]["message"]
    assert chat(answering, *[data_url(png())] * 9).status_code == 413


def test_an_answer_ends_at_a_stop_text_and_at_its_length(answering):
    whole = chat(answering, data_url(png())).json()["choices"][0]
    text = whole["message"]["content"]
    first = text.split()[0]
    cut = chat(answering, data_url(png()), stop=[text[len(first) : len(first) + 3]]).json()["choices"][0]
    assert cut["message"]["content"] == first and cut["finish_reason"] == "stop"
    short = chat(answering, data_url(png()), max_tokens=1).json()
    assert short["usage"]["completion_tokens"] == 1 and short["choices"][0]["finish_reason"] == "length"


def test_models_are_listed(answering):
    (one,) = answering.get("/v1/models").json()["data"]
    assert one["id"] == "tiny" and isinstance(one["created"], int)


def test_the_largest_budget_leaves_room_for_the_question(answering, client, model, monkeypatch):
    assert client.get("/api/about").json()["limits"]["budget"] == 4096
    monkeypatch.setattr(model.model.config.get_text_config(), "max_position_embeddings", 1000)
    assert answering.get("/api/about").json()["limits"]["budget"] == 488


def test_a_developer_is_the_system():
    said = [{"role": "developer", "content": "Read."}, {"role": "user", "content": "What?"}]
    assert [one["role"] for one in without_images(said)] == ["system", "user"]


def test_a_server_without_a_model_says_so(client):
    assert "--model" in chat(client, data_url(png())).json()["error"]["message"]


def test_the_page_gets_pieces_and_details(answering):
    identity = uploaded(answering)["id"]
    body = {"id": identity, "question": "what is the total ?", "budget": 12, "relevance": "none", "max_tokens": 4}
    answer = answering.post("/api/answer", json=body)
    kinds, said = events_in(answer)
    assert kinds[-1] == "answer" and kinds.count("piece") == len(kinds) - 1 > 1
    assert "".join(said[:-1]) == said[-1]["text"] and said[-1]["visual_tokens"] == 12
    assert set(said[-1]["seconds"]) >= {"choose", "first_token", "decode"}
    assert len(said[-1]["tokens"]) >= len(kinds) - 1


def events_in(answer):
    lines = answer.text.splitlines()
    kinds = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    return kinds, [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def test_further_looks_are_told(answering):
    body = {"id": uploaded(answering)["id"], "question": "what is the total ?", "budget": 12, "max_tokens": 4}
    kinds, said = events_in(answering.post("/api/answer", json={**body, "relevance": "none", "looks": "auto"}))
    first, second = said[-1]["looks"]  # the tiny model is never sure
    assert kinds.count("look") == 1 and first["visual_tokens"] == 3 < second["visual_tokens"] == 12
    again = kinds.index("look")
    assert "".join(said[:again]) == first["text"] and "".join(said[again + 1 : -1]) == second["text"]
    assert len(second["tokens"]["centre"]) == 12 and 0 <= second["chance"] <= 1
    _, said = events_in(answering.post("/api/answer", json={**body, "looks": 2}))
    assert [one["visual_tokens"] for one in said[-1]["looks"]] == [12]
    assert answering.post("/api/answer", json={**body, "looks": 3}).status_code == 422


@pytest.mark.parametrize(("content", "name"), [(pdf(3), "three.pdf"), (video(side=96), "clip.mp4")])
def test_a_whole_file_is_asked_about(answering, content, name):
    body = {"id": uploaded(answering, content, name)["id"], "question": "what is the total ?", "max_tokens": 4}
    _, said = events_in(answering.post("/api/answer", json={**body, "budget": 24, "whole": True}))
    assert 12 < said[-1]["visual_tokens"] <= 24 and said[-1]["text"]
    if name == "three.pdf":  # the pages that it saw, by their numbers
        assert sum(said[-1]["pages"].values()) == said[-1]["visual_tokens"] and set(said[-1]["pages"]) <= {*"123"}
        _, said = events_in(answering.post("/api/answer", json={**body, "budget": 24, "whole": True, "fine_pages": 1}))
        assert len(said[-1]["pages"]) == 1
        assert answering.post("/api/answer", json={**body, "whole": True, "fine_pages": 99}).status_code == 422


@pytest.mark.parametrize(("content", "name"), [(pdf(3), "three.pdf"), (video(side=96), "clip.mp4")])
def test_the_second_question_about_a_whole_file_costs_only_the_question(answering, content, name, monkeypatch):
    opened = []
    drawn, decoded = SafePdf.texture, uploads.bytes_source
    monkeypatch.setattr(SafePdf, "texture", lambda *given: opened.append(given) or drawn(*given))
    monkeypatch.setattr(uploads, "bytes_source", lambda *given, **more: opened.append(given) or decoded(*given, **more))
    body = {"id": uploaded(answering, content, name)["id"], "whole": True, "relevance": "scout", "budget": 24}
    for question in ("what is the total ?", "who wrote it ?"):
        read, answer = len(opened), answering.post("/api/answer", json={**body, "question": question, "max_tokens": 2})
        assert "event: answer" in answer.text
    assert read > 0 and len(opened) == read  # the second opened nothing


def test_pages_are_not_chosen_by_the_thread_of_the_model(answering, monkeypatch):
    chosen, threads = documents.choose_pages, []

    def choose(*given, **more):
        threads.append(threading.current_thread().name)
        return chosen(*given, **more)

    monkeypatch.setattr(documents, "choose_pages", choose)
    identity = uploaded(answering, pdf(3), "three.pdf")["id"]
    body = {"id": identity, "question": "total ?", "whole": True, "relevance": "none", "budget": 12, "max_tokens": 2}
    answer = answering.post("/api/answer", json=body).text.rpartition("data: ")[2]
    assert json.loads(answer)["seconds"]["choose"] > 0.01  # its time is said all the same
    assert chat(answering, f"upload:{identity}", budget=12).status_code == 200
    assert len(threads) == 2 and all(one.startswith("texturevlm-look") for one in threads)


def test_attention_has_a_weight_per_token(answering, client):
    identity = uploaded(answering)["id"]
    body = {"id": identity, "question": "what is the total ?", "budget": 12, "relevance": "none"}
    plan = answering.post("/api/plan", json={**body, "patch": answering.get("/api/about").json()["patch"]}).json()
    weights = answering.post("/api/attention", json=body).json()["attention"]
    assert len(weights) == plan["used"] and sum(weights) == pytest.approx(1, abs=1e-3) and min(weights) >= 0
    assert client.post("/api/attention", json={**body, "id": uploaded(client)["id"]}).status_code == 409


class Held:
    """A model whose first call waits, so that questions gather behind it."""

    def __init__(self, model):
        self.model, self.adapter, self.real = model.model, model.adapter, model
        self.go, self.begun, self.calls = threading.Event(), threading.Event(), []

    def __getattr__(self, name):
        return getattr(self.real, name)

    def ask(self, sessions, prompts, **options):
        self.calls.append(len(prompts) if isinstance(sessions, list) else 1)
        self.begun.set()
        assert self.go.wait(30)
        return self.real.ask(sessions, prompts, **options)


def answers_together(model, bodies, waiting=32):
    """The answers to bodies that wait behind a first question, and how many were asked per call."""
    held = Held(model)
    app = create_app(Settings(model=held, name="tiny", limits=Limits(waiting=waiting)))
    answerer = app.app.state.serve.answerer
    with running(app) as address:
        found = [None] * (len(bodies) + 1)

        def ask(index, body):
            found[index] = httpx.post(address + CHAT, json=body, timeout=60)

        threads = [threading.Thread(target=ask, args=(0, {**bodies[0], "budget": 5}))]
        threads[0].start()
        assert held.begun.wait(30)
        threads += [threading.Thread(target=ask, args=(index, body)) for index, body in enumerate(bodies, 1)]
        for thread in threads[1:]:
            thread.start()
        wait_for(lambda: len(answerer._queue) == min(len(bodies), waiting))
        wait_for(lambda: sum(one is not None for one in found) == max(0, len(bodies) - waiting))
        held.go.set()
        for thread in threads:
            thread.join(60)
    return found[1:], held.calls


def body_of(seed, **more):
    return {"messages": message(data_url(png(seed=seed))), "max_tokens": 4, "relevance": "none", "budget": 12, **more}


def test_questions_with_one_budget_are_answered_together_and_alike(model):
    bodies = [body_of(seed) for seed in range(3)] + [body_of(0, budget=7)]
    found, calls = answers_together(model, bodies)
    assert sorted(calls[1:]) == [1, 3]
    for body, answer in zip(bodies, found):
        image = base64.b64decode(body["messages"][0]["content"][0]["image_url"]["url"].partition(",")[2])
        options = {"budget": body["budget"], "relevance": "none", "max_new_tokens": 4}
        alone = model.ask(image, "what is the total ?", **options)
        assert answer.json()["choices"][0]["message"]["content"] == alone


def test_one_bad_question_does_not_hurt_the_others(model, monkeypatch):
    real = type(model).ask

    def ask(self, sessions, prompts, **options):
        if any("poison" in json.dumps(one) for one in (prompts if isinstance(sessions, list) else [prompts])):
            raise RuntimeError("poisoned")
        return real(self, sessions, prompts, **options)

    monkeypatch.setattr(type(model), "ask", ask)
    bad = {**body_of(1), "messages": message(data_url(png(seed=1)), text="poison")}
    found, calls = answers_together(model, [body_of(0), bad, body_of(2)])
    assert [one.status_code for one in found] == [200, 500, 200] and calls[1:] == [3, 1, 1, 1]
    assert "poisoned" not in found[1].text


def test_too_many_questions_are_answered_429(model):
    found, _ = answers_together(model, [body_of(seed % 2) for seed in range(6)], waiting=4)
    assert sorted(one.status_code for one in found) == [200] * 4 + [429] * 2


def test_an_answer_that_takes_too_long_is_an_error(model):
    held = Held(model)
    app = create_app(Settings(model=held, name="tiny", limits=Limits(seconds=0.4)))
    with running(app) as address:
        whole = httpx.post(address + CHAT, json=body_of(0), timeout=30)
        streamed = httpx.post(address + CHAT, json=body_of(0, stream=True), timeout=30).text
        held.go.set()
        assert whole.status_code == 504 and "0.4 s" in whole.json()["error"]["message"]
        assert "0.4 s" in streamed and streamed.endswith("data: [DONE]\n\n")
        wait_for(lambda: httpx.post(address + CHAT, json=body_of(0), timeout=30).status_code == 200)


def test_an_answer_ends_when_its_client_leaves(model, monkeypatch):
    ended = threading.Event()
    real = Answerer._ask

    def ask(self, batch):
        try:
            return real(self, batch)
        finally:
            if all(question.stop.is_set() for question in batch):
                ended.set()

    monkeypatch.setattr(Answerer, "_ask", ask)
    monkeypatch.setattr("texturevlm.serve.answers.end_ids", lambda model: [])
    with running(create_app(Settings(model=model, name="tiny"))) as address:
        body = {**body_of(0), "stream": True, "max_tokens": 1000, "budget": 4}
        with httpx.stream("POST", address + CHAT, json=body, timeout=60) as answer:
            pieces = (json.loads(line[6:])["choices"] for line in answer.iter_lines() if line.startswith("data: {"))
            next(one for one in pieces if one and one[0]["delta"].get("content"))  # the model has begun
        assert ended.wait(30)
        assert httpx.post(address + CHAT, json=body_of(0), timeout=60).status_code == 200


def test_a_prompt_is_not_read_on_for_nobody(model):
    lists = [one for one in model.model.modules() if isinstance(one, torch.nn.ModuleList)]
    first, *others = [layer for layers in lists for layer in layers]
    read = []

    async def leaving():
        answerer = Answerer(model, waiting=4)
        options = {"budget": 12, "relevance": "none", "max_new_tokens": 2}
        gone, here = (Question(model.prepare(png()), "what ?", options) for _ in range(2))
        hooks = [one.register_forward_hook(lambda *_: read.append(answerer._asking == [here])) for one in others]
        hooks.append(first.register_forward_hook(lambda *_: gone.stop.set()))
        answerer.submit(gone)
        while not gone.stop.is_set():
            await asyncio.sleep(0.01)
        answerer.submit(here)
        kinds = [kind async for kind, _ in events_of(here, 60)]
        for one in hooks:
            one.remove()
        answerer.close()
        return kinds[-1], gone.events.empty()

    assert asyncio.run(leaving()) == ("answer", True)
    assert read and all(read)  # no further layer for the first one
    assert not any(layer._forward_pre_hooks for layer in others)  # the model is as it was


# ---- proxy


@pytest.fixture
def upstream():
    """A fake OpenAI server that keeps what it was asked."""
    app, asked = FastAPI(), []

    @app.post("/v1/chat/completions")
    async def complete(request: Request):
        body = await request.json()
        asked.append((body, dict(request.headers)))
        if body["model"] == "broken":
            return JSONResponse({"secret": "inside"}, 500)
        if body["model"] == "busy":
            return JSONResponse({}, 429)
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "forty"}, "finish_reason": "stop"}
            return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": {"total_tokens": 9}}

        async def chunks():
            for piece in ("for", "ty"):
                yield f"data: {json.dumps({'choices': [{'index': 0, 'delta': {'content': piece}}]})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    with running(app) as address:
        yield f"{address}/v1", asked


def test_proxy_sends_an_overview_and_crops(upstream):
    address, asked = upstream
    with client_of(upstream=Upstream(address, key="k", model="big"), budget=64) as client:
        answer = chat(client, data_url(png(1200, 900)), budget=48)
    assert answer.json()["choices"][0]["message"]["content"] == "forty"
    label = answer.json()["texturevlm"]
    assert label["mode"] == answer.headers["x-texturevlm-mode"] == "proxy" and label["budget"] == 48
    body, headers = asked[0]
    assert headers["authorization"] == "Bearer k" and body["model"] == "big" and "budget" not in body
    images = [one["image_url"]["url"] for one in body["messages"][0]["content"] if one["type"] == "image_url"]
    assert len(images) == len(label["parts"]) > 1
    sizes = [Image.open(io.BytesIO(base64.b64decode(one.partition(",")[2]))).size for one in images]
    assert [list(one) for one in sizes] == [one["size"] for one in label["parts"]]
    assert sum(width // 32 * (height // 32) for width, height in sizes) <= 48
    assert label["parts"][0]["box"] == [0, 0, 1200, 900]
    finer = (label["parts"][1]["box"][2] - label["parts"][1]["box"][0]) / sizes[1][0]
    assert finer < 1200 / sizes[0][0]


def test_proxy_streams(upstream):
    with client_of(upstream=Upstream(upstream[0])) as client:
        answer = chat(client, data_url(png()), stream=True)
    pieces = events(answer.text)
    assert "".join(one["choices"][0]["delta"]["content"] for one in pieces) == "forty"
    assert all(one["texturevlm"]["mode"] == "proxy" for one in pieces) and answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("model_name", "status"), [("broken", 502), ("busy", 429)])
def test_proxy_tells_of_an_upstream_that_fails(upstream, model_name, status, stream):
    with client_of(upstream=Upstream(upstream[0], model=model_name)) as client:
        answer = chat(client, data_url(png()), stream=stream)
        assert answer.status_code == status and "inside" not in answer.text
    with client_of(upstream=Upstream("http://127.0.0.1:9/v1")) as client:
        assert chat(client, data_url(png()), stream=stream).status_code == 502


def test_proxy_refuses_addresses_too(upstream):
    with client_of(upstream=Upstream(upstream[0])) as client:
        assert chat(client, "http://127.0.0.1/x.png").status_code == 400
    assert not upstream[1]
