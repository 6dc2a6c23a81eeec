"""Ask a vision-language model: load or attach one, and it reads a budget of tokens chosen for the question."""

from texturevlm.ask.attached import attach
from texturevlm.ask.model import VLM, load_vlm
from texturevlm.ask.session import Chosen, ImageSession

__all__ = ["VLM", "Chosen", "ImageSession", "attach", "load_vlm"]
