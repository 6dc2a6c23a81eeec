"""What a GPU captures runs as captured code here: kernels in the emulator, graphs by their double on a CPU.

Each script gives what it gives without graphs. The double finds host reads, and whatever a graph would not notice
(tests/graphs.py). The launches are those that were recorded in `launches.json`, one by one: source, kernel, grid,
definitions, and a digest of the parameters in which addresses are masked. Options are all given, so that a default that
changes changes nothing here.
"""

import hashlib
import re
import struct
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.ask import models
from tests.channels.test_fused import picture
from tests.corpus.test_choose import decoded
from tests.graphs import is_address
from tests.recorded import compare
from tests.video.moving import crossing
from texturevlm import vlm
from texturevlm.channels import PRESETS
from texturevlm.corpus.choose import Chooser
from texturevlm.corpus.recipe import Recipe
from texturevlm.cuda.compiler import PACKAGE_FOLDER
from texturevlm.placement import Finer, TokenConfig
from texturevlm.placement.captured import CompiledChooser
from texturevlm.relevance import Balance
from texturevlm.types import COLUMNS
from texturevlm.video import StreamConfig, TokenStream
from texturevlm.video.update import CARRIED

LAUNCHES = Path(__file__).with_name("launches.json")
SIZE, QUESTION = (64, 96), "what is the total ?"
# How often each file hands a function to a graph; a new one belongs into a script below.
OWNERS = {
    "lab/texturevlm_lab/bench/scout.py": 1,
    "lab/texturevlm_lab/bench/video.py": 1,
    "texturevlm/corpus/choose.py": 2,
    "texturevlm/cuda/graph.py": 1,
    "texturevlm/placement/captured.py": 1,
    "texturevlm/video/tokens.py": 1,
    "texturevlm/video/update_gpu.py": 1,
    "texturevlm/vlm/captured.py": 2,
    "texturevlm/vlm/captured_decode.py": 1,
    "texturevlm/vlm/growing.py": 2,  # tests/video/test_conversation.py
}


@pytest.fixture
def traced(emulated, monkeypatch):
    """The launches, as lines."""
    lines = []

    def note(source, name, blocks, parameters, options):
        whole = parameters + bytes(-len(parameters) % 8)
        masked = [1 if is_address(word) else word for (word,) in struct.iter_unpack("=Q", whole)]
        digest = hashlib.sha256(struct.pack(f"={len(masked)}Q", *masked)).hexdigest()[:12]
        given = " ".join(f"{key}={value}" for key, value in sorted(options.items()))
        lines.append(f"{source} {name} {blocks} {given} {digest}")

    monkeypatch.setattr(emulated, "watchers", [note])
    return lines


@pytest.fixture(scope="module")
def qwen():
    return vlm.adapt(*models.built("qwen3_vl"))


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch):
    for module in ("texturevlm.ask.generation", "texturevlm_lab.rivals.hooks.captured"):
        monkeypatch.setattr(f"{module}.CapturedPrefill", partial(vlm.CapturedPrefill, compiled=False))


def tokens(**options):
    """A config whose every field is given."""
    given = {
        "budget": 12, "allocator": "auto", "relevance": "none", "balance": "even", "turn": 0, "finer": Finer(),
        "patch": 16, "options": {}, **options,
    }  # fmt: skip
    assert {*given} == {one.name for one in fields(TokenConfig)}
    return TokenConfig(**given)


def same(ours, theirs):
    for name in COLUMNS:
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), msg=name)


@pytest.mark.parametrize("relevance", ["none", "channels"])
def test_compile(traced, captured_on_cpu, relevance):
    how = tokens(allocator="layers", relevance=relevance, options={"overview": 0.25})
    look, plain = (CompiledChooser(how, graphs) for graphs in (2, 0))
    for question in (QUESTION, "where is the date ?"):
        image = picture(1, 32, 48)
        got = look(image, question)
        assert look.reason is None
        if relevance == "none":  # channels take a question as text for more than as numbers
            wanted = plain(image, question)
            same(got.allocation, wanted.allocation)
            torch.testing.assert_close(got.pixels, wanted.pixels)
    assert captured_on_cpu.functions == ["CapturedChoice._parts"]
    compare(LAUNCHES, f"compile, {relevance}", traced)


def test_ask(traced, captured_on_cpu, qwen):
    """The choice from a graph at the third image of a size, then tower, prefill and decoding."""
    options = {"budget": 12, "allocator": "auto", "relevance": "scout", "turn": 0.0, "tokens": "chosen", "looks": 1}
    asked, plain = (models.asked(qwen, captured=one, **options) for one in (True, False))
    for seed in range(3):
        image = models.noise(*SIZE, seed=seed)
        image[:, :, : 24 * seed] = 0.9
        found = [one.ask(image, QUESTION, max_new_tokens=4, return_details=True) for one in (asked, plain)]
        same(*(one.placements[0].allocation for one in found))
        assert found[0].tokens == found[1].tokens
        assert found[0].logprobs == pytest.approx(found[1].logprobs, abs=1e-4)
    assert asked.reasons == []
    model = {"CapturedPrefill._run_tower", "CapturedPrefill._run_prefill", "CapturedDecode._step"}
    assert set(captured_on_cpu.functions) == {"CapturedChoice._parts", *model}
    assert captured_on_cpu.replays.count("CapturedChoice._parts") == 2
    compare(LAUNCHES, "ask", traced)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen2_5_vl"])
