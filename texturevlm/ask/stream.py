"""An answer in pieces, as it is generated.

`generate` blocks until it is done, so it runs in a thread. An error in the thread is raised in the caller. If the
caller stops reading, generation stops.
"""

from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread
from typing import Any


def streamed(generate: Callable[..., Any], tokenizer: Any, criteria: Sequence[Any] | None = None) -> Iterator[str]:
    """Pieces of text.

    generate: takes `streamer` and `stopping_criteria` as transformers' does, and one prompt
    criteria: the caller's own stopping criteria
    """
    from transformers import StoppingCriteriaList, TextIteratorStreamer

    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    broken_off = Event()
    failed: list[BaseException] = []
    stops = StoppingCriteriaList([*(criteria or ()), _When(broken_off)])

    def work() -> None:
        try:
            generate(streamer=streamer, stopping_criteria=stops)
        except BaseException as error:
            failed.append(error)
            streamer.text_queue.put(streamer.stop_signal)

    thread = Thread(target=work, name="texturevlm-answer", daemon=True)
    thread.start()
    try:
        for piece in streamer:
            if piece:
                yield piece
    finally:
        broken_off.set()
        thread.join()
    if failed:
        raise failed[0]


class _When:
    """A stopping criterion: stop when the event is set."""

    def __init__(self, event: Event) -> None:
        self.event = event

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        import torch

        return torch.full((input_ids.shape[0],), self.event.is_set(), dtype=torch.bool, device=input_ids.device)
