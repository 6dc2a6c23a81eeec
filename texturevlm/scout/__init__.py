"""The scout: a small network that reads a page coarsely, with the question in mind, and says where the answer is."""

from texturevlm.scout.question import Question, encode
from texturevlm.scout.scout import Scout, load_scout
from texturevlm.scout.spotter import Spots

__all__ = ["Question", "Scout", "Spots", "encode", "load_scout"]
