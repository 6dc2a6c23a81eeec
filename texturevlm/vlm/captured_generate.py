"""transformers' `generate` whose steps come from graphs.

`generate` keeps doing what it does around the model: sampling, penalties, stopping, streaming. Only the model's
`forward` is replaced while it runs. Behind a captured prefill the first call returns its logits; else the model reads
the prompts itself. The next calls replay a graph. What a graph cannot give (attention, hidden states, several
sequences, very long answers) is decoded by the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from texturevlm.vlm.adapter import answer_ids
from texturevlm.vlm.captured_decode import CapturedDecode, DenseKeys, KnownKeys
from texturevlm.vlm.modules import Override

# A cache of prompts that the model read, and the arguments that it read them with → what is known of the keys in each
# layer; None: the model goes on itself.
KnownOf = Callable[[Any, Mapping[str, Any]], list[KnownKeys] | None]

# Options of `generate` under which its model must run itself.
BY_THE_MODEL = ("output_attentions", "output_hidden_states", "assistant_model", "prompt_lookup_num_tokens")
# Slots behind a captured prefill, and new tokens behind another: what may need more is decoded by the model itself.
MOST = 4096


@dataclass(frozen=True, eq=False)
class PrefillOutput:
    """Output of the language model for B prompts. The next call with the same length overwrites it.

    logits: (B, V), of the first token of the answer
    caches: keys and values of each layer in turn, (B, heads, length rounded up, d)
    inputs: ids, attention mask and positions of the prompts, as `generate` takes them, padded on the right
    """

    logits: Tensor
    caches: tuple[Tensor, ...]
    inputs: dict[str, Tensor]

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of each layer."""
        return list(zip(self.caches[::2], self.caches[1::2]))


def generate_behind(
    model: Any, read: PrefillOutput, lengths: Sequence[int], decode: CapturedDecode, options: Mapping[str, Any]
) -> Any:
    """What `generate` returns, without the prompts.

    lengths: of the prompts
    decode:  of as many prompts
    options: of `generate`
    """
    longest = max(lengths)
    new = most_new_tokens(model, options)
    new = None if new is None or longest + new > MOST else new
    if new is None and min(lengths) < longest:
        raise ValueError(f"generate: prompts must have one length in tokens with these options, got {list(lengths)}")
    inputs = {name: _padded_left(value, lengths) for name, value in read.inputs.items()}
    if new is None:
        with _first_step(model, read, longest) as cache:
            found = model.generate(**inputs, past_key_values=cache, **options)
        if not isinstance(found, Tensor):
            _keep(found.past_key_values, longest)
    else:
        with _every_step(model, read, lengths, decode, new) as cache:
            found = model.generate(**inputs, past_key_values=cache, **options)
        if not isinstance(found, Tensor):
            found.past_key_values = _kept_cache(read, lengths, decode, found.sequences.shape[1] - 1)
    return answer_ids(found, longest)


def most_new_tokens(model: Any, options: Mapping[str, Any]) -> int | None:
    """The greatest length of an answer, if it can be decoded from a graph."""

    def option(name: str) -> Any:
        given = [
            options.get(name),
            *(getattr(config, name, None) for config in (options.get("generation_config"), own)),
        ]
        return next((value for value in given if value is not None), None)

    own = model.generation_config
    if any(option(name) for name in BY_THE_MODEL) or option("use_cache") is False:
        return None
    if any((option(name) or 1) > 1 for name in ("num_beams", "num_return_sequences")):
        return None
    new = option("max_new_tokens")
    return None if new is None else int(new)


