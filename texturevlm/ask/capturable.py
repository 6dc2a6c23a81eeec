"""Which answers can go on from a captured prefill: those that `generate` writes one token at a time, as one answer.

Options that change how many sequences there are, what is kept of the prompt or how the prompt is prepared take the
model's own way. What leaves all that alone is listed; an option that is not is not risked.
"""

from collections.abc import Mapping
from typing import Any

PLAIN = (
    "max_new_tokens",
    "min_new_tokens",
    "max_time",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "top_h",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "sequence_bias",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_eos_token_id",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "renormalize_logits",
    "eos_token_id",
    "pad_token_id",
    "bos_token_id",
    "stop_strings",
    "tokenizer",
    "logits_processor",
    "stopping_criteria",
    "streamer",
)
# What asks for nothing, though it is no option of the list.
AS_ALWAYS = {"num_beams": (1, None), "num_return_sequences": (1, None), "use_cache": (True, None)}


def not_captured_because(options: Mapping[str, Any], checkpoint: Any) -> str | None:
    """What keeps an answer with these options of `generate` from being captured.

    checkpoint: the model's own generation config, which counts where the options say nothing
    """
    for name, value in options.items():
        if name not in PLAIN and value not in AS_ALWAYS.get(name, ()):
            return f"an answer with {name}={value!r:.40} is not captured"
    for name, usual in AS_ALWAYS.items():
        if name not in options and (value := getattr(checkpoint, name, None)) not in usual:
            return f"an answer with {name}={value!r:.40}, as the model's generation config says, is not captured"
    return None
