"""Video: a stream keeps its texture, its channels, its relevance and its tokens, and pays only for what changed."""

from texturevlm.video.budget import Rate
from texturevlm.video.result import Step
from texturevlm.video.reuse import Reuse
from texturevlm.video.state import State
from texturevlm.video.stream import Stream

__all__ = ["Rate", "Reuse", "State", "Step", "Stream"]
