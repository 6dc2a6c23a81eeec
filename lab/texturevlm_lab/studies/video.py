"""Questions 26 to 28, on real clips: what is still in them, how carried relevance drifts, what reuse costs.

    python -m texturevlm_lab.studies.video DATA --out DIR [--limit N frames of each clip, 3 or more]

DATA holds big_buck_bunny.mp4, Megamind.avi, david.webm and david_gt.txt (a face's x, y, width, height, one line per
frame, for the last frames of the clip). One frame of each becomes a clip of a still camera. Writes video.md and
video.json.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from texturevlm.allocate.footprints import Box
from texturevlm.video import open_video
from texturevlm_lab.evaluate.markdown import format_interval, markdown_page, markdown_table
from texturevlm_lab.evaluate.statistics import paired_difference
from texturevlm_lab.studies import video_measures as study
from texturevlm_lab.studies.study import check_limit, study_main

CLIPS = ("big_buck_bunny.mp4", "Megamind.avi", "david.webm")
INTERVALS = (15, 30, 60, 120)
DRIFT_FRAMES, MADE_FRAMES, REUSE_FRAMES, CLUSTER_FRAMES = 301, 80, 12, 40
WANDERING_SHARES = (0.01, 0.05, 0.2)  # of the image that wanders before a still camera
CARRIED_LABEL = "incremental: carried from the first box"
NO_KEYFRAMES = "no keyframe but the first"
FEWEST_FRAMES = 3  # frames: two in a row, after the first
STILL_BUDGET, REUSE_BUDGET = 128, 64
FACE_BUDGET, FACE_PATCH, FACE_EVERY = 40, 16, 5
CONTEXTS = (0.0, 1.0, 3.0)
STILL_COLUMNS = {  # headings, and how a row of the record is written under them
    "frames": "{frames}",
    "tiles changed a frame": "{changed:.1%}",
    "median": "{median:.1%}",
    "frames without change": "{still_frames:.1%}",
    "sampled": "{sampled:.1%}",
    "chosen anew": "{chosen:.1%} of frames",
    "cuts": "{cuts}",
}
REUSE_COLUMNS = {
    "encoded": "{encoded:.1%}",
    "error": "{error:.3f}",
    "worst frame": "{worst:.3f}",
    "of kept tokens": "{kept:.3f}",
    "cosine": "{cosine:.4f}",
}
FACE_COLUMNS = {"covered": "{covered:.3f}", "at least half": "{half:.1%}", "the stream's lead": "{lead}"}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Everything; `--limit` frames of each clip at most."""
    data, limit = options.data, options.limit
    check_limit(limit, FEWEST_FRAMES)
    record: dict[str, Any] = {"still": {}, "drift": {}, "reuse": {}, "clusters": {}}
    tower = study.random_tower()
    for name in CLIPS:
        path = data / name
        made = f"still camera, from {name}"
        _tell(f"{name}: what is still")
        record["still"][name] = study.still(study.frames_of(path, limit), STILL_BUDGET)
        record["still"][made] = study.still(study.still_camera(path, 0.05, _most(limit, MADE_FRAMES)), STILL_BUDGET)
        record["clusters"][name] = study.clusters(study.frames_of(path, _most(limit, CLUSTER_FRAMES)))
        record["clusters"][made] = study.clusters(study.still_camera(path, 0.05, _most(limit, CLUSTER_FRAMES)))
        _tell(f"{name}: drift")
        record["drift"][name] = _drift(path, _most(limit, DRIFT_FRAMES))
        _tell(f"{name}: reuse")
        for share in WANDERING_SHARES:
            frames = list(study.still_camera(path, share, _most(limit, REUSE_FRAMES)))
            found = {f"{context:g}": study.reused(frames, tower, REUSE_BUDGET, context) for context in CONTEXTS}
            record["reuse"][f"{made}, {share:.0%} wanders"] = found
    _tell("david.webm: the face")
    record["face"] = _face(data, limit)
    return record


def _most(limit: int | None, frames: int) -> int:
    return frames if limit is None else min(limit, frames)


def _drift(path: Path, frames: int) -> dict[str, Any]:
    clip = list(study.held_frames(path, frames))
    found: dict[str, Any] = {}
    for method in study.METHODS:
        for interval in (None, *INTERVALS):
            every = f"a keyframe every {interval}" if interval else NO_KEYFRAMES
            for again in (False, True) if interval is None else (False,):
                values = study.drift(clip, method, interval=interval, again=again)
                key = f"{method}, {every}" + (", looking again" if again else "")
                found[key] = {"mean": float(np.mean(values)), "least": float(np.min(values))}
                if interval is None and not again:
                    found[key]["ages"] = study.at_ages(values)
    return found


