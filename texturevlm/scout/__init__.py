"""The scout: a small network that reads a page coarsely and says where the answer to a question is."""

from texturevlm.scout.question import Question, encode
from texturevlm.scout.scout import Scout, load_scout
from texturevlm.scout.spotter import Spots

__all__ = ["Question", "Scout", "Spots", "encode", "load_scout"]
