"""`compile`: the same patches as the stages called one by one; on a GPU from a graph, kept for a few sizes."""

from collections import Counter

import pytest
import torch

from tests.channels.test_fused import picture
from tests.conftest import worst
from texturevlm import Texture, choose_tokens, sample
from texturevlm.capture import Look, compile
from texturevlm.ops import backend as backends
from texturevlm.ops.cuda import channels, information, mip, probe
from texturevlm.ops.cuda import select as selection

COLUMNS = ("centre", "ddx", "ddy", "score", "valid", "source")


def by_stages(image: torch.Tensor, budget: int, **options):
    texture = Texture((image,)).mipmapped()
    allocation = choose_tokens(texture, budget=budget, allocator="cascade", relevance="none", **options)
    return sample(texture, allocation)


def same(got, wanted) -> bool:
    columns = all(torch.equal(getattr(got.allocation, name), getattr(wanted.allocation, name)) for name in COLUMNS)
    return columns and torch.equal(got.pixels, wanted.pixels)


def test_on_a_cpu_it_is_the_plain_call_and_says_so():
    look = compile((200, 300), 40, patch=16, device="cpu", stages=5)
    image = picture(2, 200, 300)
    got = look(image)
    assert got.pixels.shape == (2, 40, 3, 16, 16) and same(got, by_stages(image, 40, patch=16, stages=5))
    assert look.reason == "graphs are for a GPU, and the image is on cpu" and look.captured == []
    assert same(look(image[0]), by_stages(image[:1], 40, patch=16, stages=5))
    assert look(torch.randint(0, 255, (3, 90, 70), dtype=torch.uint8)).pixels.shape == (1, 40, 3, 16, 16)


def test_any_allocator_runs_through_it():
    look = compile((200, 300), 20, "resize", patch=16, device="cpu")
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
        Look(4, "cascade", patch=8, relevance="none")("page.png")


def test_a_look_takes_few_launches(monkeypatch):
    made: Counter[str] = Counter()

    def launch(source, name, device, blocks, parameters, *, early=False, **define):
        made[name] += 1

    for module in (mip, channels, information, selection, probe):
        monkeypatch.setattr(module, "launch", launch)
    monkeypatch.setattr(backends, "no_kernel_because", lambda tensor: None)
    compile((1024, 1024), 273, device="cpu")(torch.zeros(2, 3, 1024, 1024))
    maps = ["text_strokes", "text_letters", "text_lines", "channels_text", "channels_coarse"]
    maps += ["information_losses", "information_maps"]
    selected = ["select_sums", "select_tokens", "select_best", "sample_patches"]
    assert made == {"mip_even": 3, "mip_any": 1, **dict.fromkeys([*maps, *selected], 1)}


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(1024, 1024), (425, 551), (200, 300), (1700, 2200)])
@pytest.mark.parametrize("batch", [1, 3])
def test_captured_equals_uncaptured(size, batch):
    look = compile(size, 273, batch=batch)
    assert look.reason is None and look.captured == [(batch, 3, *size)]
    for _ in range(3):
        image = picture(batch, *size).cuda()
        got, wanted = look(image), by_stages(image, 273)
        assert look.reason is None and same(got, wanted)
    assert got.allocation.valid.sum() >= min(100, size[0] * size[1] // 2048) * batch


@pytest.mark.gpu
def test_the_gpu_gives_what_the_cpu_gives():
    image = picture(1, 900, 700)
    here, there = by_stages(image, 128), compile((900, 700), 128)(image.cuda())
    close = (here.allocation.centre - there.allocation.centre.cpu()).abs().amax(-1) < 1e-3
    assert close.float().mean() > 0.9
    assert worst(there.pixels.cpu()[close], here.pixels[close]) < 1e-3


@pytest.mark.gpu
def test_what_is_returned_is_not_overwritten():
    look = compile((256, 256), 32)
    first_image = picture(1, 256, 256).cuda()
    first = look(first_image)
    kept = first.pixels.clone()
    look(torch.rand(1, 3, 256, 256, device="cuda"))
    assert torch.equal(first.pixels, kept)


@pytest.mark.gpu
def test_graphs_are_bounded_and_never_required():
    look = compile((128, 128), 16, graphs=2)
    for side in (160, 192, 160):
        image = picture(1, side, side).cuda()
        assert same(look(image), by_stages(image, 16))
    assert look.captured == [(1, 3, 192, 192), (1, 3, 160, 160)]
    plain = compile((128, 128), 16, graphs=0)
    image = picture(1, 128, 128).cuda()
    assert same(plain(image), by_stages(image, 16)) and plain.reason == "graphs=0 was asked for"
    searching = compile((128, 128), 16, "layers")
    searching(image)
    assert "allocator 'layers' searches on the CPU" in str(searching.reason)


@pytest.mark.gpu
def test_nothing_waits_for_the_gpu():
    image = picture(1, 512, 512).cuda()
    look = compile((512, 512), 64)
    by_stages(image, 64), look(image)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        by_stages(image, 64), look(image)
    finally:
        torch.cuda.set_sync_debug_mode("default")