def _face(data: Path, limit: int | None) -> dict[str, Any]:
    boxes: list[Box] = []
    for line in (data / "david_gt.txt").read_text().split():
        x, y, width, height = (float(number) for number in line.split(","))
        boxes.append((x, y, x + width, y + height))
    first = sum(1 for _ in open_video(data / "david.webm")) - len(boxes)
    boxes = boxes[:limit]
    scores = study.face_coverage(data / "david.webm", boxes, first, FACE_BUDGET, FACE_PATCH, FACE_EVERY)
    ours = scores[CARRIED_LABEL]
    return {
        name: {
            "covered": float(np.mean(values)),
            "half": float(np.mean(np.array(values) >= 0.5)),
            "difference": list(paired_difference(ours, values)),
        }
        for name, values in scores.items()
    }


def report(record: dict[str, Any]) -> str:
    drift = record["drift"]
    means, ages = [], []
    for key in next(iter(drift.values())):
        means.append((key, *("{mean:.3f} ({least:.2f})".format(**clip[key]) for clip in drift.values())))
    for name, method in product(drift, study.METHODS):
        known = drift[name][f"{method}, {NO_KEYFRAMES}"]["ages"]
        ages.append((name, method, *(_number(known, str(age)) for age in study.AGES)))
    reuse = {(name, context): row for name, clip in record["reuse"].items() for context, row in clip.items()}
    leads = {name: format_interval(row["difference"]) for name, row in record["face"].items()} | {CARRIED_LABEL: "–"}
    face = {(name,): row | {"lead": leads[name]} for name, row in record["face"].items()}
    keys = ("kept", "made again", "consecutive")
    clusters = [(name, *(_number(row, key) for key in keys)) for name, row in record["clusters"].items()]
    return markdown_page(
        "# Video: what is still, how relevance drifts, what reuse costs",
        f"`{record['command']}`, torch {record['torch']}, CPU. Clips at their own size, tiles of {study.TILE} pixels.",
        "## 26. What share of frames and tiles is static?",
        f"{STILL_BUDGET} tokens of {study.PATCH}, chosen by salience. Sampled: the share of tokens that had to be.",
        _table(("clip",), STILL_COLUMNS, {(name,): row for name, row in record["still"].items()}),
        "## 27. Frame differences or optical flow? How fast does carried relevance drift?",
        "Correlation of carried with fresh relevance, cell by cell, mean over the frames (least). `none`: differences\n"
        "only, nothing moves. Looking again: cells that are not trusted take the fresh value, as in a stream, which\n"
        "here is what they are compared with. A cut is a keyframe always.",
        markdown_table(("flow and keyframes", *drift), means),
        "After so many frames without a keyframe (a cut begins anew):",
        markdown_table(("clip", "flow", *study.AGES), ages),
        "## 28. What does reusing encoded tokens cost?",
        f"A Qwen3-VL tower of {study.VISION['depth']} layers with random weights, {REUSE_BUDGET} tokens: it shows how\n"
        "strongly attention couples tokens, not what a trained model's answers lose. Error: the length of the\n"
        "difference from encoding the whole frame, by the length of that; of all tokens, and of the kept ones alone.\n"
        "Context: unchanged tokens encoded along, for each changed one.",
        _table(("clip", "context"), REUSE_COLUMNS, reuse),
        "## The face of david.webm",
        f"{FACE_BUDGET} tokens of {FACE_PATCH} by `density`, every {FACE_EVERY}th frame: the share of the face that\n"
        f"tokens of at most {study.FINE_SCALE} pixels per sample cover (one scale for all would be 2.74), how often\n"
        "that is half of it or more, and the stream's lead (paired, 95%; frames of one clip are not independent, so\n"
        "the interval is too narrow).",
        _table(("how tokens were chosen",), FACE_COLUMNS, face),
        "## Channels of global reach",
        "Borders between regions: the share of those made anew that have one within two pixels. Made again: the share\n"
        "of frames in which a quarter of the tiles had changed since.",
        markdown_table(
            ("clip", "kept by the stream's rule", "made again", "those of the frame before, made anew"), clusters
        ),
    )


def _table(first: Sequence[str], columns: dict[str, str], rows: dict[Any, dict[str, Any]]) -> str:
    """A row per key of `rows`, which is a tuple under the headings `first`; then `columns`, each with its format."""
    cells = [(*names, *(form.format(**row) for form in columns.values())) for names, row in rows.items()]
    return markdown_table((*first, *columns), cells)


def _number(row: dict[str, float], key: str) -> str:
    return f"{row[key]:.3f}" if key in row else "–"


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


main = study_main(__name__, __doc__, measure, report)
