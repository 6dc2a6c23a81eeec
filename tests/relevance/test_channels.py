"""The scorer `channels`: it reads every channel, and what it reads moves the tokens."""

import math

import numpy as np
import pytest
import torch

import texturevlm as tv
from tests.evaluate.folders import write_page
from texturevlm.channels import CHANNELS, build
from texturevlm.relevance import ChannelScorer, find_relevance, image_maps
from texturevlm.relevance.channel_logits import (
    ALL_MOVES,
    CHANNEL_FEATURES,
    PRIOR,
    REGION_KEY,
    ChannelForm,
    cell_features,
    channel_layers,
    feature_names,
    load_form,
)
from texturevlm_lab.commands.weights import save_form
from texturevlm_lab.evaluate.objects import fine_tokens, painted


@pytest.fixture
def page(tmp_path):
    words = {f"word{n}": (20 + 110 * (n % 4), 20 + 60 * (n // 4)) for n in range(24)}
    write_page(tmp_path / "page.png", words, size=(400, 480))
    return tv.Texture.open(tmp_path / "page.png").mipmapped()


@pytest.fixture
def photograph():
    torch.manual_seed(0)
    image = torch.nn.functional.interpolate(torch.rand(1, 3, 24, 32), (384, 512), mode="bicubic").clamp(0, 1)
    return tv.Texture.open(image * 0.7 + torch.rand(1, 3, 384, 512) * 0.3).mipmapped()


def gaze(left):
    """A map of a person who looked at the left or at the right third."""
    seen = torch.zeros(1, 30, 30)
    seen[..., :10] = 1
    return seen if left else seen.flip(2)


def common(one, other):
    """The share of the area of the fine tokens of one allocation that fine tokens of another cover, too."""
    first, second = (painted(each.boxes[0][fine_tokens(each)].tolist(), each.size) for each in (one, other))
    assert first.any()
    return float((first & second).sum() / first.sum())


@pytest.mark.parametrize("kind", ["page", "photograph"])
def test_opposite_gaze_maps_move_the_tokens(kind, request):
    texture = request.getfixturevalue(kind)
    options = {"budget": 24, "patch": 16}
    looked = [tv.choose_tokens(texture, relevance=ChannelScorer(gaze=gaze(left)), **options) for left in (True, False)]
    assert common(*looked) < 0.5 and common(*reversed(looked)) < 0.5
    blind = [tv.choose_tokens(texture, relevance="none", **options) for _ in looked]
    assert common(*blind) == 1  # the measure: what is the same is all in common


def test_a_texture_that_holds_channels_is_read_as_it_is(page):
    given = build(page, [name for name in CHANNELS if CHANNELS[name].cost != "model"], gaze=gaze(True))
    mass = find_relevance(given, relevance="channels").mass
    wanted = find_relevance(page, relevance=ChannelScorer(gaze=gaze(True))).mass
    assert torch.allclose(mass, wanted, atol=1e-7)
    assert mass[..., : mass.shape[2] // 3].sum() > 0.8


def test_every_channel_is_used_as_the_registry_says():
    ways = {"trained": [], "stated": [], "regions": [], "question": []}
    for name, channel in CHANNELS.items():
        ways[channel.use].append(name)
    trained = {name.rpartition(".")[2] for name in CHANNEL_FEATURES} - {"salience", "legible_scale", "ink"}
    assert trained == {*ways["trained"]}
    assert set(ways["stated"]) == set(PRIOR) and ways["regions"] == [REGION_KEY]
    assert len(ways["question"]) == 16 and all(CHANNELS[name].needs == "encoder" for name in ways["question"])


@pytest.mark.parametrize("name", sorted(PRIOR))
def test_every_stated_weight_counts(name, page):
    """A channel that is 1 at the left changes the logits there by its weight; motion by less, the more moves."""
    scorer, maps = ChannelScorer(), image_maps(page)
    plain = scorer.prepare(page)
    layers = plain.layers
    left = torch.zeros_like(layers.levels[0][:, :1])
    left[..., : left.shape[3] // 10] = 1
    with_it = tv.Texture((torch.cat([layers.levels[0], left], 1),), (*layers.names, name), layers.size)
    terms = scorer.terms(plain._replace(layers=with_it.mipmapped(), kept={}), "", maps)[name]
    still = 1 - float((terms != 0).float().mean()) / ALL_MOVES
    assert 0.5 < still < 0.7
    wanted = PRIOR[name] * (still if name == "motion" else 1)
    assert terms[..., 0].mean() == pytest.approx(wanted) and terms[..., -1].abs().max() < 1e-6
    assert name not in scorer.terms(plain, "", maps)


def test_features_are_texels_of_the_cells_and_means_over_regions(page):
    layers, maps = channel_layers(page), image_maps(page)
    names = feature_names([name for name in layers.names if name != REGION_KEY])
    found = dict(zip(names, cell_features(layers, maps).unbind(-1)))
    level = next(one for one in layers.levels if one.shape[2:] == maps.grid)
    edges = level[:, layers.names.index("edges")].flatten(1)
    assert torch.allclose(found["here.edges"], edges, atol=1e-5)
    assert torch.allclose(found["squared.edges"], edges.square(), atol=1e-5)
    regions = level[:, layers.names.index(REGION_KEY)].flatten(1).long()
    inside = regions == regions[0, 100]
    assert float(found["region.edges"][0, 100]) == pytest.approx(float(edges[inside].mean()), abs=1e-5)
    assert found["wide.edges"].std() < found["here.edges"].std()


def test_the_terms_add_up_to_the_relevance(page):
    scorer, maps = ChannelScorer(kind="chart"), image_maps(page)
    reading = scorer.prepare(page)
    query, _ = scorer.score(reading, "word7", maps)
    total = sum(scorer.terms(reading, "word7", maps).values())
    assert torch.allclose(query.log() - query.log().max(), total - total.max(), atol=1e-3)
    assert query.sum() == pytest.approx(1, abs=1e-4)
    assert "question" not in scorer.terms(reading, "", maps)


def test_the_question_steers_a_page(tmp_path):
    boxes = write_page(tmp_path / "page.png", {"Total": (30, 30), "Address": (300, 300)}, size=(360, 460))
    texture = tv.Texture.open(tmp_path / "page.png")
    scorer, maps = ChannelScorer(), image_maps(texture)
    reading = scorer.prepare(texture)
    shares = {}
    for word, (x0, y0, x1, y1) in boxes.items():
        query = scorer.score(reading, word, maps)[0][0]
        rows, columns = (extent / cells for extent, cells in zip(texture.size, maps.grid))
        for other, (x0, y0, x1, y1) in boxes.items():
            part = query[int(y0 / rows) : math.ceil(y1 / rows), int(x0 / columns) : math.ceil(x1 / columns)]
            shares[word, other] = float(part.sum())
    assert shares["Total", "Total"] > shares["Address", "Total"]
    assert shares["Address", "Address"] > shares["Total", "Address"]


def test_each_image_of_a_batch_has_its_own_kind(page, photograph):
    small = torch.nn.functional.interpolate(page.levels[0], (384, 512))
    both = tv.Texture.open(torch.cat([small, photograph.levels[0]]))
    scorer, maps = ChannelScorer(), image_maps(both)
    assert maps.photograph.tolist() == [False, True]
    query, _ = scorer.score(scorer.prepare(both), "", maps)
    for kind, one, alone in zip(("page", "photograph"), query, both.split()):
        own = ChannelScorer(kind=kind)
        wanted, _ = own.score(own.prepare(alone), "", image_maps(alone))
        assert torch.allclose(one, wanted[0], atol=1e-6)


def test_mistakes_are_told(page, tmp_path):
    layers = build(page, ["red", "green", "blue", "edges"])
    with pytest.raises(ValueError, match=r"must hold the colours alone, or every channel .* lacks 'edges_inverted'"):
        find_relevance(layers, relevance="channels")
    full = build(page, [name for name in CHANNELS if CHANNELS[name].cost != "model"])
    with pytest.raises(ValueError, match="must hold colours alone where gaze is given"):
        find_relevance(full, relevance=ChannelScorer(gaze=gaze(True)))
    with pytest.raises(ValueError, match="kind must be one of auto, page, photograph, chart, got 'map'"):
        ChannelScorer(kind="map")
    with pytest.raises(ValueError, match=r"argument must be one of previous, relevance, .*, got 'glance'"):
        ChannelScorer(glance=1)
    with pytest.raises(FileNotFoundError, match=r"ChannelScorer: .*gone\.npz must be a file of weights"):
        ChannelScorer(weights=tmp_path / "gone.npz")
    with pytest.raises(FileNotFoundError, match="must be a file of weights, and is a folder"):
        ChannelScorer(weights=tmp_path)


def test_weights_of_another_registry_are_refused(tmp_path):
    form = ChannelForm()
    save_form(form, tmp_path / "own.safetensors")
    assert torch.equal(load_form(tmp_path / "own.safetensors").weight, form.weight)
    form.digest[3] += 1
    save_form(form, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other.safetensors must hold weights for this version's \d+ features"):
        ChannelScorer(weights=tmp_path / "other.safetensors")
    np.savez(tmp_path / "else.npz", anything=np.zeros(3))
    with pytest.raises(ValueError, match="must hold weights for this version's"):
        ChannelScorer(weights=tmp_path / "else.npz")


@pytest.mark.parametrize("moves, lifted", [("object", True), ("camera", False)])
def test_motion_counts_only_where_the_rest_stands_still(photograph, moves, lifted):
    image = photograph.levels[0]
    before = image.roll(7, 3) if moves == "camera" else image.clone()
    if moves == "object":
        before[..., 40:80, 40:80] = 1 - before[..., 40:80, 40:80]
    scorer = ChannelScorer(previous=build(tv.Texture((before,)), ["red", "green", "blue"]))
    maps = image_maps(photograph)
    added = scorer.terms(scorer.prepare(photograph), "", maps)["motion"]
    assert (float(added.amax()) > 0.5) == lifted and (float(added.abs().amax()) > 0) == lifted
