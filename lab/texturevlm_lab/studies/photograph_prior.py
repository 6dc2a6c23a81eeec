"""Photographs without a question: does what is usually asked about pages do harm, now that it is the default?

    python -m texturevlm_lab.studies.photograph_prior DATA --out DIR [--limit N]

DATA and measures as in photograph_allocators.py. `prior` leaves photographs alone; the question is what it does to
those that are taken for pages.
"""

import argparse
from typing import Any

from texturevlm_lab.studies.photograph_allocators import compared_page, measure
from texturevlm_lab.studies.study import study_main

COMPARED = {"prior": ("prior", "auto"), "none": ("none", "auto")}


def study(options: argparse.Namespace) -> dict[str, Any]:
    return measure(options, COMPARED)


def report(record: dict[str, Any]) -> str:
    return compared_page("# Photographs without a question: `prior` against `none`", record, COMPARED)


main = study_main(__name__, __doc__, study, report)
