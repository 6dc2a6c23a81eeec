"""`compile`: the same patches as the stages called one by one; on a GPU from a graph, kept for a few sizes."""

from collections import Counter
from importlib import import_module

import pytest
import torch
from PIL import Image, ImageDraw

from tests.channels.test_fused import picture
from tests.conftest import worst
from texturevlm import Texture, TokenConfig, choose_tokens, sample
from texturevlm.allocate import ALLOCATORS
from texturevlm.channels import fused as channels
from texturevlm.ops import backend as backends
from texturevlm.ops import cover
from texturevlm.ops import lookup_kernel as probe
from texturevlm.ops import mip_kernel as mip
from texturevlm.placement.captured import CompiledChooser, captured_question, compile, no_graph_because
from texturevlm.relevance import find_relevance, find_scorer, information
from texturevlm.scout import Question, encode
from texturevlm_lab.allocators import select as selection

CAPTURABLE = [name for name, allocator in ALLOCATORS.items() if allocator.capture != "never"]
COLUMNS = ("centre", "ddx", "ddy", "score", "valid", "source")


def by_stages(image: torch.Tensor, budget: int, allocator: str = "cascade", relevance: str = "none", **options):
    texture = Texture((image,)).mipmapped()
    allocation = choose_tokens(texture, budget=budget, allocator=allocator, relevance=relevance, **options)
    return sample(texture, allocation)


