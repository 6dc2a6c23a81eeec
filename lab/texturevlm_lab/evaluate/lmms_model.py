"""A model of lmms-eval that reads a budget of chosen tokens.

    lmms-eval --model texturevlm --model_args pretrained=Qwen/Qwen3-VL-4B-Instruct,budget=273 --tasks docvqa_val

Only lmms-eval imports this file. Its tasks give messages with PIL images; videos and audio are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmms_eval.api.model import lmms

from texturevlm.ask import load_vlm
from texturevlm.ask.messages import conversation_with, images_of, question_in, videos_of
from texturevlm_lab.evaluate.prompted import Prompted, chosen_prompt, generated

USUAL_LENGTH = 128
SAMPLED_BY = ("temperature", "top_p", "top_k", "num_beams")
# How tasks ask for short answers, in lines of their own behind the question. Tokens are chosen without them.
INSTRUCTIONS = ("answer the question", "when the provided information is", "provide a short", "please answer")


class TextureModel(lmms):  # type: ignore[misc]
    """The model runs in one process, on one device.

    pretrained: a hub id or a folder
    budget, allocator, relevance: as in `load_vlm`; those saved with the checkpoint by default
    levels, coordinates: as in `Adapter.prepare`; the checkpoint's own by default
    options:    of `from_pretrained`, such as attn_implementation
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str,
        budget: int | None = None,
        allocator: str | None = None,
        relevance: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        levels: str | None = None,
        coordinates: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not str(batch_size).isdigit() or int(batch_size) < 1:
            raise ValueError(f"texturevlm: batch_size must be a whole number from 1, got {batch_size!r}")
        self.batch_size = int(batch_size)
        given = {"levels": levels, "coordinates": coordinates}
        self.place = {name: value for name, value in given.items() if value is not None}
        options |= {"budget": None if budget is None else int(budget), "allocator": allocator, "relevance": relevance}
        self.vlm = load_vlm(pretrained, device=device, dtype=dtype, captured=False, **options)

    @property
    def device(self) -> Any:
        return self.vlm.device

    @property
    def tokenizer(self) -> Any:
        return self.vlm.adapter.tokenizer

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Answers, in the order of the requests; those with the same options are answered together."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[2].items())), []).append(number)
        found: dict[int, str] = {}
        for numbers in groups.values():
            for first in range(0, len(numbers), self.batch_size):
                part = numbers[first : first + self.batch_size]
                found |= dict(zip(part, self._answers([requests[number] for number in part])))
        return [found[number] for number in range(len(requests))]

    def _answers(self, requests: Sequence[Any]) -> list[str]:
        options = dict(requests[0].args[2])
        until = options.get("until") or []
        ends = [one for one in ([until] if isinstance(until, str) else until) if one != "\n\n"]
        prompts = []
        for request in requests:
            _, get_messages, _, number, task, split = request.args
            prompts.append(self._prompt(get_messages(self.task_dict[task][split][number])))
        texts: dict[int, str] = {}
        for with_image in (True, False):  # prompts of one kind per batch
            some = [number for number, one in enumerate(prompts) if bool(one.views) == with_image]
            if some:
                said = generated(
                    self.vlm.adapter,
                    [prompts[number] for number in some],
                    place=self.place,
                    hooks=self.vlm.config_for().hooks,
                    max_new_tokens=int(options.get("max_new_tokens") or USUAL_LENGTH),
                    **_sampling(options),
                )
                texts |= dict(zip(some, said))
        for number, request in enumerate(requests):
            texts[number] = _until(texts[number], ends)
            self.cache_hook.add_partial("generate_until", (request.args[0], request.args[2]), texts[number])
        return [texts[number] for number in range(len(requests))]

    def _prompt(self, messages: list[dict[str, Any]]) -> Prompted:
        question, images, adapter = question_in("texturevlm", messages), images_of(messages), self.vlm.adapter
        if films := videos_of(messages):
            raise ValueError(f"texturevlm: messages must have images only, got {len(films)} videos (texturevlm eval)")
        if not images:
            conversation = conversation_with(messages, 0, adapter.marks, apart=False)
            return chosen_prompt(adapter, conversation, [], [], place=self.place)
        session = self.vlm.prepare(images)
        request = session.request(messages, question_alone(question), self.vlm.config_for(), apart=False)
        allocations = [placed.allocation for placed in request.placements]
        return chosen_prompt(adapter, request.prompt, request.textures, allocations, place=self.place)

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """lmms-eval gives messages to generation alone."""
        raise NotImplementedError("texturevlm: tasks must generate answers, got one of log-likelihoods")

    def generate_until_multi_round(self, requests: Sequence[Any]) -> list[str]:
        raise NotImplementedError("texturevlm: tasks must have one round, got one of several")


def question_alone(text: str) -> str:
    """A question without the lines that say how to answer it, if anything is left."""
    lines = [line for line in text.splitlines() if not line.strip().lower().startswith(INSTRUCTIONS)]
    return "\n".join(lines).strip() or text


def _sampling(options: dict[str, Any]) -> dict[str, Any]:
    """Greedy unless the task asks for a temperature."""
    beams = {"num_beams": options["num_beams"]} if (options.get("num_beams") or 1) > 1 else {}
    if not options.get("temperature") or not options.get("do_sample", True):
        return beams
    return {"do_sample": True, **{name: options[name] for name in SAMPLED_BY if options.get(name) is not None}}


def _until(text: str, ends: Sequence[str]) -> str:
    """The text before the first of some endings."""
    for end in ends:
        text = text.split(end)[0] if end else text
    return text.strip()
