"""Batches: which images share one, and that sharing one changes nothing."""

import numpy as np
import pytest
import torch
from PIL import Image

import texturevlm as tv
from tests.corpus import picture
from texturevlm.corpus.choose import Chooser, DecodedImage, allocation_from, ladder, stretch
from texturevlm.corpus.recipe import Recipe
from texturevlm.relevance.scorers import ScoutScorer

CPU = torch.device("cpu")


def decoded(seed, height, width, question=""):
    return DecodedImage(str(seed), "", np.array(picture(seed, height, width)), question, {})


def chooser(**options):
    given = {"budget": 12, "patch": 8, "relevance": "none", "batch": 4, **options}
    device = torch.device(given.get("device", "cpu"))
    return Chooser(Recipe("in", "images", **given), device)


def test_the_ladder_goes_up_by_one_step_at_most():
    for steps in (1, 4, 8):
        found = [ladder(side, steps) for side in range(1, 2000)]
        assert all(one >= side for side, one in zip(range(1, 2000), found))
        assert all(one <= side * 2 ** (1 / steps) + 1 for side, one in zip(range(40, 2000), found[39:]))
        assert len(set(found)) <= 6 * steps + 2
    assert [ladder(side, 0) for side in (1, 17, 999)] == [1, 17, 999]


def test_stretching_moves_nothing_from_beyond_the_image():
    image = torch.full((2, 3, 12, 16), 9.0)
    image[0, :, :10, :14] = torch.rand(3, 10, 14)
    image[1, :, :12, :16] = torch.rand(3, 12, 16)
    found = stretch(image, torch.tensor([[10.0, 14.0], [12.0, 16.0]]))
    assert float(found.max()) <= 1 and torch.allclose(found[1], image[1], atol=1e-5)
    assert torch.allclose(found[0, :, 0, 0], image[0, :, 0, 0]) and torch.allclose(
        found[0, :, -1, -1], image[0, :, 9, 13]
    )


def test_images_of_similar_sizes_share_a_batch_and_keep_their_own_pixels():
    """Footprints of stretched images lie in the image, and cover as much of it as those of the image by itself."""
    images = [decoded(0, 64, 96), decoded(1, 62, 100), decoded(2, 60, 92)]
    small = chooser(buckets=4)
    (bucket,) = {small.bucket(image) for image in images}
    table, used = small(bucket, images).table()
    for place, image in enumerate(images):
        height, width = image.size
        found = allocation_from(torch.from_numpy(table[place][used[place]]), image.size, 8)
        assert float(found.boxes[..., 0::2].max()) <= width + 8 and float(found.boxes[..., 1::2].max()) <= height + 8
        assert float(found.coverage) == pytest.approx(1, abs=0.02)
    exact = chooser()
    assert len({exact.bucket(image) for image in images}) == 3


def test_a_batch_is_its_images():
    images = [decoded(seed, 48, 64) for seed in range(3)]
    one = chooser()
    bucket = one.bucket(images[0])
    together, used = one(bucket, images).table()
    for place, image in enumerate(images):
        alone, own = one(bucket, [image]).table()
        assert np.allclose(together[place], alone[0], atol=1e-4) and (used[place] == own[0]).all()


def test_questions_share_a_batch_where_the_scorer_takes_them_encoded():
    asked = [decoded(0, 48, 64, "where is the total?"), decoded(1, 48, 64, "who signed?"), decoded(2, 48, 64)]
    scout = chooser(relevance="scout")
    buckets = [scout.bucket(image) for image in asked]
    assert buckets[0] == buckets[1] and buckets[0].scorer == "scout" and buckets[2].scorer == "none"
    assert len(scout(buckets[0], asked[:2]).sizes) == 2
    words = chooser(relevance="words")
    assert words.bucket(asked[0]) != words.bucket(asked[1])
    auto = chooser(relevance="auto", asked="scout")
    assert [auto.bucket(image).scorer for image in asked] == ["scout", "scout", "prior"]


def test_a_batch_of_questions_gives_each_image_its_own(tmp_path):
    """As asking the scout about each image by itself."""
    page = tv.Texture.open("examples/invoice.png").levels[0][:, :, :480, :640]
    pixels = page[0].mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
    asked = ["What is the invoice number?", "Who sent it?"]
    images = [DecodedImage(one, "", pixels, one, {}) for one in asked]
    small = chooser(relevance="scout", budget=32)
    table, _ = small(small.bucket(images[0]), images).table()
    assert not np.allclose(table[0], table[1])
    for place, image in enumerate(images):
        alone, _ = small(small.bucket(image), [image]).table()
        assert np.allclose(table[place], alone[0], atol=1e-2)


