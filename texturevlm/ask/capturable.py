"""Which options of `generate` work with a captured prefill: those that generate one answer, token by token.

Options that change the number of sequences, the cache of the prompt or the preparation of the prompt run without
capture. Only options that are listed here are captured.
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
    "output_logits",
    "output_scores",
    "return_dict_in_generate",
)
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
