"""What matters: how much each cell of an image counts for a question, and how fine its content is.

An image by itself has information and salience. A scorer says where the answer to a question is expected. Balance
weighs the two into one Relevance, which the allocators spend tokens by.
"""

from texturevlm.relevance.channel_scorer import ChannelScorer
from texturevlm.relevance.maps import Balance, ImageMaps, Relevance
from texturevlm.relevance.named import SCORERS, check_relevance, client_scorers, declares, reads_question
from texturevlm.relevance.prepared import Prepared, find_relevance, image_maps, prepare
from texturevlm.relevance.scorers import (
    AttentionScorer,
    EmbeddingScorer,
    PriorScorer,
    SalienceScorer,
    Scorer,
    ScoutScorer,
    find_scorer,
)
from texturevlm.relevance.words import WordsScorer

__all__ = [
    "SCORERS",
    "AttentionScorer",
    "Balance",
    "ChannelScorer",
    "EmbeddingScorer",
    "ImageMaps",
    "Prepared",
    "PriorScorer",
    "Relevance",
    "SalienceScorer",
    "Scorer",
    "ScoutScorer",
    "WordsScorer",
    "check_relevance",
    "client_scorers",
    "declares",
    "find_relevance",
    "find_scorer",
    "image_maps",
    "prepare",
    "reads_question",
]
