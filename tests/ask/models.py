"""The small models of tests/vlm with tokenizers that know every id, and processors as users have them."""

import torch
from PIL import Image

from tests.vlm import small
from texturevlm.ask import VLM
from texturevlm.ask.pretrained import PlainProcessor
from texturevlm.types import Texture

QUESTION = "what is the total ?"
FAMILIES = {**small.BUILDERS, **small.LLAVAS}
OPTIONS = {"max_new_tokens": 4, "do_sample": False}


def built(family):
    """A model, and a processor with a word for each id, so that every answer can be told from every other."""
    model, given = small.built(FAMILIES, family)
    tokenizer = given.tokenizer
    tokenizer.add_tokens([f"word{index}" for index in range(64 - len(tokenizer))])
    return model, PROCESSORS[family](given)


def asked(adapter, **options):
    """The model of an adapter, ready to be asked."""
    return VLM(adapter.model, adapter.processor, **options)


def _qwen_processor(given):
    """As `load_vlm` assembles it: transformers' own needs torchvision, for videos."""
    return PlainProcessor(given.tokenizer, given.image_processor)


def _llava_processor(given):
    from transformers import LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    return LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": 96}, crop_size={"height": 96, "width": 96}),
        tokenizer=given.tokenizer,
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        image_token=small.WORDS[small.IMAGE],
        chat_template=given.tokenizer.chat_template,
    )


def _onevision_processor(given):
    from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil

    images = LlavaOnevisionImageProcessorPil(
        size={"height": 96, "width": 96}, image_grid_pinpoints=[[96, 96], [96, 192], [192, 96]]
    )
    return PlainProcessor(given.tokenizer, images)


PROCESSORS = {
    "qwen3_vl": _qwen_processor,
    "qwen2_5_vl": _qwen_processor,
    "llava": _llava_processor,
    "llava_onevision": _onevision_processor,
}


def noise(height, width, *, seed=0):
    return torch.rand(3, height, width, generator=torch.Generator().manual_seed(seed))


def picture(height, width, seed=0):
    """The same as PIL has it."""
    return Image.fromarray((noise(height, width, seed=seed) * 255).byte().permute(1, 2, 0).numpy())


def patterned(height, width, *, seed=0):
    """Noise on the left, nothing on the right."""
    image = torch.full((3, height, width), 0.9)
    image[:, :, : width // 2] = noise(height, width // 2, seed=seed)
    return Texture.open(image)


def conversation(*images, question=QUESTION):
    """One turn of the user."""
    content = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def inputs_of(processor, conversations, **options):
    """Tensors of one conversation or several, as every model card makes them."""
    options = {"add_generation_prompt": True, **options}
    return processor.apply_chat_template(conversations, tokenize=True, return_dict=True, return_tensors="pt", **options)


def users_code(model, processor, *images):
    """Inputs and answer, as in every model card."""
    inputs = inputs_of(processor, conversation(*images)).to(model.device, model.dtype)
    generated = model.generate(**inputs, **OPTIONS)[:, inputs["input_ids"].shape[1] :]
    return inputs, processor.batch_decode(generated, skip_special_tokens=True)[0].strip()


def visual_tokens(model, inputs, images=(1,)):
    """Of each prompt, which has so many images; LLaVA-OneVision puts a new line behind each."""
    lines = images if model.config.model_type == "llava_onevision" else [0] * len(images)
    placeholders = (inputs["input_ids"] == small.IMAGE).sum(1).tolist()
    return [count - line for count, line in zip(placeholders, lines, strict=True)]
