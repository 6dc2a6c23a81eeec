"""build by our kernels: the same layers as the reference, in an emulator here and on a GPU where there is one."""

import sys
import warnings
from collections import Counter
from functools import partial

import pytest
import torch

from tests.conftest import TOLERANCE, captured, poison, worst
from tests.emulator import replace_launch
from texturevlm import Texture
from texturevlm.channels import CHANNELS, PRESETS, build, fused, structure, text
from texturevlm.channels import structure as saliency
from texturevlm.channels.build import EDGE_THRESHOLD, Source
from texturevlm.channels.registry import EDGE_DISTANCE_LIMIT, EMBEDDING_LAYERS
from texturevlm.cuda.struct import definitions
from texturevlm.ops import backend as backends
from texturevlm.ops import distance, mipmap
from texturevlm.ops.distance import distance_field
from texturevlm.ops.segment import boundaries, region_statistics, seed_grid, superpixels

WITHOUT_MODEL = tuple(name for name in PRESETS["all"] if name not in EMBEDDING_LAYERS)
SIZES = [(1, 1), (1, 40), (40, 1), (37, 50), (130, 70), (64, 300)]
LARGE = [*SIZES, (1024, 1024), (425, 551), (1080, 1920), (3, 5000)]
EXACT = {"red", "green", "blue", "x", "y", "cluster_id", "boundaries", "fixation_history", "gaze", "attention"}
# A surround that is nearly flat has a variance near 0, the difference of two numbers near 1, over the square of the
# noise, 1e-4: there a rounding of 6e-8 acts a thousandfold. The reference in float32 is further off than this.
LOOSER = {"edges": 3e-4, "edges_inverted": 3e-4, "saliency": 1e-5, "text": 1e-5}


