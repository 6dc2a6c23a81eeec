"""Questions about objects that are there, and as many about objects that are not."""

from pathlib import Path

from texturevlm_lab.evaluate.data import Sample
from texturevlm_lab.evaluate.presence import presence_questions


def seen(image, *names):
    box = ((0, 0, 1, 1),)
    return [Sample(f"{image}-{name}", Path(f"{image}.jpg"), (9, 9), name, (), box, name=name) for name in names]


def test_half_of_the_answers_are_no():
    samples = [*seen("a", "apple", "dog"), *seen("b", "cat", "dog"), *seen("c", "bus")]
    found = presence_questions(samples)
    assert [one.answers for one in found] == [("yes",), ("no",)] * 5
    assert found[0].question == "Is there an apple in the image? Answer yes or no." and found[0].boxes
    assert len({one.id for one in found}) == 10 and len({(one.image, one.question) for one in found}) == 10
    there = {(sample.image, sample.name) for sample in samples}
    for yes, no in zip(found[::2], found[1::2]):
        assert yes.image == no.image and no.boxes == ()
        name = no.question.split(" in the image")[0].split(" ", 3)[-1]
        assert name in ("apple", "dog", "cat", "bus") and (no.image, name) not in there
    assert presence_questions(samples) == found  # the same in every run


def test_a_photograph_with_every_class_gets_only_yes():
    assert [one.answers for one in presence_questions(seen("a", "cat", "dog"))] == [("yes",)] * 2
