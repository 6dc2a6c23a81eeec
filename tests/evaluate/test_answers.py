"""Metrics of answers: values worked out by hand, and known behaviours of the official evaluation codes."""

from random import Random

import pytest

from texturevlm.text.edits import edit_distance
from texturevlm_lab.evaluate.answers import (
    ANSWER_METRICS,
    CONTRACTIONS,
    DATA_SETS,
    anls,
    exact_match,
    field_f1,
    normalise_vqa,
    relaxed_accuracy,
    textvqa_accuracy,
    token_f1,
    vqa_accuracy,
)


def people(count: int, answer: str = "cat") -> list[str]:
    """Ten answers, of which `count` are the given one and the others differ from each other."""
    return [answer] * count + [f"other {letter}" for letter in "klmnopqrst"[count:]]


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("Invoice", ["invoice"], 1),  # case does not count
        ("  0.28 \n", ["0.28"], 1),  # nor does white space at the ends
        ("new  york", ["new york"], 1),  # nor its amount
        ("newyork", ["new york"], 1 - 1 / 8),  # but a missing space is an edit, of 8 letters
        ("kitten", ["sitting"], 1 - 3 / 7),  # k→s, e→i, +g: 3 edits, 7 letters
        ("abcd", ["abxy"], 0.5),  # 2 of 4 letters: at the threshold it counts
        ("abcde", ["abxyz"], 0),  # 3 of 5 letters: .4 is below the threshold
        ("sitting", ["dog", "kitten", "sittin"], 1 - 1 / 7),  # the best answer
        ("the answer is 42", ["42"], 0),  # containing the answer is not enough: 14 of 16 letters are too many
        ("", ["abc"], 0),
        ("abc", [""], 0),
        ("", [""], 1),
        ("CAFÉ", ["café"], 1),
        ("東京都", ["東京"], 1 - 1 / 3),  # letters are counted, not bytes
    ],
)
def test_anls(prediction, answers, score):
    assert anls(prediction, answers) == pytest.approx(score)


@pytest.mark.parametrize(("matches", "score"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1), (9, 1), (10, 1)])
@pytest.mark.parametrize("metric", [vqa_accuracy, textvqa_accuracy])
def test_the_ten_answer_rule(metric, matches, score):
    """By hand, for 2 matches: leave out one of the 2 (1/3 each), or one of the other 8 (2/3 each): 6 / 10."""
    assert metric("cat", people(matches)) == pytest.approx(score)


def test_with_fewer_people_the_same_rule_holds():
    assert vqa_accuracy("x", ["x", "x"]) == pytest.approx(1 / 3)  # one is left each time
    assert vqa_accuracy("x", ["x"]) == 0  # nobody is left


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Cat", "cat"),
        ("an apple and a pear", "apple and pear"),
        ("None", "0"),
        ("twenty two", "twenty 2"),  # only none and zero to ten are known
        ("dont", "don't"),
        ("couldn'tve", "couldn't've"),
        ("couldntve", "couldntve"),  # two apostrophes are missing: not in the list
        ("somebody'd", "somebodyd"),  # the official list has this one the wrong way round
        ("Im", "im"),  # listed with a capital, looked up without: never found
        ("x-ray", "x ray"),  # no space beside the mark: it becomes a space
        ("red, green", "red green"),  # a space beside the mark: it is dropped
        ("- -a-b", "ab"),  # the mark stands beside a space once: it is dropped everywhere
        ("1,000", "1000"),
        ("1,000 x-rays", "1000 xrays"),  # a number with a comma: every mark is dropped
        ("3.5", "3.5"),
        ("U.S.A.", "usa"),
        (".5 in.", ".5 in"),
        ("it's 5:30", "it's 5:30"),  # neither is in the list of marks
        ("the", ""),
        ("", ""),
        ("Ärzte, 東京!", "ärzte 東京"),  # the comma stands beside a space; the mark at the end becomes one
    ],
)
def test_the_official_normalisation(text, normal):
    assert normalise_vqa(text) == normal


def test_the_official_list_of_contractions_is_complete():
    """120 entries, less four with a capital I and two that map to themselves."""
    assert len(CONTRACTIONS) == 114
    assert CONTRACTIONS["yall'd've"] == CONTRACTIONS["y'alld've"] == CONTRACTIONS["y'all'dve"] == "y'all'd've"
    assert CONTRACTIONS["twas"] == "'twas" and CONTRACTIONS["ow's'at"] == "'ow's'at"


def test_vqa_normalises_only_where_people_differ():
    assert vqa_accuracy("The CAT.", people(9)) == 1
    assert vqa_accuracy("Cat", ["cat"] * 10) == 0  # known behaviour of the official code
    assert vqa_accuracy("\tcat\n", ["cat"] * 10) == 1
    assert textvqa_accuracy("The CAT.", ["cat"] * 10) == 1


def test_textvqa_splits_possessives_and_drops_commas_first():
    assert textvqa_accuracy("mcdonald 's", people(10, "McDonald's")) == 1
    assert vqa_accuracy("mcdonald 's", people(9, "McDonald's")) == 0
    assert textvqa_accuracy("1000 x rays", people(9, "1,000 x-rays")) == 1  # no comma is left that joins the words
    assert vqa_accuracy("1000 xrays", people(9, "1,000 x-rays")) == 1


