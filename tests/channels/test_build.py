"""build: exactly the layers asked for, in order, in range, shrinking as declared, local where they say so."""

import gc

import pytest
import torch
from PIL import Image

from texturevlm import Texture
from texturevlm.channels import CHANNELS, PRESETS, build
from texturevlm.channels.registry import EMBEDDING_LAYERS
from texturevlm.ops import mipmap

WITHOUT_MODEL = [name for name in PRESETS["all"] if name not in EMBEDDING_LAYERS]


def picture(height=70, width=90, batch=1):
    """Stripes, a disc and a ramp: something for every layer."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    stripes = ((x // 3) % 2).float()
    disc = ((x - width / 2) ** 2 + (y - height / 2) ** 2 < (min(height, width) / 3) ** 2).float()
    image = torch.stack([stripes * 0.5 + 0.2, disc, x / width])
    return Texture.open(image[None].repeat(batch, 1, 1, 1))


def test_a_layer_keeps_its_index():
    assert [channel.layer for channel in CHANNELS.values()] == list(range(len(CHANNELS)))
    places = {"red": 0, "edges": 3, "motion": 7, "saliency": 8, "cluster_id": 12, "fixation_history": 17}
    places |= {"embedding_0": 18, "embedding_15": 33, "edge_distance": 34, "gaze": 37, "boundaries": 38, "text": 39}
    assert {name: CHANNELS[name].layer for name in places} == places
    shrink = {"motion": "max", "cluster_id": "nearest", "edge_distance": "min", "text": "max", "red": "mean"}
    assert {name: CHANNELS[name].reduce for name in shrink} == shrink


def test_presets():
    assert len(PRESETS["mvp"]) == 13
    assert set(PRESETS["mvp"]) < set(PRESETS["fast"]) < set(PRESETS["all"])
    assert PRESETS["all"] == tuple(CHANNELS) and len(CHANNELS) >= 40


@pytest.mark.parametrize("channels", ["mvp", "fast", WITHOUT_MODEL, ["text", "red", "cluster_id"]])
def test_exactly_the_layers_asked_for_in_order_and_in_range(channels):
    texture = picture(batch=2)
    built = build(texture, channels)
    names = PRESETS[channels] if isinstance(channels, str) else tuple(channels)
    assert built.names == names
    assert built.levels[0].shape == (2, len(names), 70, 90)
    assert built.levels[-1].shape[2:] == (1, 1)
    for name in names:
        low, high = CHANNELS[name].range
        layer = built.channel(name)
        assert torch.isfinite(layer).all() and layer.min() >= low and layer.max() <= high, name


def test_layers_shrink_as_they_declare():
    built = build(picture(), WITHOUT_MODEL)
    for index, name in enumerate(built.names):
        alone = mipmap(built.levels[0][:, index : index + 1], reduce=CHANNELS[name].reduce)
        for level, wanted in zip(built.levels, alone, strict=True):
            assert torch.equal(level[:, index : index + 1], wanted), name


def test_colour_is_the_image_itself():
    texture = picture()
    assert torch.equal(build(texture, ["red", "green", "blue"]).levels[0], texture.levels[0])


def test_a_layer_whose_input_was_not_given_is_zero_and_one_that_was_is_not():
    texture = picture()
    names = [name for name, channel in CHANNELS.items() if channel.needs and channel.cost != "model"]
    assert not build(texture, names).levels[0].any()
    before = build(Texture.open(texture.levels[0].flip(-1)), ["red", "green", "blue", "saliency", "attention"])
    ones = torch.full((1, 5, 4), 0.5)
    given = {"relevance": ones, "fixations": ones, "attention": ones, "gaze": ones}
    built = build(texture, names, previous=before, **given)
    for name in ("motion", "previous_saliency", "previous_relevance", "fixation_history", "attention", "gaze"):
        assert built.channel(name).any(), name
    assert torch.equal(built.channel("gaze"), torch.full((1, 70, 90), 0.5))


def test_motion_is_what_changed():
    texture = picture()
    moved = texture.levels[0].clone()
    moved[:, :, 10:20, 30:40] = 1 - moved[:, :, 10:20, 30:40]
    motion = build(Texture.open(moved), ["motion"], previous=build(texture, "mvp")).channel("motion")
    assert motion[0, 10:20, 30:40].min() > 0
    motion[0, 10:20, 30:40] = 0
    assert not motion.any()


def test_a_frame_before_without_colours_says_nothing_of_motion():
    texture = picture()
    assert not build(texture, ["motion"], previous=build(texture, ["red", "blue", "text"])).levels[0].any()


def test_what_is_no_number_in_a_map_counts_as_zero():
    gaze = torch.tensor([[[0.5, float("nan")]]])
    got = build(picture(8, 8), ["gaze"], gaze=gaze)
    assert torch.equal(got.levels[0], build(picture(8, 8), ["gaze"], gaze=gaze.nan_to_num(0.0)).levels[0])


def test_embeddings_without_a_model_say_what_to_pass():
    with pytest.raises(ValueError, match=r"build: channels asks for embedding_3, which needs encoder=DenseEncoder"):
        build(picture(), ["red", "embedding_3"])
    with pytest.warns(UserWarning, match=r"build: the embedding layers are zero"):
        built = build(picture(20, 30), "all")
    assert not built.levels[0][:, 18:34].any() and built.levels[0].shape[1] == len(CHANNELS)


@pytest.mark.parametrize("name", [name for name in WITHOUT_MODEL if CHANNELS[name].reach is not None])
def test_a_changed_pixel_acts_no_further_than_declared(name):
    reach = CHANNELS[name].reach
    height, width = 64, 2 * reach + 96
    before = torch.rand(1, 3, height, width)
    after = before.clone()
    after[:, :, :, :16] = torch.rand(1, 3, height, 16)
    one, other = (build(Texture.open(image), [name]).levels[0] for image in (before, after))
    changed = (one != other).any(1).any(1).nonzero()
    assert changed.numel() == 0 or changed[:, -1].max() < 16 + reach


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (5, 3), (40, 160), (2, 300)])
def test_awkward_sizes(size):
    built = build(Texture.open(torch.rand(3, *size)), WITHOUT_MODEL)
    assert built.levels[0].shape[2:] == size and torch.isfinite(built.levels[0]).all()


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_a_constant_image_has_no_structure(value):
    built = build(Texture.open(torch.full((3, 60, 80), value)), WITHOUT_MODEL)
    for name in ("edges", "edges_inverted", "high_pass", "low_pass", "saliency", "text"):
        assert built.channel(name).abs().max() < 1e-4, name
    assert built.channel("edge_distance").min() == 1


@pytest.mark.parametrize("mode", ["RGBA", "P", "L", "CMYK", "I;16", "1", "LA"])
def test_every_kind_of_file(tmp_path, mode):
    image = Image.effect_noise((40, 30), 80)
    path = tmp_path / f"picture.{'tif' if mode in ('CMYK', 'I;16') else 'png'}"
    (image.convert("I;16") if mode == "I;16" else image.convert(mode)).save(path)
    assert build(Texture.open(path), "mvp").levels[0].shape == (1, 13, 30, 40)


def test_a_coarser_base_keeps_positions():
    texture = picture(64, 96)
    coarse = build(texture, ["red", "x"], base=2)
    assert coarse.size == (64, 96) and coarse.levels[0].shape[2:] == (16, 24)
    assert torch.equal(coarse.channel("red"), mipmap(texture.levels[0])[2][:, 0])


def test_bad_input_is_named():
    texture = picture()
    with pytest.raises(
        ValueError, match=r"build: channels must be one of mvp, fast, all, or a list of names, got 'most'"
    ):
        build(texture, "most")
    with pytest.raises(ValueError, match=r"build: channels must be different names .*; got unknown 'edgse'"):
        build(texture, ["red", "edgse"])
    with pytest.raises(
        ValueError, match=r", or a preset \(mvp, fast, all\); got unknown 'fasst' \(did you mean fast\?\)"
    ):
        build(texture, ["fasst"])
    for channels in (["red", "red"], [], None, [3], [["red"]], {"red", "x"}):
        with pytest.raises(ValueError, match=r"build: channels must be different names"):
            build(texture, channels)
    with pytest.raises(TypeError, match=r"build: texture must be a Texture \(Texture.open makes one\), got Tensor"):
        build(texture.levels[0])
    with pytest.raises(TypeError, match=r"build: previous must be a Texture from build, got Tensor"):
        build(texture, previous=texture.levels[0])
    with pytest.raises(TypeError, match=r"build: gaze must be a tensor \(1, h, w\), got list"):
        build(texture, ["gaze"], gaze=[[0.0]])
    with pytest.raises(ValueError, match=r"build: gaze must be \(1, h, w\), got \(1, 0, 4\)"):
        build(texture, ["gaze"], gaze=torch.rand(1, 0, 4))
    with pytest.raises(ValueError, match=r"build: texture must hold red, green and blue, or grey, got channel_0"):
        build(Texture.open(torch.rand(5, 8, 8)), "mvp")
    with pytest.raises(ValueError, match=r"build: gaze must be \(1, h, w\), got \(2, 4, 4\)"):
        build(texture, ["gaze"], gaze=torch.rand(2, 4, 4))
    with pytest.raises(ValueError, match=r"build: base must be between 0 and 6, got 9"):
        build(texture, "mvp", base=9)
    with pytest.raises(ValueError, match=r"build: previous must start at \(70, 90\)"):
        build(texture, "mvp", previous=picture(8, 8))
    with pytest.raises(ValueError, match=r"build: text must be one of strokes, ocr, got 'tesseract'"):
        build(texture, ["text"], text="tesseract")


def test_building_100_images_leaves_memory_flat():
    resource = pytest.importorskip("resource")
    gc.collect()
    for _ in range(10):
        build(picture(66, 80), WITHOUT_MODEL)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for index in range(100):  # the layers of one are 0.6 megabytes
        build(picture(60 + index % 7, 80), WITHOUT_MODEL)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # kilobytes
