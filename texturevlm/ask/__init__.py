"""Ask a vision-language model: load or attach one, and it reads a budget of tokens chosen for the question.

`model.py` walks one question: parse, config (`config.py`), sessions (`session.py`: images, a document, a video),
requests, answers (`generation.py`, `answer.py`). `attention.py` and `looks.py` turn the model's own attention into
evidence. `attachment.py` and `processor.py` give a user's model and code the same tokens; `pretrained.py` finds
checkpoints.
"""

from texturevlm.ask.answer import Answer
from texturevlm.ask.attachment import attach, detach
from texturevlm.ask.config import AskConfig
from texturevlm.ask.messages import conversation_about
from texturevlm.ask.model import VLM, load_vlm
from texturevlm.ask.pretrained import PlainProcessor
from texturevlm.ask.session import DocumentSession, ImageSession, VideoOptions, VideoSession

__all__ = [
    "VLM", "Answer", "AskConfig", "DocumentSession", "ImageSession", "PlainProcessor", "VideoOptions", "VideoSession",
    "attach", "conversation_about", "detach", "load_vlm",
]  # fmt: skip
