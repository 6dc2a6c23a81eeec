"""What matters: how much each cell of an image counts for a question, and how fine its content is.

An image by itself has information and salience (information.py). A scorer says where the answer to a question is
expected: by the scout, by OCR's words, by all channels, by embeddings, or by a map that the caller has. Balance weighs
the two into one Relevance (maps.py), which the allocators spend tokens by. prepared.py keeps what does not depend on
the question; orientation.py finds which way text runs.
"""

from texturevlm.relevance.channel_logits import PRIOR
from texturevlm.relevance.channel_scorer import ChannelScorer
from texturevlm.relevance.information import MOST_CELL, maps_by_kernels
from texturevlm.relevance.maps import (
    STEEPNESS,
    UNIT,
    Balance,
    ImageMaps,
    Relevance,
    cell_level,
    find_balance,
    legibility,
    normalised,
)
from texturevlm.relevance.named import SCORERS, check_relevance, client_scorers, declares, reads_question
from texturevlm.relevance.ocr import Page, read_page
from texturevlm.relevance.orientation import find_regions, find_turn, find_turn_and_read
from texturevlm.relevance.prepared import BALANCE, Prepared, find_relevance, image_maps, prepare
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
    "BALANCE",
    "MOST_CELL",
    "PRIOR",
    "SCORERS",
    "STEEPNESS",
    "UNIT",
    "AttentionScorer",
    "Balance",
    "ChannelScorer",
    "EmbeddingScorer",
    "ImageMaps",
    "Page",
    "Prepared",
    "PriorScorer",
    "Relevance",
    "SalienceScorer",
    "Scorer",
    "ScoutScorer",
    "WordsScorer",
    "cell_level",
    "check_relevance",
    "client_scorers",
    "declares",
    "find_balance",
    "find_regions",
    "find_relevance",
    "find_scorer",
    "find_turn",
    "find_turn_and_read",
    "image_maps",
    "legibility",
    "maps_by_kernels",
    "normalised",
    "prepare",
    "read_page",
    "reads_question",
]
