"""What reductions for videos do to answers, at equal tokens, on made clips that are read.

    python -m texturevlm_lab.studies.reduce_video --out results [--limit N] [--model reader] [--device cuda]

Clips have four moments of two frames. Once: a page with four values is shown in one moment, and empty paper in the
others. Still: the page is shown all the time, while a bar beside it moves. One value is asked for. Tokens are those of
our clip, or of moments resized evenly; a reduced row has twice as many of them, which the model reduces to the budget.
The reader was trained on single images, so scores are low; the log-likelihood of the true answer tells methods apart.
"""

import argparse
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from texturevlm.ask import VLM, VideoOptions, VideoSession, load_vlm
from texturevlm.cuda.graph import can_capture
from texturevlm.video.sources import open_video
from texturevlm.vlm import CapturedDecode
from texturevlm.vlm.hook import hooks_of
from texturevlm_lab.evaluate.answer_digests import weights_digest
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.prompted import Prompted, generated, log_likelihoods
from texturevlm_lab.evaluate.video_baselines import BaselineSession
from texturevlm_lab.studies.asking import piece_by_piece
from texturevlm_lab.studies.study import DEVICE, MODEL, OUT, lead, option, provenance, study_main

SIZE = (320, 640)
LABELS = ("Total", "Tax", "Discount", "Deposit")
KINDS, SOURCES = ("once", "still"), ("clip", "uniform")
METHODS = ("", "random", "stride", "fastv", "prunevid", "dtoma", "pvc")  # "": not reduced
BUDGET, MOMENTS, FPS = 128, 4, 2.0
BAR, STEP = 12, 9  # pixels: width of the bar, and how far it moves per moment
NEW_TOKENS = 16
HEADS = ("clip", "tokens of", "then", "clips", "ANLS", "− not reduced", "log-likelihood", "− not reduced", "− random")
Key = tuple[str, str, str]  # kind, source, method


def page(rows: Iterable[tuple[str, str]]) -> np.ndarray:
    """(H, W, 3) bytes: labels on the left, values on the right."""
    image = Image.new("RGB", SIZE[::-1], (250, 250, 248))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(28)
    for index, (label, value) in enumerate(rows):
        draw.text((60, 40 + 64 * index), f"{label}:", fill=(20, 20, 20), font=font)
        draw.text((320, 40 + 64 * index), value, fill=(20, 20, 20), font=font)
    return np.asarray(image)


def film(kind: str, seed: int) -> tuple[np.ndarray, str, str]:
    """Frames (N, H, W, 3), a question and its answer."""
    chance = random.Random(f"{kind} {seed}")
    values = [f"${chance.randint(10, 99)}.{chance.randint(10, 99)}" for _ in LABELS]
    shown, asked = chance.randrange(MOMENTS), chance.randrange(len(LABELS))
    frames = []
    for moment in range(MOMENTS):
        image = page(zip(LABELS, values) if kind == "still" or moment == shown else ()).copy()
        first = STEP * moment
        image[:, first : first + BAR] = (40, 90, 160)
        frames += [image, image]
    return np.stack(frames), f"What is the {LABELS[asked].lower()}?", values[asked]


def prompt(model: VLM, frames: np.ndarray, question: str, source: str, budget: int) -> Prompted:
    """The question with the tokens of a clip."""
    options, video = VideoOptions(FPS, None, None), open_video(frames, fps=FPS)
    kind: Any = VideoSession if source == "clip" else BaselineSession
    session = kind(*(() if source == "clip" else (source,)), model, video, options)
    asked = session.request(question, question, model.config_for(budget=budget), apart=True)
    groups = asked.clip or []
    fillings = [model.adapter.filling(group, group[0].fps) for group in groups]
    views = [view for group in groups for view in group]
    return Prompted(model.adapter.spell(asked.prompt, [], fillings), sum(len(view) for view in views), views)