def picture(batch: int, height: int, width: int, device: str = "cpu") -> torch.Tensor:
    """Smooth blobs of several sizes, and stripes for the text map."""
    image = torch.zeros(batch, 3, height, width, device=device)
    for blobs in (2, 5, 17):
        coarse = torch.rand(batch, 3, blobs, blobs, device=device)
        image += torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear") / 3
    across = torch.arange(width, device=device)
    image[..., height // 3 : height // 2 + 1, :] += 0.4 * (across // 3 % 2 * (across % 40 < 33))
    return image.clamp(0, 1)


def truth(image: torch.Tensor, previous: Texture | None, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The layers that are no search, by the specification in float64."""
    levels = mipmap(image.double(), backend="reference")
    given = dict.fromkeys(("relevance", "fixations", "attention", "gaze"))
    source = Source(levels, previous, given, None, None, None, "strokes", "reference")
    searched = {"edge_distance", *fused.CLUSTERS}
    return {name: source.layer(name) for name in names if name not in searched}


def compare(image: torch.Tensor, names: tuple[str, ...], previous: Texture | None = None) -> Texture:
    built = build(Texture.open(image), list(names), previous=previous, backend="cuda")
    assert built.names == names
    for name, wanted in truth(image, previous, names).items():
        limit = 1e-7 if name in EXACT else LOOSER.get(name, TOLERANCE["cuda", torch.float32])
        assert worst(built.channel(name), wanted) <= limit, name
    if {"edge_distance", "edges", "edges_inverted"} <= set(names):
        mask = built.channel("edges") + built.channel("edges_inverted") > EDGE_THRESHOLD
        wanted = distance_field(mask, backend="reference").clamp(max=EDGE_DISTANCE_LIMIT) / EDGE_DISTANCE_LIMIT
        assert worst(built.channel("edge_distance"), wanted) < 1e-6
    if set(fused.CLUSTERS) <= set(names):
        compare_clusters(image, built)
    wanted = mipmap(built.levels[0].double(), reduce=built.reduce, backend="reference")
    for level, exact in zip(built.levels, wanted, strict=True):
        assert worst(level, exact) < TOLERANCE["cuda", torch.float32] * max(1.0, float(exact.max()))
    return built


def compare_clusters(image: torch.Tensor, built: Texture) -> None:
    height, width = image.shape[2:]
    ids = built.channel("cluster_id").long()
    assert (ids == superpixels(image, count=fused.REGIONS, backend="reference")).double().mean() > 0.999
    rows, columns = seed_grid(height, width, fused.REGIONS)
    share, centroid = region_statistics(ids, rows * columns, backend="reference")
    assert worst(built.channel("cluster_size"), share.gather(1, ids.flatten(1)).view_as(ids)) < 1e-6
    at = centroid.gather(1, ids.flatten(1)[..., None].expand(-1, -1, 2)).view(*ids.shape, 2)
    x, y = torch.arange(width, device=ids.device) + 0.5, torch.arange(height, device=ids.device)[:, None] + 0.5
    away = torch.hypot(x - at[..., 0], y - at[..., 1]) / max(height, width)
    assert worst(built.channel("cluster_distance"), away.clamp(max=1)) < 1e-6
    assert torch.equal(built.channel("boundaries"), boundaries(ids, backend="reference"))


@pytest.fixture
def emulated(emulated, monkeypatch):
    """Superpixels have their own tests and are not emulated."""

    def regions(image, *, count, backend):
        return superpixels(image, count=count, backend="reference")

    monkeypatch.setattr(fused, "superpixels", regions)


@pytest.fixture
def recorded(monkeypatch):
    """How often each kernel would have been started."""
    made: Counter[str] = Counter()

    def launch(source, name, device, blocks, parameters, *, early=False, **define):
        assert parameters and blocks > 0
        made[name] += 1

    replace_launch(monkeypatch, launch)
    monkeypatch.setattr(backends, "no_kernel_because", lambda tensor: None)
    return made


@pytest.mark.parametrize("size", SIZES)
def test_every_layer_of_noise(emulated, size):
    compare(torch.rand(2, 3, *size), WITHOUT_MODEL)


@pytest.mark.parametrize("size", SIZES)
def test_every_layer_of_a_picture_with_a_frame_before(emulated, size):
    before = Texture.open(picture(2, *size))
    previous = build(before, ["green", "saliency", "red", "attention", "blue"], attention=torch.rand(2, 3, 4))
    image = picture(2, *size)
    built = compare(image, WITHOUT_MODEL, previous)
    assert built.channel("motion").any()
    if min(size) > 30:
        assert built.channel("text").max() > 0.3


def test_text_of_an_image_that_no_four_texels_can_be_read_from_at_once(emulated):
    memory = torch.empty(1 + 3 * 40 * 64)
    image = memory[1:].view(1, 3, 40, 64).copy_(picture(1, 40, 64))
    assert image.data_ptr() % 16
    got, wanted = (build(Texture((one,)), ["text"], backend="cuda").levels[0] for one in (image, image.clone()))
    assert torch.equal(got, wanted) and got.max() > 0.3


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(emulated, preset):
    image = picture(1, 50, 70)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of embeddings that are zero
        got, wanted = (build(Texture.open(image), preset, backend=name) for name in ("cuda", "reference"))
    assert got.names == wanted.names == PRESETS[preset] and got.reduce == wanted.reduce
    for index, name in enumerate(got.names):
        if name != "edge_distance":  # a pixel on the threshold may fall on either side of it
            assert worst(got.levels[0][:, index], wanted.levels[0][:, index]) < 2e-4, name


@pytest.mark.parametrize("name", WITHOUT_MODEL)
def test_each_layer_alone(emulated, name):
    image = picture(1, 40, 45)
    together = build(Texture.open(image), list(WITHOUT_MODEL), backend="cuda")
    assert torch.equal(build(Texture.open(image), [name], backend="cuda").levels[0][:, 0], together.channel(name))


@pytest.mark.parametrize("value", [0.0, 0.7, 1.0])
def test_a_constant_image_has_no_structure(emulated, value):
    built = build(Texture.open(torch.full((3, 50, 70), value)), list(WITHOUT_MODEL), backend="cuda")
    for name in ("edges", "edges_inverted", "high_pass", "low_pass", "saliency", "text"):
        assert built.channel(name).abs().max() < 1e-6, name
    assert built.channel("edge_distance").min() == 1


@pytest.mark.parametrize("size", [(1, 1), (1, 200), (150, 1), (130, 97), (70, 300)])
@pytest.mark.parametrize("share", [0.0, 0.0003, 0.01, 0.2, 1.0])
def test_distances_up_to_a_limit(emulated, size, share):
    mask = torch.rand(2, *size) < share
    words = -(-size[1] // 32)
    padded = torch.nn.functional.pad(mask, (0, 32 * words - size[1])).view(2, size[0], words, 32)
    bits = (padded.long() << torch.arange(32)).sum(-1).to(torch.int32)
    field = torch.full((2, *size), float("nan"))
    distance.distance_within_cuda(bits, field)
    wanted = distance_field(mask, backend="reference").clamp(max=EDGE_DISTANCE_LIMIT) / EDGE_DISTANCE_LIMIT
    assert worst(field, wanted) < 1e-6


def test_what_no_kernel_makes_is_put_in_its_place(emulated, monkeypatch):
    image = picture(2, 40, 50)
    given = {"gaze": torch.rand(2, 5, 6), "relevance": torch.rand(2, 9, 3), "text": "ocr"}
    monkeypatch.setattr(sys.modules[build.__module__], "text_map_ocr", lambda image: image[:, 0] * 0.5)
    names = ["gaze", "text", "red", "previous_relevance", "attention", "cluster_size"]
    got, wanted = (build(Texture.open(image), names, **given, backend=name) for name in ("cuda", "reference"))
    for index, name in enumerate(names):
        assert worst(got.levels[0][:, index], wanted.levels[0][:, index]) < 1e-6, name
    assert torch.equal(got.channel("text"), image[:, 0] * 0.5) and not got.channel("attention").any()


@pytest.mark.parametrize(
    "texture",
    [
        Texture.open(torch.rand(1, 1, 45, 33)),
        Texture.open(torch.rand(2, 3, 45, 33).half()),
        Texture.open(torch.rand(2, 3, 45, 33).to(memory_format=torch.channels_last)),
        Texture.open(torch.rand(2, 3, 45, 33)).mipmapped(),
        Texture((torch.rand(2, 5, 45, 33),), ("blue", "depth", "red", "green", "mask")),
    ],
    ids=["grey", "half", "channels last", "mips", "among others"],
)
@pytest.mark.parametrize("base", [None, 1])
def test_every_kind_of_texture(emulated, texture, base):
    got, wanted = (build(texture, "mvp", base=base, backend=name) for name in ("cuda", "reference"))
    assert got.size == wanted.size
    for index, name in enumerate(got.names):
        if name != "edge_distance":
            assert worst(got.levels[0][:, index], wanted.levels[0][:, index]) < 2e-4, name


def test_a_build_takes_few_launches(recorded):
    texture = Texture.open(torch.zeros(1, 3, 1024, 1024))
    build(texture, "mvp")
    assert recorded == {"mip_even": 3, "channels_near": 1, "channels_coarse": 1, "distance_within": 1}
    recorded.clear()
    build(texture, ["red", "x", "gaze"])
    assert recorded == {"channels_near": 1, "mip_even": 2}
    recorded.clear()
    build(texture, ["text"])
    assert recorded == {"mip_even": 3, "text_strokes": 1, "text_letters": 1, "text_lines": 1, "channels_text": 1}


def test_gradients_are_the_references_business(recorded):
    image = torch.rand(1, 3, 20, 30, requires_grad=True)
    (gradient,) = torch.autograd.grad(build(Texture((image,)), ["high_pass"]).levels[0].sum(), image)
    assert gradient.any() and not recorded["channels_near"]
    with pytest.raises(ValueError, match=r"build: backend 'cuda' cannot run here: the kernels have no gradients"):
        build(Texture((image,)), ["high_pass"], backend="cuda")
    with torch.no_grad():
        build(Texture((image,)), ["high_pass"])
    assert recorded["channels_near"] == 1


def test_bad_input_is_named():
    texture = Texture.open(torch.rand(2, 3, 20, 30))
    with pytest.raises(ValueError, match=r"build: backend must be one of auto, cuda, reference, got 'texture'"):
        build(texture, "mvp", backend="texture")
    with pytest.raises(ValueError, match=r"build: backend 'cuda' cannot run here: the tensor is on cpu"):
        build(texture, "mvp", backend="cuda")
    with pytest.raises(ValueError, match=r"build: previous must hold 2 images like texture, got 1"):
        build(texture, "mvp", previous=build(Texture.open(torch.rand(1, 3, 20, 30)), "mvp"))


def test_the_kernels_constants_are_the_specifications():
    python = {
        "channels.cu": {
            **{name: getattr(structure, name) for name in ("SURROUND", "DETAIL", "NOISE")},
            "EDGE_THRESHOLD": EDGE_THRESHOLD,
        },
        "coarse.cu": {
            **{name: getattr(saliency, name) for name in ("COLOUR", "EPSILON")},
            "SALIENCY_HALF": saliency.SALIENCY_HALF,
            "TEXT_HALF": text.TEXT_HALF,
        },
        "text.cuh": {
            **{name: getattr(text, name) for name in ("CONTRAST", "RULED", "LETTER")},
            "GAP": text._GAP,
            "MARGIN": text._MARGIN,
            **dict(zip(("DASH_ROWS", "DASH_COLUMNS"), text.DASH)),
        },
        "text.cu": {"FULL": text.FULL, "FAINT": text._FAINT, "SPARSE": text.SPARSE},
        "distance.cu": {"LIMIT": EDGE_DISTANCE_LIMIT},
    }
    assert fused.TEXT_LEVELS == text.TEXT_SCALES and distance.LIMIT == EDGE_DISTANCE_LIMIT
    assert len(CHANNELS) <= fused.MOST_LAYERS and fused.REGIONS < fused.MOST_REGIONS // 2
    for source, wanted in python.items():
        known = definitions(source).constants
        assert {name: known[name] for name in wanted} == pytest.approx(wanted), source


@pytest.mark.gpu
@pytest.mark.parametrize("size", LARGE)
@pytest.mark.parametrize("kind", ["noise", "picture"])
def test_on_the_gpu(size, kind):
    batch = 2 if size[0] * size[1] < 1 << 20 else 1
    make = picture if kind == "picture" else lambda *shape, device: torch.rand(shape[0], 3, *shape[1:], device=device)
    before = Texture.open(make(batch, *size, device="cuda"))
    previous = build(before, ["green", "saliency", "red", "attention", "blue"])
    poison()
    compare(make(batch, *size, device="cuda"), WITHOUT_MODEL, previous)
    compare(make(batch, *size, device="cuda"), PRESETS["mvp"])


@pytest.mark.gpu
def test_it_is_chosen_captured_and_replayed_on_the_gpu():
    image = picture(1, 256, 320, "cuda")
    texture = Texture((image,))
    # The reference waits for the GPU and could not be captured.
    graph, replayed = captured(partial(build, texture, list(WITHOUT_MODEL)))
    for _ in range(3):
        image.copy_(picture(1, 256, 320, "cuda"))
        graph.replay()
        wanted = build(texture, list(WITHOUT_MODEL), backend="cuda")
        for got, again in zip(replayed.levels, wanted.levels, strict=True):
            assert torch.equal(got, again)


@pytest.mark.gpu
def test_building_200_images_on_the_gpu_leaves_memory_flat():
    for side in range(200, 207):
        build(Texture.open(picture(1, side, 300, "cuda")), list(WITHOUT_MODEL))
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for index in range(200):
        build(Texture.open(picture(1, 200 + index % 7, 300, "cuda")), list(WITHOUT_MODEL))
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == allocated
    assert torch.cuda.memory_reserved() <= reserved + (4 << 20)