@pytest.mark.parametrize("turn", [90, "auto"])
def test_images_are_turned_upright_one_by_one(turn):
    """The tokens of a turned page are those of `place` in it, each with its own question."""
    page = tv.Texture.open("examples/invoice.png").levels[0][:, :, :480, :640].rot90(-1, (2, 3))
    pixels = page[0].mul(255).round().byte().permute(1, 2, 0).contiguous().numpy()
    asked = ["What is the invoice number?", "Who sent it?"]
    images = [DecodedImage(question, "", pixels, question, {}) for question in asked]
    turned = chooser(relevance="scout", budget=32, turn=turn)
    table, used = turned(turned.bucket(images[0]), images).table()
    for place, question in enumerate(asked):
        wanted = tv.choose_tokens(tv.Texture((page,)), question, how=turned.recipe.tokens)
        found = allocation_from(torch.from_numpy(table[place][used[place]]), images[0].size, 8)
        assert not torch.allclose(found.ddx[0, :, 1], torch.zeros(1)), "footprints lie along the text"
        if place == 0:
            assert np.allclose(found.centre, wanted.centre[0][wanted.valid[0]], atol=0.05)
    assert not np.allclose(table[0], table[1])


def test_large_images_come_in_small_batches():
    one = chooser(batch=64)
    assert one.most((1024, 1024)) == 64 and one.most((4096, 4096)) == 4 and one.most((20000, 5000)) == 1


def scene(seed, height=96, width=128):
    """Smooth and without a ground: a photograph."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 5, 3)).astype(np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )


def printed(height=96, width=128):
    """Lines on white: a page."""
    pixels = np.full((height, width, 3), 255, np.uint8)
    pixels[20:80:8, 10:100] = 0
    return Image.fromarray(pixels)


@pytest.mark.parametrize("kinds", ["photographs", "pages", "both"])
def test_a_batch_of_photographs_is_spared_the_scout(monkeypatch, kinds):
    """With the tokens of each image by itself; what fills a batch up does not count."""
    pages = {"photographs": 0, "both": 1, "pages": 2}[kinds]
    pictures = [scene(1), scene(2)][pages:] + [printed()] * pages
    images = [DecodedImage(str(at), "", np.array(one), "", {}) for at, one in enumerate(pictures)]
    plain, fast = chooser(relevance="prior", batch=3, budget=9), chooser(relevance="prior", batch=3, budget=9)
    bucket = plain.bucket(images[0])
    wanted = [plain(bucket, [image]) for image in images]
    read, prepare = [], ScoutScorer.prepare
    monkeypatch.setattr(ScoutScorer, "prepare", lambda *given: read.append(1) or prepare(*given))
    monkeypatch.setattr(Chooser, "_no_graph_because", lambda *_: None)  # on a CPU what would be graphs are plain calls
    fast._graphs = True
    for _ in range(2):
        got = fast(bucket, images)
    assert len(got.allocation.centre) == 3 and len(read) == (0 if kinds == "photographs" else 2)
    for place, one in enumerate(wanted):
        assert np.allclose(got.table()[0][place], one.table()[0][0], atol=1e-3)
        assert int((got.pixels[place].int() - one.pixels[0].int()).abs().max()) <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("relevance", ["none", "prior", "scout"])
@pytest.mark.parametrize("buckets", [0, 8])
def test_a_captured_batch_is_an_uncaptured_one(relevance, buckets):
    size = (256, 256) if buckets == 0 else (250, 244)
    images = [decoded(seed, *size, "what is the total?" if relevance == "scout" else "") for seed in range(3)]
    fast = chooser(device="cuda", relevance=relevance, buckets=buckets)
    slow = Chooser(fast.recipe, fast.device, keep_texture=True)
    bucket = fast.bucket(images[0])
    for _ in range(2):
        got = fast(bucket, images)
        assert fast.reason is None
    wanted = slow(bucket, images)
    assert slow.reason is not None
    assert np.allclose(got.table()[0], wanted.table()[0], atol=1e-3)
    assert int((got.pixels[:3].int() - wanted.pixels[:3].int()).abs().max()) <= 1


@pytest.mark.gpu
def test_photographs_and_pages_take_turns():
    """Each kind of batch has a graph of its own behind the same maps."""
    batches = {
        kind: [DecodedImage(str(at), "", np.array(one), "", {}) for at, one in enumerate(pictures)]
        for kind, pictures in {
            "photographs": [scene(seed, 256, 256) for seed in range(4)],
            "pages": [printed(256, 256)] * 4,
            "both": [scene(1, 256, 256), printed(256, 256), scene(2, 256, 256)],
        }.items()
    }
    fast = chooser(device="cuda", relevance="prior")
    slow = Chooser(fast.recipe, fast.device, keep_texture=True)
    bucket = fast.bucket(batches["both"][0])
    for kind in ("photographs", "pages", "both", "pages", "photographs"):
        images = batches[kind]
        got, wanted = fast(bucket, images), slow(bucket, images)
        assert fast.reason is None
        assert np.allclose(got.table()[0], wanted.table()[0], atol=1e-3)
        count = len(images)
        assert int((got.pixels[:count].int() - wanted.pixels[:count].int()).abs().max()) <= 1
    (replay,) = fast._kept.values()
    assert set(replay.branches) == {True, False}