def paper(batch: int, height: int, width: int) -> torch.Tensor:
    """White pages with lines of strokes on some of them: `auto` takes them for pages, and `picture` for photographs."""
    image = torch.ones(batch, 3, height, width)
    strokes = (torch.rand(batch, 1, height, -(-width // 3)) > 0.4).float().repeat_interleave(3, -1)[..., :width]
    lines = (torch.arange(height) % 24 < 10) & (torch.rand(batch, 1, -(-height // 24)).gt(0.5)).repeat_interleave(
        24, -1
    )[..., :height]
    return image * (1 - 0.9 * strokes * lines[..., None] * (torch.arange(width) < width * 0.8))


def chooser(budget: int, allocator: str, **how) -> CompiledChooser:
    """What `compile` makes, without a size that is captured at once."""
    return CompiledChooser(TokenConfig(budget, allocator, turn=0.0, **how), 8)


def same(got, wanted) -> bool:
    columns = all(torch.equal(getattr(got.allocation, name), getattr(wanted.allocation, name)) for name in COLUMNS)
    return columns and torch.equal(got.pixels, wanted.pixels)


def test_on_a_cpu_it_is_the_plain_call_and_says_so():
    look = compile((200, 300), 40, "cascade", patch=16, relevance="none", device="cpu", stages=5)
    image = picture(2, 200, 300)
    got = look(image)
    assert got.pixels.shape == (2, 40, 3, 16, 16) and same(got, by_stages(image, 40, patch=16, stages=5))
    assert look.reason == "graphs are for a GPU, and the image is on cpu" and look.captured == []
    assert same(look(image[0]), by_stages(image[:1], 40, patch=16, stages=5))
    assert look(torch.randint(0, 255, (3, 90, 70), dtype=torch.uint8)).pixels.shape == (1, 40, 3, 16, 16)


def test_any_allocator_runs_through_it():
    look = compile((200, 300), 20, "resize", patch=16, relevance="none", device="cpu")
    image = picture(1, 200, 300)
    allocation = choose_tokens(Texture.open(image), budget=20, patch=16, allocator="resize", relevance="none")
    assert torch.equal(look(image).allocation.boxes, allocation.boxes)


def test_bad_input_is_named():
    for options, message in [
        ({"size": (0, 5)}, r"compile: height must be at least 1, got 0"),
        ({"budget": 0}, r"compile: budget must be at least 1, got 0"),
        ({"allocator": "best"}, r"compile: allocator must be one of .*cascade.*, got 'best'"),
        ({"relevance": "magic"}, r"compile: relevance must be one of auto, words, .*, got 'magic'"),
        ({"graphs": -1}, r"compile: graphs must be at least 0, got -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            compile(**{"size": (64, 64), "device": "cpu", **options})
    with pytest.raises(TypeError, match=r"compile: image must be a tensor \(\[B,\] C, H, W\), got str"):
        chooser(4, "cascade", patch=8, relevance="none")("page.png")


@pytest.fixture
def made(monkeypatch) -> Counter[str]:
    """What is launched, by name; nothing is."""
    made: Counter[str] = Counter()

    def launch(source, name, device, blocks, parameters, *, early=False, **define):
        made[name] += 1

    for module in (mip, channels, information, selection, probe, cover, import_module("texturevlm.allocate.density")):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(backends, "no_kernel_because", lambda tensor: None)
    return made


MAPS = {"mip_even": 3, "mip_any": 1} | dict.fromkeys(
    ("text_strokes", "text_letters", "text_lines", "channels_text", "channels_coarse"), 1
)
MAPS |= {"information_losses": 1, "information_maps": 1, "sample_patches": 1}
COVER = {"cover_begin": 1, "cover_spans": 3, "cover_gains": 1, "cover_reach": 2, "cover_tokens": 1}
LAUNCHES = {
    "cascade": dict.fromkeys(("select_sums", "select_tokens", "select_best"), 1),
    "layers": COVER,
    "fit": {"cover_begin": 1, "cover_spans": 2, "cover_tokens": 1},
    "auto": {**COVER, **dict.fromkeys(("density_scale", "density_rows", "density_table", "density_tiles"), 1)},
    "resize": {},
}


@pytest.mark.parametrize("allocator", LAUNCHES)
def test_a_look_takes_few_launches(made, allocator):
    compile((1024, 1024), 273, allocator, relevance="none", device="cpu")(torch.zeros(2, 3, 1024, 1024))
    assert made == {**MAPS, **LAUNCHES[allocator]}


def test_what_can_be_captured(made, monkeypatch):
    """On tensors that pass for a GPU's."""
    image = torch.zeros(1, 3, 64, 64)
    on_gpu = type("OnGpu", (), {"device": torch.device("cuda"), "shape": image.shape})()

    def reason(allocator, budget=9, scorer="none", **options):
        return no_graph_because(
            on_gpu, find_scorer("compile", scorer), TokenConfig(budget, allocator, turn=0.0, options=options)
        )

    for allocator in CAPTURABLE:
        assert reason(allocator) is None
    assert set(CAPTURABLE) == {"cascade", "auto", "layers", "fit", "density", "resize"}
    assert reason("cascade", scorer="scout") is None and reason("auto", scorer="auto") is None
    wanted = "relevance 'words' is not made on the GPU alone; scout, prior, channels, none are"
    assert reason("cascade", scorer="words") == wanted
    assert reason("layers", overview=0.2) is None
    others = ", ".join(name for name in CAPTURABLE if name != "cascade")
    assert reason("pyramid") == f"allocator 'pyramid' searches on the CPU; {others} do not"
    assert reason("layers", budget=2000).endswith("searches on the CPU: the kernels take up to 1024 tokens, not 2000")
    assert reason("auto", overview=0.2) is None
    assert "the reference was asked for" in reason("fit", backend="reference")
    monkeypatch.setattr(backends, "no_kernel_because", lambda tensor: "it is an abacus")
    assert reason("auto").endswith("it is an abacus") and reason("cascade") is None


def test_a_graph_belongs_to_the_scorer_that_the_question_calls_for(monkeypatch):
    """As if a CPU could capture: the captured function runs eagerly."""
    monkeypatch.setattr("texturevlm.placement.captured.no_graph_because", lambda *given: None)
    image, question = lettered(), "What is the total?"
    texture = Texture((image,)).mipmapped()
    look = chooser(12, "layers", patch=16, relevance="auto")
    for asked, scorer in (("", "prior"), (question, "scout"), ("?", "prior")):
        wanted = choose_tokens(texture, asked, budget=12, patch=16, allocator="layers", relevance=scorer)
        assert same(look(image, asked), sample(texture, wanted))
    assert look.captured == [tuple(image.shape)] * 2 and look.reason == "graphs are for a GPU, and this runs on cpu"
    for name, unasked in (("scout", "none"), ("channels", "channels")):
        for asked, wanted in ((question, (name, len(Question._fields))), ("", (unasked, 0))):
            scorer, encoded = captured_question(find_scorer("compile", name), asked)
            assert (scorer.name, len(encoded)) == wanted


def test_channels_have_a_graph_with_a_question_and_one_without(monkeypatch):
    """As if a CPU could capture."""
    monkeypatch.setattr("texturevlm.placement.captured.no_graph_because", lambda *given: None)
    image, question = lettered(), "What is the total?"
    texture = Texture((image,)).mipmapped()
    look = chooser(12, "layers", patch=16, relevance="channels")
    for asked in ("", question, ""):
        wanted = choose_tokens(texture, asked, budget=12, patch=16, allocator="layers", relevance="channels")
        assert same(look(image, asked), sample(texture, wanted))
    assert look.captured == [tuple(image.shape)] * 2


@pytest.mark.gpu
def test_captured_channels_equal_the_uncaptured():
    image = torch.cat([lettered(), picture(1, 240, 320)]).cuda()
    look = compile((240, 320), 12, "auto", patch=16, batch=2, relevance="channels")
    for asked in ("", "What is the total?"):
        for shown in (image, image.flip(3)):
            texture = Texture((shown,)).mipmapped()
            options = {"budget": 12, "patch": 16, "allocator": "auto", "relevance": "channels"}
            wanted = sample(texture, choose_tokens(texture, encode([asked]) if asked else "", **options))
            got = look(shown, asked)
            assert look.reason is None
            # Sums over regions are by atomic additions: no two runs are equal to the last bit.
            assert worst(got.pixels, wanted.pixels) < 0.05


def lettered() -> torch.Tensor:
    """A page with two words, which the scout expects different questions about."""
    page = Image.new("RGB", (320, 240), "white")
    ImageDraw.Draw(page).text((20, 20), "Total 1975", fill="black", font_size=24)
    ImageDraw.Draw(page).text((180, 160), "Invoice", fill="black", font_size=24)
    return Texture.open(page).levels[0]


@pytest.mark.gpu
def test_without_a_question_a_graph_holds_what_is_usually_asked():
    image = torch.cat([lettered(), picture(1, 240, 320)]).cuda()
    look = compile((240, 320), 12, "auto", patch=16, batch=2)
    for shown in (image, image.flip(3), image):
        got, wanted = look(shown), by_stages(shown, 12, "auto", "prior", patch=16)
        assert look.reason is None and same(got, wanted)
    assert not same(got, by_stages(image, 12, "auto", "none", patch=16))
    assert look.captured == [(2, 3, 240, 320)]


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1024, 1024), (425, 551), (200, 300), (1700, 2200)])
@pytest.mark.parametrize("batch", [1, 3])
def test_captured_equals_uncaptured(size, batch):
    look = compile(size, 273, "cascade", relevance="none", batch=batch)
    assert look.reason is None and look.captured == [(batch, 3, *size)]
    for _ in range(3):
        image = picture(batch, *size).cuda()
        got, wanted = look(image), by_stages(image, 273)
        assert look.reason is None and same(got, wanted)
    assert got.allocation.valid.sum() >= min(100, size[0] * size[1] // 2048) * batch


@pytest.mark.gpu
@pytest.mark.parametrize("allocator", ["layers", "auto", "fit", "density", "resize"])
@pytest.mark.parametrize("size", [(1024, 1024), (425, 551), (50, 70), (2200, 1700)])
@pytest.mark.parametrize("budget", [1, 64, 273])
def test_every_captured_allocator_equals_the_uncaptured(allocator, size, budget):
    look = compile(size, budget, allocator, relevance="none", batch=2)
    assert look.reason is None
    for make in (picture, paper, picture):
        image = torch.cat([make(1, *size), paper(1, *size)]).cuda()
        got, wanted = look(image), by_stages(image, budget, allocator)
        assert look.reason is None and same(got, wanted)
    assert got.allocation.valid.any(1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1024, 1024), (2200, 1700)])
def test_the_search_on_the_gpu_is_the_search_on_the_cpu(size):
    """The same maps, the same tokens."""
    texture = Texture((torch.cat([paper(1, *size), picture(1, *size)]).cuda(),)).mipmapped()
    relevance = find_relevance(texture, relevance="none")
    assert relevance.photograph.tolist() == [False, True]
    for budget in (1, 64, 273):
        there = ALLOCATORS["auto"](texture, relevance, budget=budget, patch=32)
        here = ALLOCATORS["auto"](texture, relevance, budget=budget, patch=32, backend="reference")
        assert torch.equal(there.boxes[0], here.boxes[0]) and torch.equal(there.valid, here.valid)
        assert worst(there.boxes[1], here.boxes[1]) < 1e-2


@pytest.mark.gpu
def test_the_gpu_gives_what_the_cpu_gives():
    image = picture(1, 900, 700)
    here, there = by_stages(image, 128), compile((900, 700), 128, "cascade", relevance="none")(image.cuda())
    close = (here.allocation.centre - there.allocation.centre.cpu()).abs().amax(-1) < 1e-3
    assert close.float().mean() > 0.9
    assert worst(there.pixels.cpu()[close], here.pixels[close]) < 1e-3


@pytest.mark.gpu
def test_what_is_returned_is_not_overwritten():
    look = compile((256, 256), 32, "cascade", relevance="none")
    first_image = picture(1, 256, 256).cuda()
    first = look(first_image)
    kept = first.pixels.clone()
    look(torch.rand(1, 3, 256, 256, device="cuda"))
    assert torch.equal(first.pixels, kept)


@pytest.mark.gpu
def test_graphs_are_bounded_and_never_required():
    look = compile((128, 128), 16, "cascade", relevance="none", graphs=2)
    for side in (160, 192, 160):
        image = picture(1, side, side).cuda()
        assert same(look(image), by_stages(image, 16))
    assert look.captured == [(1, 3, 192, 192), (1, 3, 160, 160)]
    plain = compile((128, 128), 16, "cascade", relevance="none", graphs=0)
    image = picture(1, 128, 128).cuda()
    assert same(plain(image), by_stages(image, 16)) and plain.reason == "graphs=0 was asked for"
    searching = compile((128, 128), 16, "pyramid")
    searching(image)
    assert "allocator 'pyramid' searches on the CPU" in str(searching.reason)


@pytest.mark.gpu
@pytest.mark.parametrize("relevance", ["none", "prior", "channels"])
@pytest.mark.parametrize("allocator", CAPTURABLE)
def test_nothing_waits_for_the_gpu(allocator, relevance):
    image = torch.cat([picture(1, 512, 512), paper(1, 512, 512)]).cuda()
    look = compile((512, 512), 64, allocator, relevance=relevance, batch=2)
    by_stages(image, 64, allocator, relevance=relevance), look(image)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        by_stages(image, 64, allocator, relevance=relevance), look(image)
    finally:
        torch.cuda.set_sync_debug_mode("default")
