"""An answer in pieces: the same as in one, in a thread that leaves others alone."""

import threading
from itertools import zip_longest

import pytest
import torch

from tests.ask import models
from tests.ask.models import QUESTION

SHORT = {"max_new_tokens": 5}


def test_streamed_pieces_add_up_to_the_answer(adapter):
    asked = models.asked(adapter, budget=10, relevance="none")
    image = models.noise(100, 130)
    pieces = list(asked.ask(image, QUESTION, stream=True, **SHORT))
    assert len(pieces) > 1
    assert "".join(pieces).strip() == asked.ask(image, QUESTION, **SHORT)


def test_a_stream_raises_what_went_wrong_and_ends_when_nobody_reads_on(qwen):
    asked = models.asked(qwen, budget=6, relevance="none")

    def broken(ids, scores):
        raise ZeroDivisionError("wheels")

    with pytest.raises(ZeroDivisionError, match="wheels"):
        list(asked.ask(models.noise(64, 64), QUESTION, stream=True, logits_processor=[broken]))
    pieces = asked.ask(models.noise(64, 64), QUESTION, stream=True, max_new_tokens=2000)
    next(pieces)
    pieces.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "texturevlm-answer"]


class After:
    """A stopping criterion of the caller's."""

    def __init__(self, calls):
        self.left = calls

    def __call__(self, input_ids, scores, **options):
        self.left -= 1
        return torch.full((len(input_ids),), self.left <= 0)


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_the_callers_stopping_criteria_are_obeyed(qwen, captured, stream):
    from transformers import StoppingCriteriaList

    asked = models.asked(qwen, budget=6, relevance="none", captured=captured)
    image = models.noise(64, 64)
    wanted = asked.ask(image, QUESTION, max_new_tokens=3)
    for criteria in ([After(3)], StoppingCriteriaList([After(50), After(3)])):
        found = asked.ask(image, QUESTION, stream=stream, max_new_tokens=40, stopping_criteria=criteria)
        assert "".join(found).strip() == wanted


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_return_dict_in_generate_changes_no_answer(qwen, captured, stream):
    asked = models.asked(qwen, budget=6, relevance="none", captured=captured)
    image = models.noise(64, 64)
    wanted = asked.ask(image, QUESTION, **SHORT)
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    assert "".join(asked.ask(image, QUESTION, stream=stream, **SHORT, **options)).strip() == wanted


@pytest.mark.parametrize("captured", [False, True])
def test_streams_that_are_read_in_turns_do_not_mix(adapter, captured):
    """The second begins while the first is still being written."""
    asked = models.asked(adapter, budget=8, relevance="none", captured=captured)
    images = [models.noise(100, 130), torch.zeros(3, 100, 130)]
    wanted = [asked.ask(image, QUESTION, max_new_tokens=20) for image in images]
    streams = [asked.ask(image, QUESTION, stream=True, max_new_tokens=20) for image in images]
    in_turns = zip_longest(*streams, fillvalue="")
    read = ["".join(pieces) for pieces in zip(*in_turns)]
    assert [one.strip() for one in read] == wanted and wanted[0] != wanted[1]


def test_a_second_look_waits_for_the_stream_before_it(adapter):
    """It stops the model half-way, which an answer that is being written must not notice."""
    asked = models.asked(adapter, budget=16)
    image = models.noise(300, 200)
    wanted = asked.ask(image, QUESTION, looks=2, **SHORT)
    pieces = asked.ask(image, QUESTION, looks=2, stream=True, max_new_tokens=60)
    begun = next(pieces)
    assert asked.ask(image, QUESTION, looks=2, **SHORT) == wanted
    assert (begun + "".join(pieces)).strip().startswith(wanted)


def test_a_second_look_is_taken_in_evaluation_mode(qwen):
    asked = models.asked(qwen, budget=16)
    modes = []
    hook = qwen.model.model.language_model.layers[0].register_forward_pre_hook(
        lambda module, _: modes.append(module.training)
    )
    qwen.model.train()
    try:
        asked.prepare(models.noise(300, 200)).choose(QUESTION, looks=2)
        assert qwen.model.training and modes == [False]
    finally:
        hook.remove()
        qwen.model.eval()


def test_asking_from_many_threads(qwen):
    asked = models.asked(qwen, budget=8, relevance="none", captured=True)
    images = [models.noise(100, 130, seed=seed) for seed in range(4)]
    wanted = [asked.ask(image, QUESTION, **SHORT) for image in images]
    found = {}

    def ask(index):
        found[index] = asked.ask(images[index], QUESTION, **SHORT)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(4)] == wanted
    assert len(set(wanted)) > 1


def test_no_gradients_are_kept_in_the_thread(qwen):
    asked = models.asked(qwen, budget=6, relevance="none")
    modes = []
    hook = qwen.model.register_forward_pre_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    try:
        with torch.enable_grad():
            list(asked.ask(models.noise(64, 64), QUESTION, stream=True, **SHORT))
    finally:
        hook.remove()
    assert modes and not any(modes)
