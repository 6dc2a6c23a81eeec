"""Metrics of answers, as the benchmarks define them: functions of a prediction and its accepted answers, 0 to 1.

docs/metric.md has the definitions. Where a paper and the official evaluation code differ, the code is followed: it
makes the published numbers.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

from texturevlm.text.edits import edit_distance

Metric = Callable[[str, Sequence[str]], float]

ANLS_THRESHOLD = 0.5  # a similarity below it counts as 0
RELAXED_CHANGE = 0.05  # of the true number
ENOUGH_PEOPLE = 3  # who gave the same answer: it is then right

# The lists of the official VQA evaluation.
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
ARTICLES = frozenset(("a", "an", "the"))
NUMBER_WORDS = {
    "none": "0",
    "zero": "0",
    "one": "1",
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
}
# A word of this list that lacks exactly one of its apostrophes gets it back. Words such as "I'm" and "she's" are not
# here: the official code has them, but they never change an answer.
CONTRACTED = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've he's
how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've o'clock
oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd
someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've there're there's
they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've when's
where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't wouldn't've
y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""
CONTRACTIONS = {
    word[:place] + word[place + 1 :]: word
    for word in CONTRACTED.split()
    for place, letter in enumerate(word)
    if letter == "'"
} | {"somebody'd": "somebodyd"}  # the wrong way round in the official list too

_COMMA_IN_NUMBER = re.compile(r"\d,\d")
_FULL_STOP = re.compile(r"\.(?!\d)")  # not the point of a decimal number


def anls(prediction: str, answers: Sequence[str]) -> float:
    """Normalised Levenshtein similarity to the nearest answer, without regard to case; 0 if it is below one half."""
    _check("anls", prediction, answers)
    said = _one_spaced(prediction.lower())
    nearest = 0.0
    for answer in answers:
        true = _one_spaced(answer.lower())
        nearest = max(nearest, 1 - edit_distance(said, true) / max(len(said), len(true), 1))
    return nearest if nearest >= ANLS_THRESHOLD else 0.0


def vqa_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """The official VQA accuracy: the ten-answer rule on normalised text.

    If all answers are the same, nothing is normalised, as in the official code: case and punctuation then count.
    """
    _check("vqa_accuracy", prediction, answers)
    said, *given = (_on_one_line(text) for text in (prediction, *answers))
    if len(set(given)) > 1:
        said, *given = (normalise_vqa(text) for text in (said, *given))
    return _leave_one_out(given.count(said), len(given))


def textvqa_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """VQA accuracy as the TextVQA evaluation computes it: all text is normalised, always."""
    _check("textvqa_accuracy", prediction, answers)
    said, *given = (
        normalise_vqa(_on_one_line(text.lower().replace(",", "").replace("?", "").replace("'s", " 's")))
        for text in (prediction, *answers)
    )
    return _leave_one_out(given.count(said), len(given))


def normalise_vqa(text: str) -> str:
    """Lower case, without punctuation and articles, with digits for number words and with apostrophes."""
    number = _COMMA_IN_NUMBER.search(text)
    marks = {ord(mark): "" if number or f"{mark} " in text or f" {mark}" in text else " " for mark in PUNCTUATION}
    plain = _FULL_STOP.sub("", text.translate(marks))
    words = (NUMBER_WORDS.get(word, word) for word in plain.lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def relaxed_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is a number within 5% of an answer, or the same text without regard to case."""
    _check("relaxed_accuracy", prediction, answers)
    return float(any(_relaxed_match(prediction.strip(), answer.strip()) for answer in answers))


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is an answer, letter by letter; only the amount of white space may differ."""
    _check("exact_match", prediction, answers)
    return float(_one_spaced(prediction) in map(_one_spaced, answers))


def token_f1(prediction: str, answers: Sequence[str]) -> float:
    """F1 of the words of the prediction, best over the answers. A repeated word counts as often as it stands there."""
    _check("token_f1", prediction, answers)
    said = Counter(prediction.split())
    return max(_f1((said & true).total(), said.total(), true.total()) for true in map(Counter, map(str.split, answers)))


def yes_or_no(prediction: str, answers: Sequence[str]) -> float:
    """1 if the first "yes" or "no" of the prediction is the answer, as POPE counts them; 0 if there is neither."""
    _check("yes_or_no", prediction, answers)
    said = [word for word in re.findall(r"[a-z]+", prediction.lower()) if word in ("yes", "no")]
    return float(bool(said) and said[0] in answers)


def field_f1(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> float:
    """F1 over all fields of all pages together, as SROIE task 3 defines it.

    predictions: one per field; an empty one says that the page does not have the field
    answers:     the accepted answers of each field; none where the page does not have the field
    """
    if len(predictions) != len(answers) or not any(answers):
        raise ValueError(
            "field_f1: answers must have one list per prediction and not all be empty, "
            f"got {len(predictions)} predictions and {len(answers)} lists"
        )
    pairs = list(zip(predictions, answers))
    correct = sum(exact_match(said, true) for said, true in pairs if said.strip() and true)
    return _f1(correct, sum(bool(said.strip()) for said in predictions), sum(bool(true) for true in answers))


ANSWER_METRICS: dict[str, Metric] = {
    "anls": anls,
    "vqa_accuracy": vqa_accuracy,
    "textvqa_accuracy": textvqa_accuracy,
    "relaxed_accuracy": relaxed_accuracy,
    "exact_match": exact_match,
    "token_f1": token_f1,
    "yes_or_no": yes_or_no,
}
DATA_SETS = {
    "docvqa": "anls",
    "infovqa": "anls",
    "chartqa": "relaxed_accuracy",
    "textvqa": "textvqa_accuracy",
    "vqav2": "vqa_accuracy",
    "vizwiz": "vqa_accuracy",
    "sroie": "exact_match",
    "funsd": "token_f1",
    "coco": "yes_or_no",
}


def _check(function: str, prediction: str, answers: Sequence[str]) -> None:
    if not isinstance(prediction, str):
        raise TypeError(f"{function}: prediction must be a string, got {type(prediction).__name__}")
    if isinstance(answers, str) or not all(isinstance(answer, str) for answer in answers):
        raise TypeError(f"{function}: answers must be a list of strings, got {answers!r:.60}")
    if not len(answers):
        raise ValueError(f"{function}: answers must have at least one answer, got none")


def _one_spaced(text: str) -> str:
    return " ".join(text.split())


def _on_one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _leave_one_out(matches: int, people: int) -> float:
    """The mean of min(matches / 3, 1), each person's answer left out in turn."""
    without_a_match = matches * min((matches - 1) / ENOUGH_PEOPLE, 1)
    without_another = (people - matches) * min(matches / ENOUGH_PEOPLE, 1)
    return (without_a_match + without_another) / people


def _relaxed_match(said: str, true: str) -> bool:
    number, wanted = _number(said), _number(true)
    if number is None or not wanted:  # 5% of 0 is 0: the text decides
        return said.lower() == true.lower()
    return abs(number - wanted) / abs(wanted) <= RELAXED_CHANGE


def _number(text: str) -> float | None:
    """42% → 0.42; None for what is not a finite number."""
    try:
        value = float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _f1(correct: float, said: int, true: int) -> float:
    """The harmonic mean of precision and recall; 1 where there is nothing to say and nothing is said."""
    return 2 * correct / (said + true) if said + true else 1.0
