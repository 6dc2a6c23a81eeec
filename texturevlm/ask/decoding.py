"""How an answer is decoded: options of transformers' `generate`, checked before slow work begins.

Options that generate one answer, token by token, work with a captured prefill. Those that change the number of
sequences, the cache of the prompt or the preparation of the prompt run without capture.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping
from numbers import Real
from typing import Any

from texturevlm.check import check_count
from texturevlm.registry import near_miss

MAX_NEW_TOKENS = 256  # unless the caller says otherwise
# A checkpoint's own settings of sampling would be warned of.
GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
COUNTS = {"num_beams": 1, "num_return_sequences": 1, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "top_k": 0}
REALS = (*SAMPLING, "repetition_penalty", "length_penalty", "max_time")
# `generate` takes them although its signature does not show them.
HIDDEN = ("tokenizer", "assistant_tokenizer")
PREPARING = ("levels", "coordinates")  # of an adapter's `prepare`
PROMPT = ("self", "inputs", "kwargs")  # of that signature: what `ask` prepares
# Names in other libraries; and lengths that count the prompt, too, which give way to those that do not.
USUALLY = {"stop": "stop_strings", "max_length": "max_new_tokens", "min_length": "min_new_tokens"}


def decoding(
    model: Any, tokenizer: Any, max_new_tokens: int | None, options: Mapping[str, Any], own: Collection[str]
) -> dict[str, Any]:
    """The options of `generate` for an answer: greedy unless they ask for sampling.

    options: of the caller
    own:     names of the caller's other options, which a misspelled one may have meant
    """
    if options:  # the signature of `generate` is looked up for them alone
        known = {*vars(_config(model)), *_arguments(model), *HIDDEN, *PREPARING} - set(USUALLY)
        _check_names(options, known, own)
    config = options.get("generation_config")
    _check_kinds(options)
    if max_new_tokens is None:
        max_new_tokens = getattr(config, "max_new_tokens", None) or MAX_NEW_TOKENS
    found = {"max_new_tokens": max_new_tokens, **options}
    _check_values(found)
    if config is None and found.get("do_sample") is None:
        found |= _sampling_or_greedy(found)
    if option_of(found, "stop_strings"):
        found.setdefault("tokenizer", tokenizer)  # `generate` needs it to find them
    if options:
        _check_together(model, found)
    return found


def option_of(options: Mapping[str, Any], name: str) -> Any:
    """An option of `generate`: as given, else as in the generation config that was given; None if neither says."""
    value = options.get(name)
    return getattr(options.get("generation_config"), name, None) if value is None else value


def end_ids(model: Any, given: Any = None) -> list[int]:
    """The ids that end an answer: those given, else those of the model; none if neither says."""
    found = getattr(model.generation_config, "eos_token_id", None) if given is None else given
    return [] if found is None else [found] if isinstance(found, int) else list(found)


def several_sequences(options: Mapping[str, Any]) -> str | None:
    """The option that makes more than one sequence, if there is one."""
    return next((name for name in ("num_beams", "num_return_sequences") if (option_of(options, name) or 1) > 1), None)


def in_one_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options; where a generation config is given, a copy of it holds them: `generate` warns of both."""
    others = {name: value for name, value in options.items() if name != "generation_config"}
    if options.get("generation_config") is None:
        return others
    config = copy.deepcopy(options["generation_config"])
    return {"generation_config": config, **config.update(**others)}


def _check_kinds(options: Mapping[str, Any]) -> None:
    from transformers import GenerationConfig

    config = options.get("generation_config")
    if config is not None and not isinstance(config, GenerationConfig):
        raise TypeError(f"ask: generation_config must be a GenerationConfig, got {type(config).__name__}")
    for name in ("stopping_criteria", "logits_processor"):
        value = options.get(name)
        if value is not None and not isinstance(value, (list, tuple)):
            raise TypeError(f"ask: {name} must be a list, got {type(value).__name__}")


def _check_names(options: Collection[str], known: Collection[str], own: Collection[str]) -> None:
    for name in options:
        if name not in known or name.startswith("_"):
            meant = near_miss(USUALLY.get(name, name), {*own, *known})
            raise TypeError(f"ask: options must be those of ask or of the model's generate, got {name}{meant}")


def _sampling_or_greedy(options: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling if an option of it is given, unless the temperature is 0."""
    given = [name for name in SAMPLING if options.get(name) is not None]
    if given and options.get("temperature") != 0:
        return {"do_sample": True}  # what is left open is the checkpoint's
    return {**GREEDY, **dict.fromkeys(given)}


def _config(model: Any) -> Any:
    from transformers import GenerationConfig

    own = getattr(model, "generation_config", None)
    return GenerationConfig() if own is None else own


def _arguments(model: Any) -> set[str]:
    return set(inspect.signature(type(model).generate).parameters) - set(PROMPT)


def _check_values(options: Mapping[str, Any]) -> None:
    check_count("ask", "max_new_tokens", options["max_new_tokens"], 1)
    for name, least in COUNTS.items():
        if options.get(name) is not None:
            check_count("ask", name, options[name], least)
    for name in REALS:
        value = options.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise TypeError(f"ask: {name} must be a number, got {value!r:.60}")
    temperature, sampling = options.get("temperature"), options.get("do_sample")
    if temperature is not None and (temperature < 0 or (temperature == 0 and sampling)):
        wanted = "above 0 with do_sample" if sampling else "0 (greedy) or above"
        raise ValueError(f"ask: temperature must be {wanted}, got {temperature}")
    if (share := options.get("top_p")) is not None and not 0 < share <= 1:
        raise ValueError(f"ask: top_p must be above 0 and at most 1, got {share}")


def _check_together(model: Any, options: Mapping[str, Any]) -> None:
    """What transformers says of them together, before anything is computed."""
    config = copy.deepcopy(options.get("generation_config") or _config(model))
    try:
        config.update(**{name: value for name, value in options.items() if name in vars(config)})
        config.validate()
    except (ValueError, TypeError) as error:
        raise ValueError(f"ask: options must be as generate takes them, got {' '.join(str(error).split())}") from error


PLAIN = (
    *SAMPLING, "max_new_tokens", "min_new_tokens", "max_time", "do_sample", "repetition_penalty",
    "no_repeat_ngram_size", "bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens",
    "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty", "renormalize_logits",
    "eos_token_id", "pad_token_id", "bos_token_id", "stop_strings", "tokenizer", "logits_processor",
    "stopping_criteria", "streamer", "output_logits", "output_scores", "return_dict_in_generate",
)  # fmt: skip
# Values that change nothing, of options that are not listed.
AS_ALWAYS = {"num_beams": (1, None), "num_return_sequences": (1, None), "use_cache": (True, None)}


def not_captured_because(options: Mapping[str, Any], checkpoint: Any) -> str | None:
    """Why an answer with these options of `generate` cannot be captured; None if it can.

    checkpoint: the generation config of the model, for what the options leave open
    """
    for name, value in options.items():
        if name not in PLAIN and value not in AS_ALWAYS.get(name, ()):
            return f"an answer with {name}={value!r:.40} is not captured"
    for name, usual in AS_ALWAYS.items():
        if name not in options and (value := getattr(checkpoint, name, None)) not in usual:
            return f"an answer with {name}={value!r:.40}, as the model's generation config says, is not captured"
    return None
