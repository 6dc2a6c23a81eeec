"""How tokens must be chosen for a reader: allocators, and how finely print must be seen.

    python -m texturevlm_lab.studies.reader_settings DATA --out results [--settings S,S] [--limit N] [--model reader]
        [--at-once N]

DATA holds folders of questions of train pages, such as `texturevlm_lab.studies.held_out_pages` makes. A setting is
the name of an
allocator, and behind a colon how many times as finely as OCR the model is to see print (`finer` of its config, see
vlm/finer.py), where that is not the model's own number; above 1, small images are enlarged. Tokens are chosen by the
scout, from pages as they are (not turned). All settings are compared with the first. N processes share the pages.
"""

import argparse
from collections.abc import Sequence
from functools import cache
from itertools import product
from statistics import mean
from typing import Any

import torch

from texturevlm.allocate import ALLOCATORS
from texturevlm.ask import VLM, load_vlm
from texturevlm.check import check_choice
from texturevlm.commands.arguments import counts
from texturevlm.placement.finer import FINEST, Finer, read_finer
from texturevlm_lab.evaluate.answering import likeliest
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.data import Sample, load_data
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.prompted import chosen_prompt, generated, log_likelihoods
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies.asking import page_by_page
from texturevlm_lab.studies.held_out_pages import origin_page
from texturevlm_lab.studies.study import AT_ONCE, MODEL, evenly, option, provenance, study_main
from texturevlm_lab.train.pages import CHARTS

SETTINGS = "auto,quadtree,cascade,pyramid,dag,frequency,crops,fixations"
BUDGETS = [96, 273]  # those of the bars
MOST = 60  # tokens of an answer
Found = dict[str, list[tuple[float, float]]]  # "SETTING BUDGET" → the score and the likelihood of each question
ALL, BUT_CHARTS = "all sets", "all but charts"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    settings, budgets = options.settings.split(","), options.budgets
    for name in settings:
        setting_of(name)
    folders = sorted(path.parent for path in options.data.glob("*/questions.jsonl"))
    if not folders:
        raise FileNotFoundError(f"DATA must hold folders with questions.jsonl, got {options.data}")
    by_set = {
        folder.name: evenly(load_data(folder, split="train", answered=True, skip_broken=True).samples, options.limit)
        for folder in folders
    }
    found: dict[str, dict[str, Any]] = {name: {"pages": [], "found": {}} for name in by_set}
    given = (options.model, settings, budgets)
    for name, samples, own in page_by_page("reader_settings", options, by_set, _answered, *given):
        found[name]["pages"] += [origin_page(name, sample.image.name) for sample in samples]
        for key, rows in own.items():
            found[name]["found"].setdefault(key, []).extend(rows)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {"model": options.model, "settings": settings, "budgets": budgets, "sets": found, "device": device}


def setting_of(name: str) -> tuple[str, Finer | None]:
    """The allocator of a setting, and how finely the model is to see print; None: as finely as its config says."""
    allocator, colon, times = name.partition(":")
    check_choice("reader_settings", "--settings", allocator, ALLOCATORS)
    try:
        return allocator, read_finer(float(times)) if colon else None
    except ValueError:
        wanted = f"a number from 1 to {FINEST} behind the colon"
        raise ValueError(f"reader_settings: --settings must have {wanted}, got {name!r}") from None


@cache
def _loaded(name: str, threads: int) -> VLM:
    """The model of this process."""
    torch.set_num_threads(threads)
    return load_vlm(name, captured=False)  # graphs per budget do not pay


def _answered(
    samples: Sequence[Sample], name: str, settings: Sequence[str], budgets: Sequence[int], threads: int
) -> Found:
    """The questions about one page, by all settings."""
    model, found = _loaded(name, threads), Found()
    adapter, session = model.adapter, model.prepare(samples[0].image)
    truth = [likeliest(one.answers) for one in samples]
    for setting in settings:
        allocator, finer = setting_of(setting)
        for budget in budgets:
            prompts = []
            for one in samples:
                how: Any = {"budget": budget, "allocator": allocator, "relevance": "scout", "turn": 0, "looks": 1}
                (chosen,) = session.choose(one.question, **how, **({"finer": finer} if finer else {}))
                prompts.append(chosen_prompt(adapter, one.question, [chosen.picture.texture], [chosen.allocation]))
            said = generated(adapter, prompts, max_new_tokens=MOST)
            likely = [mean(own) for own in log_likelihoods(adapter, prompts, truth)]
            scores = [anls(text, one.answers) for text, one in zip(said, samples)]
            found[f"{setting} {budget}"] = list(zip(scores, likely))
    return found


def report(record: dict[str, Any]) -> str:
    settings, budgets, table = record["settings"], record["budgets"], []
    sets = {ALL: _together(list(record["sets"].values())), **record["sets"]}
    documents = [own for name, own in record["sets"].items() if not name.endswith(CHARTS)]
    if 0 < len(documents) < len(record["sets"]):
        sets = {ALL: sets[ALL], BUT_CHARTS: _together(documents), **record["sets"]}
    for name, own in sets.items():
        for setting in settings:
            cells = [part for budget in budgets for part in _cells(own, settings[0], setting, budget)]
            table.append([name, len(own["pages"]), setting, *cells])
    heads = [f"{what}, {budget} tokens" for budget in budgets for what in ("ANLS", "log-likelihood")]
    return markdown_page(
        "# How tokens must be chosen for a reader",
        f"{record['model']}, held-out train pages, tokens by the scout. ANLS, and the mean log-likelihood per token of "
        "the true answer; behind them the difference to the first setting, paired, with 95% intervals by resampling "
        "pages; a page, annotated and with new answers, is one. A number behind a colon: print counts as so many times "
        "finer than OCR needs it. `all sets` is the mean over all questions. Pages are not turned.",
        markdown_table(["set", "questions", "setting", *heads], table),
        provenance(record, record["device"]),
    )


def _together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several sets as one."""
    found: dict[str, list[Any]] = {}
    for part, key in product(parts, parts[0]["found"]):
        found.setdefault(key, []).extend(part["found"][key])
    return {"pages": [page for part in parts for page in part["pages"]], "found": found}


def _cells(own: dict[str, Any], first: str, setting: str, budget: int) -> list[str]:
    """Score and likelihood of a setting, with the difference to the first one."""
    cells = []
    for ours, base in zip(*(zip(*own["found"][f"{name} {budget}"]) for name in (setting, first))):
        difference = format_interval(paired_difference(ours, base, groups=own["pages"]))
        cells.append(f"{mean(ours):.3f}" + (f", {difference}" if setting != first else ""))
    return cells


CHOICES = (
    option("--settings", default=SETTINGS, metavar="S,S", help=f"(default: {SETTINGS})"),
    option("--budgets", type=counts, default=BUDGETS, metavar="N,N", help="visual tokens (default: 96,273)"),
)
main = study_main(__name__, __doc__, measure, report, MODEL, *CHOICES, AT_ONCE)
