"""The families of test_families behind `attach` and `ask`, with transformers' own processors where they can be built.

Those of InternVL, SmolVLM and GLM need torchvision for their videos, so only their parts for images are assembled.
"""

from types import SimpleNamespace

import pytest
import torch
import transformers

import texturevlm as tv
from tests.vlm import small
from texturevlm.ask.processor import TextureProcessor

BUDGET = 7


def named(tokenizer, **tokens):
    for name, token in tokens.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    return tokenizer


def assembled(kind, **parts):
    """A processor without its `__init__`, which would want torchvision."""
    found = kind.__new__(kind)
    for name, part in parts.items():
        setattr(found, name, part)
    found.video_processor = SimpleNamespace(num_frames=8, fps=1)  # what SmolVLM's chat template reads of it
    found.image_token, found.image_token_id = small.WORDS[small.IMAGE], small.IMAGE
    found.video_token, found.video_token_id = small.WORDS[small.VIDEO], small.VIDEO
    found.chat_template = parts["tokenizer"].chat_template
    return found


def gemma3(given):
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    begin, end, image = (small.WORDS[one] for one in (small.VISION_START, small.VISION_END, small.IMAGE))
    return transformers.Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size={"height": 96, "width": 96}),
        tokenizer=named(given.tokenizer, boi_token=begin, eoi_token=end, image_token=image),
        image_seq_length=9,
        chat_template=given.tokenizer.chat_template,
    )


def internvl(given):
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    return assembled(
        transformers.InternVLProcessor, image_processor=GotOcr2ImageProcessorPil(), tokenizer=given.tokenizer
    )


def smolvlm(given):
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    return assembled(
        transformers.SmolVLMProcessor, image_processor=SmolVLMImageProcessorPil(), tokenizer=given.tokenizer
    )


def glm4v(given):
    return assembled(transformers.Glm4vProcessor, image_processor=given.image_processor, tokenizer=given.tokenizer)


PROCESSORS = {"gemma3": gemma3, "internvl": internvl, "smolvlm": smolvlm, "glm4v": glm4v}
PROCESSORS |= {"qwen2_vl": lambda given: given, "qwen3_vl_moe": lambda given: given}


@pytest.fixture(params=list(PROCESSORS), scope="module")
def attached(request):
    model, given = small.MORE[request.param]()
    given.tokenizer.add_tokens([f"word{index}" for index in range(64 - len(given.tokenizer))])
    processor = tv.attach(model, PROCESSORS[request.param](given), budget=BUDGET, relevance="none")
    yield model, processor
    processor.detach()


def test_prompts_become_inputs_that_generate_takes(attached):
    model, processor = attached
    mark = processor.image_token
    image = torch.rand(3, 100, 150)
    inputs = processor(
        images=[[image], [image, image]],
        text=[f"what is the {mark} ?", f"{mark} and {mark}"],
        question=["the total", "and there"],
        padding=True,
        return_tensors="pt",
    )
    assert (inputs["input_ids"] == small.IMAGE).sum(1).tolist() == [BUDGET, BUDGET]
    found = model.generate(**inputs, max_new_tokens=3, do_sample=False)
    assert found.shape == (2, inputs["input_ids"].shape[1] + 3)


def test_they_can_be_asked(attached):
    """With both looks where the model's attention can be read; the rest says so."""
    model, processor = attached
    asked = tv.VLM(model, TextureProcessor(processor, model.config, budget=BUDGET, relevance="auto"))
    image = torch.rand(3, 200, 300)
    options = {"max_new_tokens": 3, "do_sample": False}
    assert isinstance(asked.ask(image, "what is the total ?", **options), str)
    if processor.adapter.two_looks:
        assert isinstance(asked.ask(image, "what is the total ?", looks=2, **options), str)
    else:
        with pytest.raises(ValueError, match="looks must be 1 for"):
            asked.ask(image, "what is the total ?", looks=2, **options)
