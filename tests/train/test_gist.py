"""The gist: shapes, what a map sums to, that names and what was likely before steer it, and files of weights."""

import pytest
import torch

from tests.conftest import worst
from tests.scout.networks import lively
from texturevlm.scout.layer import folded
from texturevlm.scout.weights import save_modules
from texturevlm.train.gist import EMBEDDING, LENGTH, SIDE, SOUGHT, SPOT, Gist, glimpse, load_gist
from texturevlm.train.vocabulary import Vocabulary
from texturevlm.types import Texture

WORDS = Vocabulary(["cat", "dog", "hot dog", "person"])
SMALL = (8, 16, 24)


@pytest.fixture
def gist():
    torch.manual_seed(0)
    made = lively(Gist(WORDS, SMALL))
    made.prior.copy_(torch.tensor([-4.0, -2.0, -6.0, -0.1]))
    return made


@pytest.fixture
def pointed(gist):
    """Two photographs of 3×5 spots; in the first a dog at (1, 2), in the second a cat at (0, 4)."""
    gist.words.data = torch.eye(EMBEDDING)[: len(WORDS)] * 8 / LENGTH
    gist.bias.data = gist.prior.clone()
    spots = torch.zeros(2, EMBEDDING, 3, 5)
    spots[:, 60] = 1
    spots[0, :, 1, 2], spots[1, :, 0, 4] = torch.eye(EMBEDDING)[1], torch.eye(EMBEDDING)[0]
    return gist, spots


@pytest.mark.parametrize("size", [(SIDE, SIDE), (16, 40)])
def test_spots(gist, size):
    with torch.no_grad():
        made = gist(torch.rand(2, 3, *size))
    assert made.shape == (2, EMBEDDING, size[0] // SPOT, size[1] // SPOT)
    assert worst(made.norm(dim=1), torch.ones(made.shape[0], *made.shape[2:])) < 1e-5


def test_it_is_small():
    assert sum(part.numel() for part in Gist(Vocabulary([str(n) for n in range(1500)])).parameters()) < 2e6


def test_folding_changes_nothing(gist):
    colour = torch.rand(1, 3, 48, 48)
    with torch.no_grad():
        before = gist(colour)
        after = folded(gist)(colour)
    assert worst(before, after) < 1e-4


def test_a_word_is_found_where_it_fits(pointed):
    gist, spots = pointed
    found = gist.where(spots, gist.encode(["Where is the dog?"]))
    assert found.shape == (2, 3, 5) and found.dtype == torch.float32
    assert found[0].argmax() == 1 * 5 + 2 and found[0].sum() > 0.95  # sure
    assert worst(found[1], found[1].mean().expand(3, 5)) < 1e-6 and found[1].sum() == pytest.approx(0.5)  # no idea


def test_a_question_for_each_photograph(pointed):
    gist, spots = pointed
    found = gist.where(spots, gist.encode(["Where is the dog?", "Any cats?"]))
    assert [one.argmax().item() for one in found] == [7, 4]


def test_of_several_words_the_rarer_counts_more(pointed):
    gist, spots = pointed
    both = spots.amax(0, keepdim=True)  # the dog and the cat in one photograph
    found = gist.where(both, gist.encode(["Is there a cat with the dog?"]))[0]
    assert found[0, 4] > 1.5 * found[1, 2] > 0 and 0.9 < found.sum() <= 1 + 1e-6


def test_what_is_not_known_says_nothing(pointed):
    gist, spots = pointed
    assert (gist.encode(["What is the total amount?", ""]) == -1).all()
    assert (gist.where(spots, gist.encode(["Where is the zeppelin?"])) == 0).all()


def test_what_was_likely_before_counts(pointed):
    gist, spots = pointed
    before = torch.ones(2, 3, 5)
    before[:, 2, 0] = 4
    asked = gist.encode(["Where is the cat?"])
    found = gist.where(spots, asked, before)
    assert found[0].argmax() == 10 and found[1].argmax() == 4  # without a cat where it was likely, else the cat
    assert worst(found, gist.where(spots, asked, 7 * before)) < 1e-6  # in any unit
    assert worst(gist.where(spots, asked, torch.ones(2, 3, 5)), gist.where(spots, asked)) < 1e-6
    nothing = gist.where(spots, asked, torch.zeros(2, 3, 5))
    assert worst(nothing.sum((1, 2)) > 0, torch.tensor([True, True])) == 0 and nothing.isfinite().all()


def test_a_long_question_is_cut(gist):
    assert gist.encode(["A person, a dog, a cat and a hot dog"])[0, :5].tolist() == [3, 1, 0, 2, -1]
    many = Gist(Vocabulary([f"thing{letter}" for letter in "abcdefghijkl"]), SMALL)
    assert many.encode([" ".join(reversed(many.vocabulary.entries))]).tolist() == [[11, 10, 9, 8, 7, 6, 5, 4]]
    assert gist.encode(["dog"] * 3).shape == (3, SOUGHT)


def test_a_glimpse_of_any_shape():
    for size in ((40, 300), (7, 5), (333, 400)):
        image = torch.linspace(0, 1, size[1]).expand(1, 3, *size)
        seen = glimpse(Texture.open(image).mipmapped())
        assert seen.shape == (1, 3, SIDE, SIDE) and seen.min() >= 0 and seen.max() <= 1
        assert seen[0, 0, 0, 0] < 0.15 and seen[0, 0, 0, -1] > 0.85


def test_a_file_of_weights_is_complete(gist, tmp_path):
    save_modules(tmp_path / "weights.npz", gist=gist)
    read = load_gist(tmp_path / "weights.npz", prefix="gist.")
    assert read.vocabulary.entries == WORDS.entries and not read.training
    colour = torch.rand(1, 3, 48, 48)
    with torch.no_grad():
        assert worst(read(colour), gist(colour)) < 0.02  # half precision
    assert worst(read.prior, gist.prior) < 1e-2


def test_files_that_are_none(gist, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"load_module: .*nothing\.npz must be a file of weights"):
        load_gist(tmp_path / "nothing.npz")
    save_modules(tmp_path / "other.npz", other=gist)
    with pytest.raises(ValueError, match=r"must hold the weights of Gist, lacks gist\.spelling"):
        load_gist(tmp_path / "other.npz", prefix="gist.")


def test_a_damaged_file_is_told_so(tmp_path):
    broken = tmp_path / "weights.safetensors"
    broken.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00not at all")
    with pytest.raises(ValueError, match="must be a file of weights, and cannot be read"):
        load_gist(broken)
