"""Small models of the real families, built on the spot with random weights, and a tokenizer of a few words."""

from importlib.util import find_spec

import pytest
import torch

from texturevlm.types import Allocation, Texture

if find_spec("transformers") is None:  # one that is there and cannot be imported must fail
    pytest.skip("needs transformers", allow_module_level=True)
import transformers

WORDS = ["<pad>", "<end>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<unk>", "user"]
WORDS += ["what", "is", "the", "total", "?", "and", "there", "seconds", ">", "<", ".", ":", *map(str, range(10))]
WORDS += ["<fake_token_around_image>", "<global-img>"]
IDS = {word: index for index, word in enumerate(WORDS)}
VISION_START, VISION_END, IMAGE, VIDEO = 2, 3, 4, 5
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} : {% for c in m.content %}"
    "{% if c.type == 'text' %} {{ c.text }} {% else %}"
    "<|vision_start|>{{ '<|image_pad|>' if c.type == 'image' else '<|video_pad|>' }}<|vision_end|>"
    "{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %} : {% endif %}"
)


BARE = TEMPLATE.replace("<|vision_start|>", "").replace("<|vision_end|>", "")
BEGIN = TEMPLATE.replace("'<|image_pad|>'", "''").replace("<|vision_end|>", "")  # only the token before an image


def tokenizer(template=TEMPLATE, **named):
    """A fast tokenizer; `named` are tokens that can be read from it as attributes."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=True)]
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        additional_special_tokens=WORDS[2:6] + WORDS[-2:],
    )
    fast.chat_template = template
    for name, token in named.items():
        setattr(fast, name, token)
    return fast


class Processor:
    """What an adapter needs of a processor; the real one wants torchvision for its videos."""

    def __init__(self, patch, mean, std):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self.tokenizer = tokenizer()
        self.image_processor = Qwen2VLImageProcessorPil(
            patch_size=patch, do_resize=False, image_mean=mean, image_std=std, merge_size=2, temporal_patch_size=2
        )


SPECIAL = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": VISION_START,
    "vision_end_token_id": VISION_END,
}


def text(**more):
    return {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 1,
        **more,
    }


CLIP = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
QWEN3_VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 36,
    "deepstack_visual_indexes": [1, 2],
    "patch_size": 16,
}


def qwen3_vl():
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    config = Qwen3VLConfig(
        text_config=text(head_dim=8, rope_parameters=rope),
        vision_config=QWEN3_VISION,
        tie_word_embeddings=False,
        **SPECIAL,
    )
    return grown(Qwen3VLForConditionalGeneration, config, head=0.6), Processor(16, [0.5] * 3, [0.5] * 3)


def qwen2_5_vl():
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vision = {
        "depth": 4,
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_heads": 2,
        "out_hidden_size": 32,
        "fullatt_block_indexes": [1, 3],
        "window_size": 56,
        "patch_size": 14,
        "tokens_per_second": 2,
    }
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    config = Qwen2_5_VLConfig(
        text_config=text(rope_parameters=rope), vision_config=vision, tie_word_embeddings=False, **SPECIAL
    )
    return grown(Qwen2_5_VLForConditionalGeneration, config, head=0.6), Processor(14, *CLIP)


VIT = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2, "patch_size": 16}
WORDS_ONLY = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 1}
WORDS_ONLY |= {"num_attention_heads": 2, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 1}


def clip():
    from transformers import CLIPConfig, CLIPModel

    vision = VIT | {"image_size": 96}
    return grown(CLIPModel, CLIPConfig(text_config=WORDS_ONLY, vision_config=vision, projection_dim=24))


def siglip():
    from transformers import SiglipConfig, SiglipModel

    return grown(SiglipModel, SiglipConfig(text_config=WORDS_ONLY, vision_config=VIT | {"image_size": 96}))


def siglip2():
    from transformers import Siglip2Config, Siglip2Model

    return grown(Siglip2Model, Siglip2Config(text_config=WORDS_ONLY, vision_config=VIT | {"num_patches": 36}))


ENCODERS = {"clip": clip, "siglip": siglip, "siglip2": siglip2}


class LlavaProcessor:
    def __init__(self, template=TEMPLATE, **named):
        self.tokenizer = tokenizer(template, **named)


def llava():
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    vision = VIT | {"image_size": 96, "model_type": "clip_vision_model", "projection_dim": 24}
    config = LlavaConfig(
        vision_config=vision,
        text_config=text(model_type="llama", head_dim=8),
        image_token_index=IMAGE,
        image_token_id=IMAGE,
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
    )
    return grown(LlavaForConditionalGeneration, config), LlavaProcessor()


def llava_onevision():
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    vision = VIT | {"image_size": 96, "model_type": "siglip_vision_model", "vision_use_head": False}
    config = LlavaOnevisionConfig(
        vision_config=vision,
        text_config=text(model_type="qwen2"),
        image_token_index=IMAGE,
        image_token_id=IMAGE,
        video_token_index=VIDEO,
        video_token_id=VIDEO,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_grid_pinpoints=[[96, 96], [96, 192], [192, 96]],
    )
    return grown(LlavaOnevisionForConditionalGeneration, config), LlavaProcessor()


def qwen2_vl():
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    vision = {"depth": 3, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 1, "num_heads": 2, "patch_size": 14}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
    config = Qwen2VLConfig(
        text_config=text(rope_parameters=rope), vision_config=vision, tie_word_embeddings=False, **SPECIAL
    )
    return grown(Qwen2VLForConditionalGeneration, config, head=0.6), Processor(14, *CLIP)


def qwen3_vl_moe():
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = Qwen3VLMoeConfig(
        text_config=text(head_dim=8, rope_parameters=rope, **experts),
        vision_config=QWEN3_VISION,
        tie_word_embeddings=False,
        **SPECIAL,
    )
    return grown(Qwen3VLMoeForConditionalGeneration, config, head=0.6), Processor(16, [0.5] * 3, [0.5] * 3)


def _glm(kind, **more):
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil

    vision = {"depth": 3, "hidden_size": 32, "intermediate_size": 40, "out_hidden_size": 32, "num_heads": 2}
    vision |= {"patch_size": 14, "image_size": 84, "spatial_merge_size": 2, "temporal_patch_size": 2}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1], "partial_rotary_factor": 1.0}
    special = {"image_token_id": IMAGE, "video_token_id": VIDEO}
    special |= {"image_start_token_id": VISION_START, "image_end_token_id": VISION_END}
    words = text(rope_parameters=rope, **more)
    config = getattr(transformers, f"{kind}Config")(text_config=words, vision_config=vision, **special)
    processor = LlavaProcessor()
    processor.image_processor = Glm4vImageProcessorPil(
        patch_size=14, do_resize=False, merge_size=2, temporal_patch_size=2
    )
    return grown(getattr(transformers, f"{kind}ForConditionalGeneration"), config, head=0.6), processor


def glm4v():
    return _glm("Glm4v")


def glm4v_moe():
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1}
    return _glm("Glm4vMoe", **experts)


def internvl():
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    vision = VIT | {"patch_size": (14, 14), "image_size": (84, 84), "layer_scale_init_value": 1.0}
    config = InternVLConfig(
        vision_config=vision, text_config=text(model_type="qwen2"), image_token_id=IMAGE, tie_word_embeddings=False
    )
    around = {"start_image_token": WORDS[VISION_START], "end_image_token": WORDS[VISION_END]}
    return grown(InternVLForConditionalGeneration, config), LlavaProcessor(BARE, **around)


def gemma3():
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    vision = VIT | {"patch_size": 8, "image_size": 96, "model_type": "siglip_vision_model", "vision_use_head": False}
    config = Gemma3Config(
        vision_config=vision,
        text_config=text(head_dim=8, query_pre_attn_scalar=8, sliding_window=24, layer_types=GEMMA_LAYERS),
        mm_tokens_per_image=9,
        image_token_index=IMAGE,
        boi_token_index=VISION_START,
        eoi_token_index=VISION_END,
        tie_word_embeddings=False,
    )
    return grown(Gemma3ForConditionalGeneration, config), LlavaProcessor(BEGIN)


def smolvlm():
    from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

    config = SmolVLMConfig(
        vision_config=VIT | {"patch_size": 8, "image_size": 96},
        text_config=text(model_type="llama", head_dim=8),
        scale_factor=4,
        image_token_id=IMAGE,
    )
    return grown(SmolVLMForConditionalGeneration, config), LlavaProcessor(BARE)


GEMMA_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
LLAVAS = {"llava": llava, "llava_onevision": llava_onevision}


def built(families, name):
    """A model and its processor, whose template has no markers around images where the family knows none."""
    model, processor = families[name]()
    if name in LLAVAS:
        processor.tokenizer.chat_template = BARE
    return model, processor


BUILDERS = {"qwen3_vl": qwen3_vl, "qwen2_5_vl": qwen2_5_vl}
MORE = {"qwen2_vl": qwen2_vl, "qwen3_vl_moe": qwen3_vl_moe, "glm4v": glm4v, "glm4v_moe": glm4v_moe}
MORE |= {"internvl": internvl, "gemma3": gemma3, "smolvlm": smolvlm}


def grown(kind, config, *, head=0.15):
    """Weights large enough that every position matters to the logits; those of the last layer as large as `head`."""
    torch.manual_seed(1)
    model = kind._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, head if "lm_head" in name else 0.6 if "embed" in name else 0.15)
    if hasattr(model, "generation_config"):
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return model


def picture(height, width, batch=1):
    return Texture.open(torch.rand(batch, 3, height, width)).mipmapped()


def full_grid(texture, side, *, frames=None, scale=1.0):
    """Every cell of a grid of tokens, for each image of a batch; or for some frames under one allocation."""
    height, width = texture.size
    rows, columns = round(height / (side * scale)), round(width / (side * scale))
    y, x = torch.meshgrid(torch.arange(rows).float(), torch.arange(columns).float(), indexing="ij")
    corner = torch.stack([x, y], -1).reshape(1, -1, 2) * side * scale
    boxes = torch.cat([corner, corner + side * scale], -1)
    if frames is None:
        return Allocation.of_boxes(boxes.expand(texture.batch, -1, -1), texture.size, side)
    every = Allocation.of_boxes(boxes.repeat(1, len(frames), 1), texture.size, side)
    source = torch.tensor(frames).repeat_interleave(rows * columns)[None]
    return Allocation(every.centre, every.ddx, every.ddy, every.score, every.valid, source, every.size, side)


def chosen(texture, side, count, *, seed=0):
    """Random upright footprints at mixed fractional and anisotropic scales."""
    random = torch.Generator().manual_seed(seed)
    height, width = texture.size
    shape = (texture.batch, count)
    centre = torch.rand(*shape, 2, generator=random) * torch.tensor([width, height])
    across, down = (2 ** (torch.rand(shape, generator=random) * 2 - 0.5) for _ in range(2))
    zero = torch.zeros(shape)
    return Allocation(
        centre,
        torch.stack([across, zero], -1),
        torch.stack([zero, down], -1),
        zero,
        torch.ones(shape, dtype=torch.bool),
        torch.zeros(shape, dtype=torch.int64),
        texture.size,
        side,
    )
