"""The registry: one entry per method, its stages in the order in which they act.

Depths are shares: published layers are counted here as of 32, and other models get the same share of theirs.
"""

from __future__ import annotations

from texturevlm.reduce.aim import page_rank
from texturevlm.reduce.cdpruner import determinantal
from texturevlm.reduce.controls import random, stride
from texturevlm.reduce.divprune import farthest_points
from texturevlm.reduce.dtoma import by_asked_frames, by_novelty
from texturevlm.reduce.dyrate import attention_spread
from texturevlm.reduce.fastv import last_token_attention
from texturevlm.reduce.hired import by_tile
from texturevlm.reduce.holov import by_crop
from texturevlm.reduce.method import Method, ReduceStage
from texturevlm.reduce.mmtok import coverage
from texturevlm.reduce.pace import attended, downsampled
from texturevlm.reduce.pixelprune import least_predictable
from texturevlm.reduce.prunevid import static_then_spatial
from texturevlm.reduce.pvc import progressive
from texturevlm.reduce.sparsevlm import rated
from texturevlm.reduce.tome import merge_pairs
from texturevlm.reduce.visionzip import dominant_and_contextual
from texturevlm.reduce.vispruner import important_and_diverse
from texturevlm.reduce.vscan import two_scans


def _asked(depth: float) -> ReduceStage:
    return ReduceStage(last_token_attention, "llm", ("asked",), depth)


def _rated(depth: float) -> ReduceStage:
    return ReduceStage(rated, "llm", ("asked", "question"), depth)


def _ranked(depth: float) -> ReduceStage:
    return ReduceStage(page_rank, "llm", ("keys", "queries"), depth)


def _merged_pairs(depth: float) -> ReduceStage:
    return ReduceStage(merge_pairs, "tower", ("keys",), depth)


METHODS: dict[str, Method] = {
    "random": Method((ReduceStage(random),)),
    "stride": Method((ReduceStage(stride),)),
    "tome": Method(tuple(_merged_pairs(block / 8) for block in range(1, 8))),
    "visionzip": Method((ReduceStage(dominant_and_contextual, needs=("keys", "received")),)),
    "divprune": Method((ReduceStage(farthest_points),)),
    "fastv": Method((_asked(2 / 32),)),
    "pyramiddrop": Method((_asked(8 / 32), _asked(16 / 32), _asked(24 / 32))),
    "sparsevlm": Method((_rated(2 / 32), _rated(6 / 32), _rated(15 / 32))),
    "hired": Method((ReduceStage(by_tile, needs=("received", "shallow")),)),
    "cdpruner": Method((ReduceStage(determinantal, needs=("question",)),)),
    "vispruner": Method((ReduceStage(important_and_diverse, needs=("received",)),)),
    "holov": Method((ReduceStage(by_crop, needs=("received",)),)),
    "mmtok": Method((ReduceStage(coverage, needs=("question",)),)),
    "vscan": Method((ReduceStage(two_scans, needs=("keys", "received", "shallow")), _asked(16 / 32))),
    "aim": Method((ReduceStage(merge_pairs, needs=("keys",)), _ranked(14 / 32), _ranked(18 / 32), _ranked(21 / 32))),
    "prunevid": Method((ReduceStage(static_then_spatial), _asked(10 / 32))),
    "pixelprune": Method((ReduceStage(least_predictable, "pixels", ("pixels",)),)),
    "pace": Method(
        (
            ReduceStage(downsampled, "pixels", ("pixels",)),
            ReduceStage(attended, needs=("received",)),
            _asked(2 / 32),
        )
    ),
    "pvc": Method((ReduceStage(progressive, "tower", depth=1 / 2),)),
    "dtoma": Method((ReduceStage(by_novelty), ReduceStage(by_asked_frames, "llm", ("asked",), 1 / 4), _asked(3 / 5))),
    "dyrate": Method((ReduceStage(last_token_attention, "decode", ("asked",), 1 / 2, attention_spread),)),
}
