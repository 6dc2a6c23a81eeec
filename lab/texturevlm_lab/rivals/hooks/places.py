"""What each family lets reductions do: where tokens may leave, and which fields of a Context methods get there."""

from collections.abc import Mapping

ALL_PLACES: Mapping[str, set[str]] = {
    "pixels": {"pixels"},
    "tower": {"keys"},
    "projector": {"keys", "received", "shallow", "question"},
    "llm": {"keys", "queries", "asked", "question"},
    "decode": {"asked"},
}
# GLM's language model rotates pairs of neighbours, as no method here reads them.
OUTSIDE_THE_LANGUAGE_MODEL = {name: ALL_PLACES[name] for name in ("pixels", "tower", "projector")}
# model_type of a config → place → fields. Not of LLaVA-OneVision, whose tokens for new lines the tower does not see,
# and of Gemma 3, whose layers attend in windows.
PLACES_OF: Mapping[str, Mapping[str, set[str]]] = {
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen2_vl"), ALL_PLACES),
    **dict.fromkeys(("glm4v", "glm4v_moe"), OUTSIDE_THE_LANGUAGE_MODEL),
    **dict.fromkeys(("internvl", "smolvlm", "llava"), ALL_PLACES),
}
