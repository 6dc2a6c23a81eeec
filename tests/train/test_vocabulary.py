"""The words that a photograph can be asked for: which are kept, and how a text is searched for them."""

import pytest

from texturevlm.train.vocabulary import Vocabulary, gathered, singulars

CAPTIONS = [
    ("A dog runs through the grass .", "Two dogs on the lawn"),
    ("The dog and a man with tennis rackets", "A man near grass"),
    ("Men on a bus", "Two men ride buses"),
]


def test_plurals_count_with_their_singulars_and_stop_words_do_not_count():
    made = gathered(CAPTIONS, (), least=2)
    assert made.entries == ("dog", "grass", "man")  # each in two images; "the" is in two as well, and names nothing
    assert "bus" in gathered(CAPTIONS, (), least=1).entries and "buses" not in gathered(CAPTIONS, (), least=1).entries


def test_an_image_counts_once():
    captions = [("dog", "dogs", "a dog"), ("a cat",), ("cats",)]
    assert gathered(captions, (), least=2).entries == ("cat",)


def test_names_are_kept_however_rare():
    made = gathered(CAPTIONS, ["tennis racket", "dining table", "dog"], least=2)
    assert made.entries == ("dining table", "dog", "grass", "man", "tennis racket")


def test_a_pair_is_found_before_its_parts():
    made = Vocabulary(["dog", "hot dog", "knife", "man", "skis"])
    assert made.find("Is the man eating hot dogs?") == [3, 1]
    assert made.find("Where are the dogs, the hot man and the other dog?") == [0, 3]
    assert made.find("knives and skis") == [2, 4] and made.find("men's") == [] and made.find("Men") == [3]
    assert made.find("") == [] and made.find("zeppelin") == []


@pytest.mark.parametrize(
    ("word", "singular"),
    [("dogs", "dog"), ("boxes", "box"), ("puppies", "puppy"), ("knives", "knife"), ("wolves", "wolf"), ("men", "man")],
)
def test_singulars(word, singular):
    assert singulars(word)[0] == word and singular in singulars(word)[1:]


def test_what_is_no_plural():
    assert singulars("grass") == ["grass"] and singulars("bus") == ["bus"] and singulars("dog") == ["dog"]


def test_complaints():
    with pytest.raises(ValueError, match="Vocabulary: entries must be different and at least one, got 2"):
        Vocabulary(["dog", "dog"])
    with pytest.raises(ValueError, match="got 0"):
        Vocabulary([])
