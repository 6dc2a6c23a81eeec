"""The public API: a snapshot, because a change here is a change for every user; and docs/api.md, whose examples run."""

import inspect
import re
from pathlib import Path

import pytest

import texturevlm as tv
from texturevlm import defaults

ROOT = Path(__file__).parent.parent
API = (ROOT / "docs" / "api.md").read_text()
OPERATIONS = {
    "channels_last": "levels",
    "lookup": "levels, points, lod, *, nearest, backend",
    "lookup_grad": "levels, points, ddx, ddy, *, max_anisotropy, nearest, backend",
    "mipmap": "image, *, levels, reduce, backend",
    "sample_patches": "levels, centre, ddx, ddy, *, patch, max_anisotropy, nearest, backend",
    "update_region": "levels, boxes, *, reduce, backend",
}
CLASSES = {
    "DeviceTexture": "levels, *, half, pack, nearest",
}
FUNCTIONS = {
    "attach": "model, processor, *, budget, allocator, relevance, turn",
    "choose_tokens": "texture, question, *, how, relevance, share, options",
    "compile": "size, budget, allocator, *, patch, relevance, turn, batch, device, graphs, options",
    "detach": "attached",
    "foveate": "size, *, fixation, budget, patch, M0, e0, cortical_magnification, device",
    "generate_mipmaps": "image, *, levels",
    "load_vlm": "model, *, budget, device, dtype, allocator, relevance, turn, tokens, looks, captured, hooks, options",
    "place": "picture, question, how, *, evidence, after",
    "prepare": "image, how, *, device, samples, angle",
    "rebuild": "texture, allocation, *, box, grey",
    "sample": "texture, allocation, *, backend",
    "sample_foveated": "texture, *, fixation, backend, options",
}


def spelled(function) -> str:
    words, options = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not options:
            words.append("*")
            options = True
        words.append(parameter.name)
    return ", ".join(words)


def test_public_names_are_listed_once_and_exist():
    assert sorted(tv.__all__) == sorted(tv._MODULES)
    assert set(tv.__all__) <= set(dir(tv))
    for name in tv.__all__:
        assert getattr(tv, name) is not None
    with pytest.raises(AttributeError, match="module 'texturevlm' has no attribute 'sampel'"):
        _ = tv.sampel


def test_operations():
    """Those that docs/api.md names; the others are for other rooms."""
    named = OPERATIONS | CLASSES
    assert {name: spelled(getattr(tv.ops, name)) for name in named} == named and set(named) <= set(tv.ops.__all__)


def test_functions():
    assert {name: spelled(getattr(tv, name)) for name in FUNCTIONS} == FUNCTIONS


def test_every_public_function_states_what_it_does():
    for owner, names in ((tv, tv.__all__), (tv.ops, OPERATIONS)):
        for name in names:
            if callable(getattr(owner, name)):
                assert inspect.getdoc(getattr(owner, name)), name


def test_one_option_has_one_default():
    wanted = {
        "budget": defaults.BUDGET,
        "patch": defaults.PATCH,
        "allocator": defaults.ALLOCATOR,
        "relevance": defaults.RELEVANCE,
    }
    for name in tv.__all__:
        if not callable(getattr(tv, name)):
            continue
        for parameter in inspect.signature(getattr(tv, name)).parameters.values():
            if parameter.name in wanted and isinstance(parameter.default, (int, str)):
                assert parameter.default == wanted[parameter.name], f"{name}({parameter.name}=…)"


def test_every_public_name_has_an_example():
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", API, re.DOTALL))
    for name in tv.__all__:
        assert re.search(rf"\btv\.{name}\b", blocks), f"docs/api.md has no example of {name}"
        assert re.search(rf"\*\*`{name}`\*\*", API), f"docs/api.md does not describe {name}"


def test_the_examples_run(tmp_path, monkeypatch):
    from PIL import Image

    from tests.ask import models
    from tests.ask.test_bad_input import save

    monkeypatch.chdir(tmp_path)
    folder = str(save("qwen3_vl", tmp_path / "model"))
    Image.open(ROOT / "examples" / "invoice.png").crop((700, 1000, 1240, 1300)).save("page.png")
    network, processor = models.built("qwen3_vl")
    names: dict[str, object] = {"network": network, "processor": processor}
    for match in re.finditer(r"```python\n(.*?)```", API, re.DOTALL):
        line = API[: match.start(1)].count("\n")
        code = match[1].replace("Qwen/Qwen3-VL-4B-Instruct", folder)
        exec(compile("\n" * line + code, "docs/api.md", "exec"), names)
