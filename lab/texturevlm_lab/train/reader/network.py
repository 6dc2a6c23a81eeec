"""The reader's architecture: a stock Qwen3-VL of 19.7 million parameters, and its folder for `from_pretrained`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from texturevlm.ask import PlainProcessor
from texturevlm.channels.pretrained import optional
from texturevlm.defaults import BUDGET
from texturevlm_lab.train.reader.alphabet import (
    END,
    ILLEGIBLE,
    IMAGE,
    PAD,
    START,
    STOP,
    VIDEO,
    VOCABULARY,
    make_tokenizer,
)

PATCH, MERGE = 16, 2
TOKEN_SIDE = PATCH * MERGE  # pixels of a token
_MOST_PIXELS = 4096 * TOKEN_SIDE**2  # a larger image is shrunk by the image processor, before tokens are chosen
_LEAST_PIXELS = 16 * TOKEN_SIDE**2
# By `texturevlm train examples/train/confidence.toml` with the weights that ship: 200 questions of train pages in 68
# tokens, a Brier score of 0.076 on those held out (it is sure of .77 of them, and .93 of those are right).
_CONFIDENCE = [2.2266, 0.9054, -5.9971, 0.3631, -4.2668]
# How training lays tokens, for whoever asks: see vlm/trained.py. It read one page at a time: with several pages in one
# prompt it answers worse (results/document-answers.md).
_TRAINED = {
    "levels": "apart",
    "coordinates": "native",
    "unreadable": ILLEGIBLE,
    "confidence": _CONFIDENCE,
    "fine_pages": 1,
    "finer": {"96": 2.6, "273": 1.6},  # by tokens, between rows of results/reader-finer.md
    "suffix": "",  # it learned bare questions
    "answer_tokens": 160,  # characters: an address has more than 64
    "budget": 512,
    "allocator": "auto",
    "relevance": "scout",
    "turn": "auto",
}
_HEAD, _DROPPED = "network.", ("letter_head.", "place_head.")  # of the names in a checkpoint of `texturevlm train`


def make_config() -> Any:
    """The config of the reader for transformers."""
    vision = {
        "depth": 8,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_heads": 4,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "in_channels": 3,
        "out_hidden_size": 384,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": [2, 5],
        "hidden_act": "gelu_pytorch_tanh",
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12], "mrope_interleaved": True}
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 384,
        "intermediate_size": 896,
        "num_hidden_layers": 6,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 4096,
        "rope_parameters": rope,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "rms_norm_eps": 1e-6,
    }
    return optional("reader", "transformers").Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=STOP,
        tie_word_embeddings=True,
        texturevlm=_TRAINED,
    )


def make_network(config: Any = None) -> Any:
    """A fresh Qwen3VLForConditionalGeneration, of `make_config()` unless a config is given.

    Pages are grey and still: the six slices (three colours, two moments) of the patch embedding start equal, get equal
    gradients and stay equal.
    """
    network = optional("reader", "transformers").Qwen3VLForConditionalGeneration(config or make_config())
    tower = network.model.visual
    with torch.no_grad():
        weight = tower.patch_embed.proj.weight
        grey = torch.randn(weight.shape[0], 1, 1, PATCH, PATCH, device=weight.device) / PATCH
        weight.copy_(grey.expand_as(weight) / 6)
        tower.pos_embed.weight.normal_(0, 0.02)
    return network


def load_weights(network: Any, *files: Path) -> None:
    """Load weights in any precision: of the network, or of a checkpoint of training. Tied ones may be missing.

    files: safetensors; parts of one set if there are several
    """
    state: dict[str, torch.Tensor] = {}
    safetensors = optional("reader", "safetensors")
    for file in files:
        try:
            with safetensors.safe_open(file, "pt") as parts:
                state |= {name: parts.get_tensor(name) for name in parts.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, OSError) as error:
            raise ValueError(f"reader: {file} must be a file of weights (safetensors), got {error}") from None
    own = {name.removeprefix(_HEAD): tensor.float() for name, tensor in state.items() if not name.startswith(_DROPPED)}
    found = network.load_state_dict(own, strict=False)
    network.tie_weights()
    missing = [name for name in found.missing_keys if name != "lm_head.weight"]
    if missing or found.unexpected_keys:
        names = ", ".join(map(str, files))
        raise ValueError(
            f"reader: {names} must hold the reader's weights, got {missing[:3]} missing "
            f"and {found.unexpected_keys[:3]} unknown"
        )


def make_image_processor() -> Any:
    """The image processor of Qwen-VL, on PIL: pixels from -1 to 1."""
    module = optional("reader", "transformers")
    return module.Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size={"shortest_edge": _LEAST_PIXELS, "longest_edge": _MOST_PIXELS},
    )


def save_folder(network: Any, folder: Path, *, budget: int = BUDGET) -> None:
    """Write what `tv.load_vlm(folder)` loads: config, weights in bfloat16, processor, and how tokens are chosen.

    budget: tokens where none are named; they are chosen by the scout, which it was trained with
    """
    from texturevlm.ask.processor import TextureProcessor

    network.to(torch.bfloat16).save_pretrained(folder)
    processor = PlainProcessor(make_tokenizer(), make_image_processor())
    TextureProcessor(processor, network.config, budget=budget, relevance="scout", turn="auto").save_pretrained(folder)
