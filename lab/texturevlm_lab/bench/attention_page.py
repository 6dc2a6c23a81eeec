"""An A4 page with all its tokens in a model: dense and hierarchical attention of both of its halves, end to end.

The model has Qwen3-VL-4B's architecture with random weights, which do not change the time. The vision tower, which
reads four patches per token, has rows of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from texturevlm.types import Texture
from texturevlm.vlm import CapturedDecode, PromptImage, own_grid
from texturevlm.vlm.captured_generate import KnownOf
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm.vlm.hook import running
from texturevlm_lab.attention import AttentionHook, AttentionOptions, LanguageAttention, VisionAttention
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.vlm_model import prompt_ids, random_model, their_first_token

A4, SMALL_PAGE = (3508, 2480), (256, 320)
MOST_STEPS = 256  # of decoding, while it is timed
FINE, WINDOWS = LanguageAttention(AttentionOptions()), VisionAttention(AttentionOptions(kind="window"))
FINE_TOWER = VisionAttention(FINE.detail)
TOWERS: dict[str, list[AttentionHook]] = {
    "dense": [],
    "hierarchical, 10% fine": [FINE_TOWER],
    "window": [WINDOWS],
}
WAYS: dict[str, list[AttentionHook]] = {
    "dense": [],
    "hierarchical, 10% fine": [FINE],
    "hierarchical, 10% fine, 4 layers share a choice": [LanguageAttention(AttentionOptions(share=4))],
    "hierarchical, 10% fine, the tower too": [FINE_TOWER, FINE],
    "hierarchical, 10% fine, the tower in windows": [WINDOWS, FINE],
    "dense, the tower in windows": [WINDOWS],
}


def add_page(report: Report) -> None:
    """Rows for the first token and for each further token."""
    adapter = random_model(report.device, small=report.quick)
    size = SMALL_PAGE if report.quick else A4
    texture = Texture((torch.rand(1, 3, *size, device=report.device),)).mipmapped()
    grid = own_grid(adapter, texture)
    (views,) = adapter.groups(PromptImage(texture, grid))
    tokens = len(views[0])
    inputs = adapter.assemble([prompt_ids(adapter, tokens)], views)
    work = f"page of {tokens} visual tokens, 4B model"
    calls: dict[str, int] = {}
    with torch.no_grad():
        for by, tower in TOWERS.items():
            _again(adapter, tower)
            report.add_call(work, f"vision tower alone, {by}", partial(adapter.embed, views), slow=True)
        for by, hooks in WAYS.items():
            _again(adapter, hooks)
            report.add_call(f"{work} → first token", by, partial(their_first_token, adapter, inputs), slow=True)
            if not any(isinstance(one, VisionAttention) for one in hooks):  # its work is over when a token follows
                step = next_token(adapter, inputs)
                report.add_call(f"{work}, each further token", by, step, slow=True)
                calls[by] = operations(step)
                del step  # its cache is large
                with running(adapter, hooks) as known:
                    decode, replayed = captured_next_token(adapter, inputs, known)
                replayed()
                assert decode.replay is not None
                how = "from a graph" if decode.replay.reason is None else f"no graph: {decode.replay.reason}"
                report.add_call(f"{work}, each further token", f"{by}, {how}", replayed)
    adapter.restore()
    listed = ", ".join(f"{count} ({by})" for by, count in calls.items())
    layers = len(adapter.language_of(adapter.model).layers)
    report.notes.append(f"Operations of PyTorch per further token in {layers} layers, Triton's beside: {listed}.  ")


def operations(call: Any) -> int:
    """How many operations of PyTorch Python calls: what an operation calls itself does not count."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    own = [one for one in seen.events() if one.name.startswith("aten::")]
    return sum(one.cpu_parent is None or not one.cpu_parent.name.startswith("aten::") for one in own)


def _again(adapter: QwenAdapter, hooks: Sequence[AttentionHook]) -> None:
    """Bind the adapter's model anew, so that it attends as given."""
    adapter.bind(adapter.restore())
    for hook in hooks:
        hook.attach(adapter)


def next_token(adapter: QwenAdapter, inputs: dict[str, Tensor]) -> Any:
    """One step of decoding behind the prompt, again and again from the same cache."""
    model, cache = adapter.model, _prefilled(adapter, inputs)
    following = inputs["input_ids"][:, -1:]

    @torch.no_grad()
    def step() -> int:
        logits: Tensor = model(input_ids=following, past_key_values=cache, use_cache=True).logits
        cache.crop(-1)
        return int(logits[0, -1].argmax())

    return step


def captured_next_token(
    adapter: QwenAdapter, inputs: dict[str, Tensor], known_of: KnownOf
) -> tuple[CapturedDecode, Any]:
    """The same from a graph, token after token, and what has that graph."""
    cache = _prefilled(adapter, inputs)
    known = known_of(cache, inputs)
    assert known is not None
    decode = CapturedDecode(adapter)
    decode.begin([part for layer in cache.layers for part in (layer.keys, layer.values)], known, MOST_STEPS)
    following = inputs["input_ids"][:, -1:]
    position = torch.full((3, 1, 1), cache.get_seq_length(), device=following.device)

    @torch.no_grad()
    def step() -> int:
        return int(decode(following, position)[0].argmax())

    return decode, step


def _prefilled(adapter: QwenAdapter, inputs: dict[str, Tensor]) -> Any:
    """The cache behind the prompt."""
    from transformers import DynamicCache

    cache = DynamicCache(config=adapter.model.config.get_text_config())
    adapter.model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache
