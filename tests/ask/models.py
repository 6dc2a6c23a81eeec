"""The small models of tests/vlm with tokenizers that know every id, and processors as users have them."""

import torch

from tests.vlm import small
from texturevlm.types import Texture

QUESTION = "what is the total ?"
BARE = small.TEMPLATE.replace("<|vision_start|>", "").replace("<|vision_end|>", "")
FAMILIES = {**small.BUILDERS, **small.LLAVAS}


def built(family):
    """A model, and a processor with a word for each id, so that every answer can be told from every other."""
    model, processor = FAMILIES[family]()
    tokenizer = processor.tokenizer
    tokenizer.add_tokens([f"word{index}" for index in range(64 - len(tokenizer))])
    if family in small.LLAVAS:
        tokenizer.chat_template = BARE
    return model, processor


def users_processor(family, processor):
    """transformers' own."""
    return PROCESSORS[family](processor)


def _qwen_processor(name):
    def made(processor):
        import transformers

        kind = getattr(transformers, name)
        found = kind.__new__(kind)  # its __init__ wants torchvision, for videos
        found.image_token, found.video_token = small.WORDS[small.IMAGE], small.WORDS[small.VIDEO]
        found.image_token_id, found.video_token_id = small.IMAGE, small.VIDEO
        found.vision_start_token_id, found.vision_end_token_id = small.VISION_START, small.VISION_END
        found.tokenizer, found.image_processor = processor.tokenizer, processor.image_processor
        found.video_processor, found.chat_template = None, processor.tokenizer.chat_template
        return found

    return made


def _llava_processor(processor):
    import transformers
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return transformers.LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 96}, crop_size={"height": 96, "width": 96}),
        tokenizer=processor.tokenizer,
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=small.WORDS[small.IMAGE],
        chat_template=processor.tokenizer.chat_template,
    )


def _onevision_processor(processor):
    import transformers
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

    found = transformers.LlavaOnevisionProcessor.__new__(transformers.LlavaOnevisionProcessor)  # torchvision, too
    found.image_processor = LlavaOnevisionImageProcessorPil(
        size={"height": 96, "width": 96}, image_grid_pinpoints=[[96, 96], [96, 192], [192, 96]]
    )
    found.tokenizer, found.video_processor = processor.tokenizer, None
    found.num_image_tokens, found.vision_feature_select_strategy = 36, "full"
    found.image_token, found.video_token = small.WORDS[small.IMAGE], small.WORDS[small.VIDEO]
    found.image_token_id, found.video_token_id = small.IMAGE, small.VIDEO
    found.vision_aspect_ratio, found.chat_template = "anyres_max_9", processor.tokenizer.chat_template
    return found


PROCESSORS = {
    "qwen3_vl": _qwen_processor("Qwen3VLProcessor"),
    "qwen2_5_vl": _qwen_processor("Qwen2_5_VLProcessor"),
    "llava": _llava_processor,
    "llava_onevision": _onevision_processor,
}


def noise(height, width, *, seed=0):
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


def patterned(height, width, *, seed=0):
    """Noise on the left, nothing on the right."""
    image = torch.full((3, height, width), 0.9)
    image[:, :, : width // 2] = noise(height, width // 2, seed=seed)
    return Texture.open(image)