@pytest.mark.parametrize("how", ["together", "stride", "visionzip"])
def test_other_questions_to_a_captured_model(captured_on_cpu, family, how):
    adapter = vlm.adapt(*models.built(family))
    options = {"budget": 12, "allocator": "auto", "relevance": "none"}
    asked, plain = (models.asked(adapter, captured=one, **options) for one in (True, False))
    for turn in range(2):
        images = [models.noise(64, 96 + 16 * index, seed=index + turn) for index in range(2)]
        given = ([[one] for one in images], [QUESTION, QUESTION + " and the ?"]) if how == "together" else images[:1]
        more = {} if how == "together" else {"question": QUESTION, "reduce": how, "keep": 6}
        found, wanted = (one.ask(*given, max_new_tokens=4, **more) for one in (asked, plain))
        assert found == wanted
    assert how == "visionzip" or asked.reasons == []  # which runs inside of the model: only decoding is captured
    assert "CapturedDecode._step" in captured_on_cpu.replays


def stream(**options):
    given = {
        "query": "", "relevance": "none", "balance": Balance(), "patch": 16, "channels": (), "tile": 32, "keyframe": 2,
        "hold": 0.0, "flow": "none", "rate": None, "fps": 25.0, "limit": 64, "refresh": 4, "interval": 1.0,
        "feedback": 0.1, "finer": Finer(), "device": "cpu", "encoder": None, "projection": None, **options,
    }  # fmt: skip
    assert {*given} == {one.name for one in fields(StreamConfig)} - {"tokens"} | {
        "relevance",
        "balance",
        "finer",
        "patch",
    }
    return TokenStream(SIZE, 12, "auto", **given)


def test_stream(traced, captured_on_cpu, monkeypatch):
    channels = tuple(name for name in PRESETS["fast"] if name not in CARRIED)
    one = stream(channels=channels)
    with monkeypatch.context() as plain:
        plain.setattr("texturevlm.cuda.graph.GRAPHS", {})
        other = stream(channels=channels)
    other.choice.captured = False
    for frame in crossing(SIZE, 4):
        got = one.step(frame)
        begun = len(traced)
        with monkeypatch.context() as plain:
            plain.setattr("texturevlm.cuda.graph.GRAPHS", {})
            wanted = other.step(frame)
        del traced[begun:]  # of the captured stream alone
        same(got.allocation, wanted.allocation)
        torch.testing.assert_close(got.patches.pixels, wanted.patches.pixels)
    assert set(captured_on_cpu.functions) == {"TokenChoice._graph.<locals>.work", "CapturedWork._run"}
    assert len(captured_on_cpu.replays) > 3
    compare(LAUNCHES, "stream", traced)


@pytest.mark.parametrize("relevance", ["scout", "prior"])
def test_corpus(traced, captured_on_cpu, relevance):
    given = {
        "source": "in", "kind": "images", "write": "patches", "format": "parquet", "model": "", "codebook": "",
        "code": "", "budget": 12, "patch": 16, "allocator": "auto", "relevance": relevance, "asked": relevance,
        "turn": 0, "questions": "", "buckets": 4, "batch": 2, "unit": 2, "decoder": "pillow", "device": "cpu",
    }  # fmt: skip
    assert {*given} == {one.name for one in fields(Recipe)} - {"version"}
    chooser = Chooser(Recipe(**given), torch.device("cpu"))
    plain = Chooser(Recipe(**given), torch.device("cpu"), keep_texture=True)
    for turn in range(2):
        images = [decoded(2 * turn + place, 30, 44, ("the total?", "a date?")[place]) for place in range(2)]
        got, wanted = (one(one.bucket(images[0]), images) for one in (chooser, plain))
        assert chooser.reason is None and plain.reason is not None
        assert np.allclose(got.table()[0], wanted.table()[0], atol=1e-3)
        assert int((got.pixels.int() - wanted.pixels.int()).abs().max()) <= 1
    assert captured_on_cpu.functions[:1] == ["Chooser._maps" if relevance == "prior" else "Chooser.parts"]
    compare(LAUNCHES, f"corpus, {relevance}", traced)


def test_a_batch_of_a_corpus_is_not_answered_by_the_graph_of_another_question(captured_on_cpu):
    """Channels read a question on the CPU: its graph would go on answering the first one."""
    given = {"budget": 12, "patch": 16, "allocator": "cascade", "relevance": "channels", "batch": 1}
    chooser = Chooser(Recipe("in", "images", **given), torch.device("cpu"))
    for question in ("what is the total?", "where is the photograph?"):
        image = decoded(0, 48, 64, question)
        alone = Chooser(chooser.recipe, torch.device("cpu"), keep_texture=True)
        got, wanted = (one(one.bucket(image), [image]) for one in (chooser, alone))
        assert np.allclose(got.table()[0], wanted.table()[0])
        assert "graph would go on answering the first one" in chooser.reason


def test_every_owner_of_a_graph_is_known():
    """Who hands a function to a graph is in a script above, in all tests of live streams, or is a benchmark."""
    made = re.compile(r"\b(?:(?<!class )Replay|_?kept\.find|prefills\.find|graphs\.find(?=\((?!asked)))\(")
    root = PACKAGE_FOLDER.parent
    paths = [*PACKAGE_FOLDER.rglob("*.py"), *(root / "lab").rglob("*.py")]
    counts = {str(path.relative_to(root)): len(made.findall(path.read_text())) for path in sorted(paths)}
    assert {name: count for name, count in counts.items() if count} == OWNERS
