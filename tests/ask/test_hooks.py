"""What changes a model while it runs, from outside: by object, by name, and by a name that is not installed."""

from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest
import torch

from tests.ask import models
from texturevlm import registry, vlm
from texturevlm.ask import load_vlm
from texturevlm.vlm import ModelHook

SHORT = {"max_new_tokens": 3, "return_details": True}


@dataclass(frozen=True)
class Scaled(ModelHook):
    """A third party's hook: what the language model reads is multiplied."""

    by: float

    options: ClassVar[tuple[str, ...]] = ("scale",)

    @classmethod
    def of(cls, function, options, usual=None):
        return cls(options["scale"])

    @contextmanager
    def run(self, adapter, *, endings=None):
        def scaled(module, args, kwargs):
            return args, {**kwargs, "inputs_embeds": kwargs["inputs_embeds"] * self.by}

        hook = adapter.language_of(adapter.model).register_forward_pre_hook(scaled, with_kwargs=True)
        try:
            yield None
        finally:
            hook.remove()


class Grey(ModelHook):
    """One that changes what the tokens show."""

    def pixels(self, adapter, texture, chosen, relevance, read):
        return torch.full((1, read.budget, 3, adapter.side, adapter.side), 0.5)


def asked(model, image=None, **options):
    image = models.noise(128, 128) if image is None else image
    found = model.ask(image, models.QUESTION, relevance="none", **{**SHORT, **options})
    return found.logprobs


@pytest.fixture(scope="module")
def adapter():
    return vlm.adapt(*models.built("qwen3_vl"))


@pytest.mark.parametrize("captured", [False, True])
def test_an_object_changes_one_question_or_all(adapter, captured):
    plain = models.asked(adapter, budget=12, captured=captured)
    dense = asked(plain)
    changed = asked(plain, hooks=[Scaled(3.0)])
    assert changed != pytest.approx(dense, abs=1e-4)
    assert plain.reasons == (["a model that scale changes is captured only while it decodes"] if captured else [])
    assert asked(plain, hooks=[Scaled(1.0)]) == pytest.approx(dense, abs=1e-4)
    assert asked(plain) == pytest.approx(dense, abs=1e-4)
    always = models.asked(adapter, budget=12, hooks=[Scaled(3.0)], captured=captured)
    assert asked(always) == pytest.approx(changed, abs=1e-4) and "Scaled(by=3.0)" in repr(always)
    with pytest.raises(ValueError, match="ask: looks must be 1 or 2 with scale, got 'auto'"):
        asked(always, looks="auto")
    with pytest.raises(TypeError, match="ask: hooks must be ModelHooks, got 'scale'"):
        asked(plain, hooks=["scale"])


def test_pixels_of_a_hook_are_what_the_model_reads(adapter):
    """Of any image the same; a clip, whose tokens show several frames, refuses them."""
    plain = models.asked(adapter, budget=12, allocator="resize")
    images = models.noise(128, 128), models.noise(128, 128, seed=1)
    same, other = ([asked(plain, one, hooks=hooks) for one in images] for hooks in ([Grey()], []))
    assert same[0] == same[1] != pytest.approx(other[0], abs=1e-4) and other[0] != other[1]
    with pytest.raises(ValueError, match="ask: hooks must leave the pixels of a video, got Grey"):
        asked(plain, torch.rand(4, 3, 64, 64), hooks=[Grey()], fps=2)


def test_another_package_adds_a_hook_by_name(adapter, monkeypatch):
    monkeypatch.setattr(registry, "plug_ins", lambda group: {"scale": EntryPoint("scale", f"{__name__}:Scaled", group)})
    plain = models.asked(adapter, budget=12)
    assert asked(plain, scale=3.0) == asked(plain, hooks=[Scaled(3.0)])
    assert asked(models.asked(adapter, budget=12, scale=3.0)) == asked(plain, scale=3.0)


def test_what_stays_in_a_model_cannot_be_given_to_a_question(adapter):
    with pytest.raises(ValueError, match="ask: attention must be given to load_vlm, which changes the model, got "):
        asked(models.asked(adapter, budget=12), attention="hierarchical")


@pytest.mark.parametrize(
    "options", [{"reduce": "tome"}, {"keep": 4}, {"attention": "hierarchical"}, {"tower_attention": "window"}], ids=str
)
def test_without_the_lab_one_line_says_what_to_install(options, adapter, monkeypatch):
    monkeypatch.setattr(registry, "plug_ins", lambda group: {})
    ((name, value),) = options.items()
    said = rf"{name}={value!r} comes with the lab: pip install \./lab"
    with pytest.raises(ImportError, match=f"^load_vlm: {said}$"):
        load_vlm("nowhere/at-all", **options)
    with pytest.raises(ImportError, match=f"^VLM: {said}$"):
        models.asked(adapter, **options)
    plain = models.asked(adapter, budget=12)
    with pytest.raises(ImportError, match=f"^ask: {said}$"):
        plain.ask("gone.png", models.QUESTION, **options)
    assert asked(plain, **dict.fromkeys(options))  # None: not given


def test_without_the_lab_tokens_are_not_merged(adapter, monkeypatch):
    monkeypatch.setattr(registry, "plug_ins", lambda group: {})
    for function, call in (("VLM", lambda: models.asked(adapter, tokens="merged")), ("load_vlm", None)):
        with pytest.raises(ImportError, match=rf"^{function}: tokens='merged' comes with the lab: pip install \./lab$"):
            call() if call else load_vlm("nowhere/at-all", tokens="merged")
