"""Many calls at once: plans, tiles, a clip and chats in threads give what each gives alone, also on a GPU."""

import base64
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from tests.ask import models
from tests.serve.conftest import client_of, png, uploaded, video
from texturevlm import vlm

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def told(answer):
    """What two equal calls have in common: not the time, nor the name of the answer."""
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"] != "application/json":
        return answer.content
    found = answer.json()
    if "choices" in found:
        return found["choices"][0]["message"], found["usage"]
    return {name: value for name, value in found.items() if name != "milliseconds"}


@pytest.mark.parametrize("device", DEVICES)
def test_calls_at_once_give_what_each_gives_alone(device):
    network, processor = models.built("qwen3_vl")
    model = models.asked(vlm.adapt(network.to(device), processor), budget=24, relevance="none")
    with client_of(model=model, name="tiny", device=torch.device(device)) as client:
        page = uploaded(client, png(320, 240))["id"]
        url = "data:image/png;base64," + base64.b64encode(png(320, 240)).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what is the total ?"}]
        chat = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "relevance": "none"}
        ways = {"budget": 12, "relevance": "none", "patch": 16}
        calls = [("/api/plan", {"id": page, **ways, "question": "total", "relevance": "scout", "budget": budget})
                 for budget in (8, 12, 20)]  # fmt: skip
        calls += [("/api/plan", {"id": page, **ways, "gaze": [40, 50]})]
        calls += [("/api/plan", {"id": page, **ways, "trail": [[40, 50, 1]]})]
        calls += [("/v1/chat/completions", {**chat, "budget": budget}) for budget in (12, 24)]
        if find_spec("av"):  # the machine with the GPU has none
            calls += [("/api/clip", {"id": uploaded(client, video(side=96), "clip.mp4")["id"], **ways})]
        alone = [told(client.post(path, json=body)) for path, body in calls]
        with ThreadPoolExecutor(8) as threads:
            together = list(threads.map(lambda call: told(client.post(call[0], json=call[1])), calls * 3))
        assert all(one == alone[index % len(calls)] for index, one in enumerate(together))
        assert (model.graphs.fixed is not None) == (device == "cuda")  # there the answers come from graphs
