"""What matters: how much each cell of an image counts for a question, and how fine its content is.

An image by itself has information and salience. A scorer says where the answer to a question is expected. Balance
weighs the two into one Relevance, which the allocators spend tokens by.
"""

from texturevlm.relevance.attention import AttentionScorer
from texturevlm.relevance.balance import Balance
from texturevlm.relevance.embedding import EmbeddingScorer
from texturevlm.relevance.maps import ImageMaps, Relevance
from texturevlm.relevance.prepared import Prepared, find_relevance, image_maps, prepare
from texturevlm.relevance.scorer import SalienceScorer, Scorer
from texturevlm.relevance.scorers import SCORERS, find_scorer
from texturevlm.relevance.scout import ScoutScorer
from texturevlm.relevance.words import WordsScorer

__all__ = [
    "SCORERS",
    "AttentionScorer",
    "Balance",
    "EmbeddingScorer",
    "ImageMaps",
    "Prepared",
    "Relevance",
    "SalienceScorer",
    "Scorer",
    "ScoutScorer",
    "WordsScorer",
    "find_relevance",
    "find_scorer",
    "image_maps",
    "prepare",
]