class Clips:
    """The clips of one kind for one model; tokens are chosen once for all reductions of them."""

    def __init__(self, model: VLM, kind: str, count: int) -> None:
        self.model, self.films = model, [film(kind, seed) for seed in range(count)]
        self.prompts: dict[tuple[str, int], list[Prompted]] = {}

    def answered(self, key: Key, decode: CapturedDecode | None) -> list[dict[str, Any]]:
        """One row per clip."""
        _, source, method = key
        prompts = self._prompts(source, 2 * BUDGET if method else BUDGET)
        answers = [answer for *_, answer in self.films]
        adapter = self.model.adapter
        hooks = hooks_of("reduce_video", {"reduce": method, "keep": BUDGET}) if method else ()
        said = generated(adapter, prompts, hooks=hooks, decode=decode, max_new_tokens=NEW_TOKENS)
        likely = log_likelihoods(adapter, prompts, answers, hooks=hooks)
        return [
            {"key": key, "seed": seed, "score": anls(text, [answer]), "likelihood": mean(one), "tokens": given.tokens}
            for seed, (text, answer, one, given) in enumerate(zip(said, answers, likely, prompts))
        ]

    def _prompts(self, source: str, budget: int) -> list[Prompted]:
        if (source, budget) not in self.prompts:
            found = [prompt(self.model, frames, question, source, budget) for frames, question, _ in self.films]
            self.prompts[source, budget] = found
        return self.prompts[source, budget]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    model, count = load_vlm(options.model, device=options.device, relevance=options.relevance), options.limit
    known = {"model": str(options.model), "weights": weights_digest(model.model), "device": model.device.type}
    known |= {"relevance": options.relevance, "clips": count}
    decode = CapturedDecode(model.adapter) if model.adapter.captured and can_capture(model.device) else None
    clips = {kind: Clips(model, kind, count) for kind in KINDS}

    def work(left: Sequence[Key]) -> Iterator[list[dict[str, Any]]]:
        return (clips[key[0]].answered(key, decode) for key in left)

    keys = {" ".join(key): key for key in product(KINDS, SOURCES, METHODS)}
    found = piece_by_piece("reduce_video", options.out, keys, work, *known.values(), unit="conditions")
    return {**known, "rows": [row for _, rows in found for row in rows]}


def report(record: dict[str, Any]) -> str:
    by_key: dict[Key, list[dict[str, Any]]] = {}
    for row in record["rows"]:
        by_key.setdefault(tuple(row["key"]), []).append(row)
    return markdown_page(
        "# Reductions for videos, on made clips that are read",
        f"Model {record['model']} ({record['weights']}), {record['device']}; {BUDGET} tokens for a clip of {MOMENTS} "
        "moments. A reduced row has twice as many in front of the vision tower. Differences are paired by clip, with "
        "95% intervals. The reader was trained on single images.",
        markdown_table(HEADS, [_cells(key, by_key) for key in product(KINDS, SOURCES, METHODS) if key in by_key]),
        provenance(record),
    )


def _cells(key: Key, by_key: dict[Key, list[dict[str, Any]]]) -> list[str]:
    kind, source, method = key
    rows = by_key[key]

    def gain(value: str, other: str) -> str:
        others = by_key.get((kind, source, other), rows)
        return "–" if others is rows else lead(*([row[value] for row in some] for some in (rows, others)))

    means = {value: f"{mean(row[value] for row in rows):.3f}" for value in ("score", "likelihood")}
    likely = [means["likelihood"], gain("likelihood", ""), gain("likelihood", "random")]
    return [kind, source, method or "–", str(len(rows)), means["score"], gain("score", ""), *likely]


main = study_main(
    __name__,
    __doc__,
    measure,
    report,
    option("--relevance", default="scout", metavar="NAME", help="(default: scout)"),
    MODEL,
    DEVICE,
    given=(OUT, option("--limit", type=int, default=32, metavar="N", help="clips of each kind (default: 32)")),
)