def test_an_empty_answer_matches_what_is_only_an_article():
    assert vqa_accuracy("", people(2, "the")) == pytest.approx(0.6)
    assert vqa_accuracy("", people(4)) == 0


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("105", ["100"], 1),  # 5% off: just within
        ("95", ["100"], 1),
        ("105.1", ["100"], 0),
        ("94.9", ["100"], 0),
        ("100", ["95.2"], 0),  # 4.8 / 95.2 = 5.04%: the answer is the base, not the prediction
        ("-104", ["-100"], 1),
        ("100", ["-100"], 0),
        ("42%", ["0.42"], 1),  # a percent sign divides by 100
        ("43%", ["42%"], 1),  # .01 / .42 = 2.4%
        ("42", ["42%"], 0),
        ("0", ["0"], 1),
        ("0.0", ["0"], 0),  # an answer of 0 is compared as text
        ("2,000", ["2000"], 0),  # a comma makes it a text
        ("2,000", ["2,000"], 1),
        (" Blue\n", ["blue"], 1),
        ("light blue", ["blue"], 0),
        ("2015", ["2010"], 1),  # years are numbers too: known behaviour
        ("red", ["blue", "RED"], 1),
        ("nan", ["NaN"], 1),  # not a number, so a text
        ("", ["5"], 0),
        ("", [""], 1),
        ("%", ["%"], 1),
        ("ÉTÉ", ["été"], 1),
    ],
)
def test_relaxed_accuracy(prediction, answers, score):
    assert relaxed_accuracy(prediction, answers) == score


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("STARBUCKS STORE #10208", ["STARBUCKS  STORE #10208 "], 1),
        ("Starbucks Store #10208", ["STARBUCKS STORE #10208"], 0),
        ("4.95", ["$4.95", "4.95"], 1),
        ("", ["4.95"], 0),
        ("", [" "], 1),
    ],
)
def test_exact_match(prediction, answers, score):
    assert exact_match(prediction, answers) == score


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("11302 EUCLID AVENUE", ["11302 EUCLID AVENUE CLEVELAND OH"], 0.75),  # 3 of 3 and 3 of 5: 6 / 8
        ("a a b", ["a b b"], 2 / 3),  # one a and one b are shared, of 3 words each
        ("b a", ["a b"], 1),  # the order does not count
        ("A", ["a"], 0),
        ("x", ["y", "x z"], 2 / 3),  # the best answer: 1 of 1 and 1 of 2
        ("", ["a"], 0),
        ("", [""], 1),
        ("東京 タワー", ["東京"], 2 / 3),
    ],
)
def test_token_f1(prediction, answers, score):
    assert token_f1(prediction, answers) == pytest.approx(score)


def test_field_f1_is_pooled_over_all_fields():
    """One receipt with two right fields of three that were said, four there: precision 2/3, recall 2/4, F1 4/7."""
    answers = [["TESCO"], ["14/03/2015"], ["1 HIGH ST"], ["4.95"]]
    assert field_f1(["TESCO", "14/03/2015", "2 HIGH ST", ""], answers) == pytest.approx(4 / 7)
    assert field_f1(["TESCO", "14/03/2015", "1 HIGH ST", "4.95"], answers) == 1
    assert field_f1(["", "", "", " "], answers) == 0


def test_field_f1_punishes_a_field_that_is_not_there():
    """Said 2, there 1, right 1: F1 is 2 / 3. Saying nothing of the absent field gives 1."""
    assert field_f1(["4.95", "noise"], [["4.95"], []]) == pytest.approx(2 / 3)
    assert field_f1(["4.95", ""], [["4.95"], []]) == 1


@pytest.mark.parametrize(("predictions", "answers"), [([], []), (["a"], []), (["a"], [[]]), (["a"], [["a"], ["b"]])])
def test_field_f1_needs_answers(predictions, answers):
    with pytest.raises(ValueError, match="field_f1: answers must have one list per prediction and not all be empty"):
        field_f1(predictions, answers)


@pytest.mark.parametrize("name", ANSWER_METRICS)
def test_bad_input_names_the_function_and_the_argument(name):
    metric = ANSWER_METRICS[name]
    with pytest.raises(ValueError, match=f"^{name}: answers must have at least one answer, got none"):
        metric("a", [])
    with pytest.raises(TypeError, match=f"^{name}: answers must be a list of strings, got 'cat'"):
        metric("a", "cat")
    with pytest.raises(TypeError, match=f"^{name}: answers must be a list of strings"):
        metric("a", ["1", 1])
    with pytest.raises(TypeError, match=f"^{name}: prediction must be a string, got NoneType"):
        metric(None, ["a"])


def test_every_data_set_has_a_metric():
    assert set(DATA_SETS) == {"docvqa", "infovqa", "chartqa", "textvqa", "vqav2", "vizwiz", "sroie", "funsd", "coco"}
    assert set(DATA_SETS.values()) == set(ANSWER_METRICS)


def test_the_edit_distance_is_that_of_rapidfuzz():
    """Whose speed is not needed here, and which need not be installed."""
    distance = pytest.importorskip("rapidfuzz.distance").Levenshtein.distance
    random = Random(0)
    for _ in range(500):
        one, other = ("".join(random.choices("abcé 𝛼", k=random.randrange(9))) for _ in range(2))
        assert edit_distance(one, other) == distance(one, other), (one, other)
    assert edit_distance("kitten", "sitting") == 3 and edit_distance("", "") == 0