@contextmanager
def _every_step(
    model: Any, read: PrefillOutput, lengths: Sequence[int], decode: CapturedDecode, new: int
) -> Iterator[Any]:
    """Inside, `generate` with the given cache gets what was read first, then what the graph gives."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    longest = max(lengths)
    lacking: Any = _counting_cache(read.logits, longest - 1)
    steps = GraphSteps(decode, _counting_cache(read.logits, longest))

    def step(*args: Any, **kwargs: Any) -> Any:
        cache: Any = kwargs.get("past_key_values")
        if cache is lacking:
            return CausalLMOutputWithPast(logits=read.logits[:, None], past_key_values=steps.counted)
        if cache is not steps.counted:  # of another thread
            return stand_in.original(*args, **kwargs)
        if not steps.begun:  # the first token does not wait for these copies
            keys = DenseKeys.of(read.inputs["attention_mask"], lengths=lengths)
            steps.begin(read.caches, [keys] * len(read.layers), new)
        return steps(kwargs)

    stand_in = Override(model, "forward", step)
    try:
        yield lacking
    finally:
        stand_in.remove()


@contextmanager
def decoded_by_graph(
    model: Any, decode: CapturedDecode, known_of: KnownOf, options: Mapping[str, Any]
) -> Iterator[None]:
    """Inside, one `generate` reads its prompts by the model itself, and gets every further token from a graph.

    options: of that `generate`
    """
    new, steps, read = most_new_tokens(model, options), None, None
    new = None if new is None or new > MOST else new

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal steps, read
        if steps is not None and kwargs.get("past_key_values") is steps.counted:
            if read is not None:  # the first token does not wait for these copies
                steps.begin(*read)
                read = None  # its memory may be needed
            return steps(kwargs)
        found = stand_in.original(*args, **kwargs)
        cache = getattr(found, "past_key_values", None)
        if steps is None and new is not None and cache is not None:
            caches = [part for layer in cache.layers for part in (layer.keys, layer.values)]
            known = known_of(cache, kwargs) if _has_room(caches, new) else None
            if known is not None:
                read, steps = (
                    (caches, known, new),
                    GraphSteps(decode, _counting_cache(found.logits, cache.get_seq_length())),
                )
                found.past_key_values = steps.counted
        return found

    stand_in = Override(model, "forward", step)
    try:
        yield
    finally:
        stand_in.remove()


def dense_keys(cache: Any, given: Mapping[str, Any]) -> list[KnownKeys] | None:
    """KnownOf of a model that attends densely to its prompts, padded on the left."""
    length, mask = cache.get_seq_length(), given.get("attention_mask")
    like = cache.layers[0].keys
    live = torch.ones(len(like), length, dtype=torch.bool, device=like.device) if mask is None else mask
    if live.shape != (len(like), length):
        return None
    return [DenseKeys.of(live)] * len(cache.layers)


def _has_room(caches: Sequence[Tensor], new: int) -> bool:
    """Whether the GPU has room for copies of keys and values with so many new ones, and as much again."""
    device = caches[0].device
    if device.type != "cuda":
        return True
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    slots = (cache.numel() // cache.shape[2] * (cache.shape[2] + new) * cache.element_size() for cache in caches)
    return 2 * sum(slots) < free


class GraphSteps:
    """The steps of one `generate` behind its first.

    counted: a cache of which `generate` reads the length alone
    """

    def __init__(self, decode: CapturedDecode, counted: Any) -> None:
        self.decode, self.counted, self.begun = decode, counted, False

    def begin(self, caches: Sequence[Tensor], known: Sequence[KnownKeys], new: int) -> None:
        """Give what was read to the CapturedDecode, with its arguments."""
        self.decode.begin(caches, known, new)
        self.begun = True

    def __call__(self, given: Mapping[str, Any]) -> Any:
        """The output of the model for the arguments that `generate` gives it."""
        from transformers.modeling_outputs import CausalLMOutputWithPast

        ids = given["input_ids"]
        self.counted.update(*[ids.new_empty(len(ids), 1, 1, 1)] * 2, 0)
        logits = self.decode(ids, given["position_ids"][-3:])
        return CausalLMOutputWithPast(logits=logits[:, None], past_key_values=self.counted)


def _kept_cache(read: PrefillOutput, lengths: Sequence[int], decode: CapturedDecode, length: int) -> Any:
    """The cache of an answer, copied from what the next one overwrites; None for prompts of several lengths."""
    from transformers import DynamicCache

    if min(lengths) < max(lengths):
        return None
    cache = DynamicCache()
    one_token = length == lengths[0]  # nothing was decoded
    pairs = (
        [(key[:, :, :length].clone(), value[:, :, :length].clone()) for key, value in read.layers]
        if one_token
        else decode.layers(length)
    )
    for index, (key, value) in enumerate(pairs):
        cache.update(key, value, index)
    return cache


def _counting_cache(like: Tensor, length: int) -> Any:
    """A cache for as many prompts as `like` (B, ...) has, of which only the length is read."""
    from transformers import DynamicCache

    cache = DynamicCache()
    cache.update(*[torch.empty(len(like), 1, length, 1, dtype=torch.int64, device=like.device)] * 2, 0)
    return cache


def _padded_left(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """(..., B, L): a copy whose rows end where they began to be padded."""
    longest = max(lengths)
    if min(lengths) == longest:
        return values.clone()
    rows = [row.roll(longest - length, -1) for row, length in zip(values.unbind(-2), lengths)]
    return torch.stack(rows, -2)


@contextmanager
def _first_step(model: Any, read: PrefillOutput, length: int) -> Iterator[Any]:
    """Inside, the first step of `generate` with the given cache returns what was read; the model runs from the second.

    length: of the prompt. `generate` runs the model on what its cache lacks, so this one lacks the last token
    """
    from transformers import DynamicCache
    from transformers.modeling_outputs import CausalLMOutputWithPast

    # Every layer of a model that is captured attends to its whole prompt, so these caches need no config.
    lacking, whole = _counting_cache(read.logits, length - 1), DynamicCache()
    whole.layers += [_layer(key, value, length) for key, value in read.layers]

    def first(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("past_key_values") is not lacking:  # of another thread
            return stand_in.original(*args, **kwargs)
        stand_in.remove()
        return CausalLMOutputWithPast(logits=read.logits[:, None], past_key_values=whole)

    stand_in = Override(model, "forward", first)
    try:
        yield lacking
    finally:
        stand_in.remove()


def _layer(key: Tensor, value: Tensor, length: int) -> Any:
    """One layer of a cache with a prompt of this length.

    Nothing is copied, so that the first token waits for no copies; the next step of `generate` makes a longer one.
    """
    from transformers.cache_utils import DynamicLayer

    layer = DynamicLayer()
    layer.lazy_initialization(key, value)
    layer.keys, layer.values = key[:, :, :length], value[:, :, :length]
    return layer


def _keep(cache: Any, length: int) -> None:
    """Copy a cache that is returned and still is what was read: the next prefill overwrites that."""
    if cache.get_seq_length() == length:
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
