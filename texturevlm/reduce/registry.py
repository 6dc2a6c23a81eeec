"""The registry: one entry per method, its stages in the order in which they act."""

from __future__ import annotations

from texturevlm.reduce.aim import page_rank
from texturevlm.reduce.cdpruner import determinantal
from texturevlm.reduce.controls import random, stride
from texturevlm.reduce.divprune import farthest_points
from texturevlm.reduce.fastv import last_token_attention
from texturevlm.reduce.hired import by_tile
from texturevlm.reduce.holov import by_crop
from texturevlm.reduce.method import Method, Stage
from texturevlm.reduce.mmtok import coverage
from texturevlm.reduce.prunevid import static_then_spatial
from texturevlm.reduce.sparsevlm import rated
from texturevlm.reduce.tome import merge_pairs
from texturevlm.reduce.visionzip import dominant_and_contextual
from texturevlm.reduce.vispruner import important_and_diverse
from texturevlm.reduce.vscan import two_scans


def _asked(depth: float) -> Stage:
    return Stage(last_token_attention, "llm", ("asked",), depth)


def _rated(depth: float) -> Stage:
    return Stage(rated, "llm", ("asked", "question"), depth)


def _ranked(depth: float) -> Stage:
    return Stage(page_rank, "llm", ("keys", "queries"), depth)


METHODS: dict[str, Method] = {
    "random": Method((Stage(random),)),
    "stride": Method((Stage(stride),)),
    "tome": Method((Stage(merge_pairs, needs=("keys",)),)),
    "visionzip": Method((Stage(dominant_and_contextual, needs=("keys", "received")),)),
    "divprune": Method((Stage(farthest_points),)),
    "fastv": Method((_asked(2 / 32),)),
    "pyramiddrop": Method((_asked(8 / 32), _asked(16 / 32), _asked(24 / 32))),
    "sparsevlm": Method((_rated(2 / 32), _rated(6 / 32), _rated(15 / 32))),
    "hired": Method((Stage(by_tile, needs=("received", "shallow")),)),
    "cdpruner": Method((Stage(determinantal, needs=("question",)),)),
    "vispruner": Method((Stage(important_and_diverse, needs=("received",)),)),
    "holov": Method((Stage(by_crop, needs=("received",)),)),
    "mmtok": Method((Stage(coverage, needs=("question",)),)),
    "vscan": Method((Stage(two_scans, needs=("keys", "received", "shallow")), _asked(16 / 32))),
    "aim": Method((Stage(merge_pairs, needs=("keys",)), _ranked(14 / 32), _ranked(18 / 32), _ranked(21 / 32))),
    "prunevid": Method((Stage(static_then_spatial), _asked(10 / 32))),
}
