"""The scout: a small network that reads a page coarsely and says where the answer to a question is.

The spotter reads a page once and gives every spot an embedding of its word (spotter.py); the ranker turns spots and a
question (question.py) into a chance per spot (ranker.py). scout.py joins them and loads their weights; on a GPU our
kernels do all but the convolutions (fused.py).
"""

from texturevlm.scout.question import Question, encode, letter_codes, letter_features
from texturevlm.scout.scout import Scout, load_scout, read_weights
from texturevlm.scout.spotter import PIXELS, Spots

__all__ = [
    "PIXELS",
    "Question",
    "Scout",
    "Spots",
    "encode",
    "letter_codes",
    "letter_features",
    "load_scout",
    "read_weights",
]
