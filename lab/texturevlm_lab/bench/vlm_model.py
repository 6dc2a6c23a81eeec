"""What benchmarks of a vision-language model share: the model, transformers' own way through it, and ours.

The model has Qwen3-VL-4B's architecture with random weights, which do not change the time. Its tokenizer is made here,
because none can be downloaded: words of no meaning under Qwen3-VL's ids, and a chat template that makes a prompt of
PROMPT_WORDS tokens beside the image's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from texturevlm.ask import VLM, PlainProcessor
from texturevlm.defaults import ALLOCATOR
from texturevlm.placement import choose_tokens, in_slots
from texturevlm.placement.captured import compile as capture
from texturevlm.types import Allocation, Texture
from texturevlm.vlm import CapturedPrefill, adapt
from texturevlm.vlm.captured import TowerOutput
from texturevlm.vlm.families.qwen import QwenAdapter
from texturevlm_lab.bench.report import Report
from texturevlm_lab.bench.timing import Work

QUESTION = "What is the total amount of the invoice dated 14 March 1998?"
PROMPT_WORDS = 64  # tokens of a prompt beside the image's

# Qwen3-VL-4B, where it differs from the defaults of transformers.
TEXT: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5e6,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
}
VISION: dict[str, Any] = {
    "depth": 24,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "out_hidden_size": 2560,
    "deepstack_visual_indexes": [5, 11, 17],
}
# Two layers of each, narrow: to see that everything runs.
SMALL_TEXT: dict[str, Any] = {
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 152000,
}
SMALL_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_heads": 2,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0],
}
TEMPLATE = (
    "<|im_start|> system You are a helpful assistant . Read the page and answer the question with the words that are "
    "on it , and with no others . If the page does not say , answer that it does not say . <|im_end|> "
    "<|im_start|> user "
    "{% for part in messages[0].content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}"
    " {{ part.text }} {% endif %}{% endfor %}<|im_end|> <|im_start|> assistant : "
)


def random_model(device: str, *, small: bool, text: bool = True) -> QwenAdapter:
    """Qwen3-VL-4B's architecture with random weights, made where they are used.

    small: two narrow layers of each
    text:  whether the language model will run; without, a small one that takes what the tower gives will do
    """
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    vision = VISION | (SMALL_VISION if small else {})
    words = TEXT | (SMALL_TEXT if small or not text else {}) | {"hidden_size": vision["out_hidden_size"]}
    config = Qwen3VLConfig(text_config=words, vision_config=vision, tie_word_embeddings=True)
    with torch.device(device):
        model = Qwen3VLForConditionalGeneration._from_config(
            config, dtype=torch.bfloat16 if device == "cuda" else torch.float32, attn_implementation="sdpa"
        )
    adapter: QwenAdapter = adapt(model.eval().requires_grad_(False))
    return adapter


def asked_model(adapter: QwenAdapter, budget: int) -> VLM:
    """The model as `load_vlm` gives it; relevance `auto` is the scout unless RapidOCR is installed, so it is named."""
    processor = PlainProcessor(made_tokenizer(adapter.config), their_processor(adapter))
    return VLM(adapter.model, processor, budget=budget, relevance="scout")


def made_tokenizer(config: Any) -> Any:
    """A word for every id, the special ones in their places."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = {
        "<|im_start|>": config.vision_start_token_id - 8,
        "<|im_end|>": config.vision_start_token_id - 7,
        "<|vision_start|>": config.vision_start_token_id,
        "<|vision_end|>": config.vision_end_token_id,
        "<|image_pad|>": config.image_token_id,
        "<|video_pad|>": config.video_token_id,
    }
    named = {index: word for word, index in special.items()} | {0: "<unk>"}
    vocabulary = {named.get(index, f"word{index}"): index for index in range(config.text_config.vocab_size)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<unk>", additional_special_tokens=list(special)
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def gibibytes(model: Any) -> float:
    """The memory of a model's weights."""
    return float(sum(weight.numel() * weight.element_size() for weight in model.parameters()) / 2**30)


@contextmanager
def unhooked(adapter: QwenAdapter) -> Iterator[None]:
    """Inside, the model is as transformers made it."""
    model = adapter.restore()
    try:
        yield
    finally:
        adapter.bind(model)


def prompt_ids(adapter: QwenAdapter, tokens: int) -> list[int]:
    """A prompt of PROMPT_WORDS tokens around those of an image."""
    config = adapter.model.config
    before = [1, 2, 3, config.vision_start_token_id]
    after = [config.vision_end_token_id, *range(4, 4 + PROMPT_WORDS - len(before) - 1)]
    return [*before, *[config.image_token_id] * tokens, *after]


def pixel_values(adapter: QwenAdapter, image: Tensor) -> tuple[Tensor, Tensor]:
    """What the processor does, on the device: resize to a multiple of the token side, normalise, cut into rows."""
    batch, side = image.shape[0], adapter.side
    rows, columns = adapter.grid_for((image.shape[2], image.shape[3]))
    resized = functional.interpolate(image, (rows * side, columns * side), mode="bicubic", antialias=True)
    cells = resized.reshape(batch, 3, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
    patches = adapter.patch_rows(adapter.normalised(cells.reshape(-1, 1, 3, side, side)))
    grid = torch.tensor([[1, rows * adapter.merge, columns * adapter.merge]] * batch, device=image.device)
    return patches.to(adapter.tower.dtype), grid


def their_processor(adapter: QwenAdapter, max_pixels: int = 1 << 24) -> Any:
    """transformers' own, on the CPU, as it comes with Qwen3-VL; a larger image is resized to `max_pixels`."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    mean, deviation = adapter.normalisation
    limits = {"shortest_edge": 1 << 16, "longest_edge": max_pixels}
    patch = adapter.side // adapter.merge
    return Qwen2VLImageProcessorPil(patch_size=patch, image_mean=mean, image_std=deviation, size=limits)


def their_inputs(adapter: QwenAdapter, rows: Tensor, grid: Tensor) -> dict[str, Tensor]:
    tokens = rows.shape[0] // len(grid) // adapter.merge**2
    ids = torch.tensor([prompt_ids(adapter, tokens)] * len(grid), device=rows.device)
    kinds = (ids == adapter.model.config.image_token_id).int()
    return {"input_ids": ids, "mm_token_type_ids": kinds, "pixel_values": rows, "image_grid_thw": grid}


@torch.no_grad()
def their_first_token(adapter: QwenAdapter, inputs: dict[str, Tensor]) -> list[int]:
    logits: Tensor = adapter.model(**inputs, logits_to_keep=1, use_cache=True).logits
    return [int(token) for token in logits[:, -1].argmax(-1)]


def compiled_first_token(adapter: QwenAdapter, inputs: dict[str, Tensor]) -> Work:
    """`their_first_token` as transformers advises for speed: torch.compile with CUDA graphs, and a static cache."""
    from transformers import StaticCache

    model, (batch, length) = adapter.model, inputs["input_ids"].shape
    text = model.config.get_text_config()
    cache = StaticCache(config=text, max_cache_len=length)
    cache.early_initialization(batch, text.num_key_value_heads, text.head_dim, model.dtype, model.device)
    torch.compiler.reset()  # else a second shape counts as a recompilation, of which there is a limit
    forward: Any = torch.compile(model, mode="reduce-overhead", dynamic=False)

    begin_step: Any = torch.compiler.cudagraph_mark_step_begin

    @torch.no_grad()
    def read() -> list[int]:
        cache.reset()
        begin_step()
        logits: Tensor = forward(**inputs, past_key_values=cache, logits_to_keep=1, use_cache=True).logits
        return [int(token) for token in logits[:, -1].argmax(-1)]

    return read


def first_token_of(size: tuple[int, int], batch: int = 1) -> str:
    """The work of a row, for images (height, width)."""
    return f"{size[1]}×{size[0]}, batch {batch} → first token"


def chosen(fixed: CapturedPrefill, texture: Texture, question: str = "", **options: Any) -> Allocation:
    """Where to look, decided on the device. options: of `choose_tokens`; the budget is that of `fixed` by default"""
    options = {"budget": fixed.budget, "patch": fixed.adapter.side, "relevance": "none"} | options
    return choose_tokens(texture, question, **options)


def our_first_token(fixed: CapturedPrefill, image: Tensor, question: str = "", **options: Any) -> list[int]:
    """The tokens that follow images (B, 3, H, W) on the device, chosen by plain calls. options: as for `chosen`"""
    texture = Texture((image,)).mipmapped()
    allocation = in_slots(chosen(fixed, texture, question, **options), fixed.budget)
    return _following(fixed, fixed.encode(texture, allocation), [prompt_ids(fixed.adapter, fixed.budget)])


def captured_first_token(
    report: Report, fixed: CapturedPrefill, image: Tensor, question: str, spell: Callable[[], list[int]]
) -> Work:
    """Mips, scout, allocation and sampling in one graph; tower and prefill in two more. spell: makes the prompt anew"""
    size, side = (image.shape[2], image.shape[3]), fixed.adapter.side
    choose = capture(size, fixed.budget, ALLOCATOR, patch=side, relevance="scout", device=report.device, graphs=1)

    def read() -> list[int]:
        seen = fixed.encode_patches(choose(image, question))
        return _following(fixed, seen, [spell()])

    read()
    if choose.reason is not None:
        report.notes.append(f"{first_token_of(size)}, asked: {choose.reason}.  ")
    return read


def _following(fixed: CapturedPrefill, seen: TowerOutput, ids: list[list[int]]) -> list[int]:
    logits = fixed.prefill(ids * fixed.batch, seen).logits
    return [int(token) for token in logits.argmax(-1).tolist()]
