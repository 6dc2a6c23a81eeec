"""Ask a vision-language model: load or attach one, and it reads a budget of tokens chosen for the question."""

from texturevlm.ask.answer import Answer
from texturevlm.ask.attachment import attach, detach
from texturevlm.ask.model import VLM, load_vlm
from texturevlm.ask.session import ImageSession

__all__ = ["VLM", "Answer", "ImageSession", "attach", "detach", "load_vlm"]
