"""The plug-in for lmms-eval against stubs of its interface, as version 0.7.2 has it."""

import abc
import sys
import tomllib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from tests.evaluate.reader import saved

POST = "\nAnswer the question using a single word or phrase."
OPTIONS = {"max_new_tokens": 4, "temperature": 0, "until": ["\n\n"]}


@dataclass(frozen=True)
class ModelManifest:
    model_id: str
    simple_class_path: str | None = None
    chat_class_path: str | None = None
    aliases: tuple[str, ...] = ()


class CacheHook:
    def __init__(self):
        self.kept = []

    def add_partial(self, attribute, request, result):
        self.kept.append((attribute, request, result))


class lmms(abc.ABC):
    is_simple = True

    def __init__(self):
        self._rank, self._world_size, self.cache_hook, self.task_dict = 0, 1, CacheHook(), {}

    @abc.abstractmethod
    def loglikelihood(self, requests): ...

    @abc.abstractmethod
    def generate_until(self, requests): ...

    @abc.abstractmethod
    def generate_until_multi_round(self, requests): ...

    @classmethod
    def create_from_arg_string(cls, arguments, additional):
        given = dict(one.split("=", 1) for one in arguments.split(","))
        numbers = {name: int(value) if value.isdigit() else value for name, value in given.items()}
        return cls(**numbers, **{name: value for name, value in additional.items() if value is not None})


@dataclass
class Instance:
    arguments: tuple

    @property
    def args(self):
        return self.arguments


@pytest.fixture
def plugin(monkeypatch):
    """What lmms-eval loads by the entry point, as it loads it."""
    stubs = {
        "lmms_eval": {},
        "lmms_eval.api": {},
        "lmms_eval.api.model": {"lmms": lmms},
        "lmms_eval.models": {},
        "lmms_eval.models.registry_v2": {"ModelManifest": ModelManifest},
    }
    for name, content in stubs.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "texturevlm_lab.evaluate.lmms_model", raising=False)
    project = tomllib.loads((Path(__file__).parents[2] / "lab" / "pyproject.toml").read_text())
    module, function = project["project"]["entry-points"]["lmms_eval.models"]["texturevlm"].split(":")
    manifest = getattr(import_module(module), function)()
    assert manifest.model_id == "texturevlm" and manifest.simple_class_path is None
    place, name = manifest.chat_class_path.rsplit(".", 1)
    return getattr(import_module(place), name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("reader"))


@pytest.fixture
def loaded(plugin, folder):
    arguments = f"pretrained={folder},budget=6,relevance=none,dtype=float32"
    found = plugin.create_from_arg_string(arguments, {"batch_size": "2", "max_batch_size": None, "device": "cpu"})
    found.task_dict = {"docvqa": {"val": documents()}}
    return found


def documents():
    images = [Image.new("RGB", (240, 160), (255, 255 - 60 * n, 90 * n)) for n in range(3)]
    found = [{"image": image, "question": f"What is word {n}?"} for n, image in enumerate(images)]
    return [*found, {"image": None, "question": "Who?"}]


def messages_of(document):
    image = [] if document["image"] is None else [{"type": "image", "url": document["image"]}]
    return [{"role": "user", "content": [*image, {"type": "text", "text": document["question"] + POST}]}]


def request(number, options=OPTIONS):
    return Instance((f"{number}", messages_of, dict(options), number, "docvqa", "val"))


def test_it_is_a_chat_model_of_lmms_eval(plugin):
    assert issubclass(plugin, lmms) and plugin.is_simple is False and not plugin.__abstractmethods__


def test_answers_come_in_the_order_of_the_requests(loaded):
    """Whatever is answered together: the same as asked one by one by `ask`."""
    longer = {**OPTIONS, "max_new_tokens": 6}
    requests = [request(2), request(0, longer), request(3), request(1), request(0)]
    said = loaded.generate_until(requests)
    alone = [loaded.generate_until([one])[0] for one in requests]
    assert said == alone and len(set(said)) >= 4
    assert len(loaded.cache_hook.kept) == 10 and loaded.cache_hook.kept[0][0] == "generate_until"
    document = documents()[2]
    # `ask` chooses by the whole text; without relevance that makes no difference.
    question = document["question"] + POST
    assert said[0] == loaded.vlm.ask(document["image"], question, max_new_tokens=4)


def test_tokens_are_chosen_by_the_question_alone(loaded, monkeypatch):
    from texturevlm.ask.session import ImageSession

    asked = []
    real = ImageSession.placements
    monkeypatch.setattr(ImageSession, "placements", lambda self, text, how: asked.append(text) or real(self, text, how))
    loaded.generate_until([request(0)])
    assert asked == ["What is word 0?"]
    alone = import_module("texturevlm_lab.evaluate.lmms_model").question_alone
    vizwiz = "What colour?\nWhen the provided information is insufficient, respond with 'Unanswerable'." + POST
    assert alone(vizwiz) == "What colour?"
    assert alone("Answer the question in the image.") == "Answer the question in the image."


def test_options_of_a_task(loaded):
    module = import_module("texturevlm_lab.evaluate.lmms_model")
    assert module._sampling({"temperature": 0, "top_p": 0.9, "num_beams": 1}) == {}
    assert module._sampling({"temperature": 0.5, "top_p": 0.9}) == {"do_sample": True, "temperature": 0.5, "top_p": 0.9}
    assert module._sampling({"temperature": 0.5, "do_sample": False, "num_beams": 2}) == {"num_beams": 2}
    whole = loaded.generate_until([request(0, {**OPTIONS, "max_new_tokens": 12})])[0]
    cut = whole[len(whole) // 2]
    short = loaded.generate_until([request(0, {**OPTIONS, "max_new_tokens": 12, "until": [cut]})])[0]
    assert short == whole.split(cut)[0].strip() != whole


def test_what_it_cannot_do_is_said(plugin, loaded, folder):
    video = [{"role": "user", "content": [{"type": "video", "url": "a.mp4"}, {"type": "text", "text": "?"}]}]
    with pytest.raises(ValueError, match="texturevlm: messages must have images only, got 1 videos"):
        loaded.generate_until([Instance(("", lambda _: video, OPTIONS, 0, "docvqa", "val"))])
    with pytest.raises(NotImplementedError, match="tasks must generate answers"):
        loaded.loglikelihood([])
    with pytest.raises(NotImplementedError, match="one round"):
        loaded.generate_until_multi_round([])
    with pytest.raises(ValueError, match="batch_size must be a whole number from 1, got 'auto'"):
        plugin(str(folder), batch_size="auto")
