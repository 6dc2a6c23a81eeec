"""A cache that is refreshed in part against the same cache computed anew: logits and answers of a trained model.

    python -m texturevlm_lab.studies.live --out results [--limit N] [--model reader]

A page is shown, then the same page with something changed, frame after frame, and asked about after each. One hop: the
value that is asked for changes. Two hops: labels change places and the values stay, so that what is right of the label
that is asked for is another value, whose tokens did not change. Each is watched by streams that differ in `refresh`
alone: how many tokens at the beginning of the picture are computed anew with those that changed.
"""

import argparse
import math
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from texturevlm.ask import VLM, load_vlm
from texturevlm.progress import Progress
from texturevlm.video.live import VideoStream
from texturevlm_lab.evaluate.answers import anls
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.provenance import origin
from texturevlm_lab.studies.study import MODEL, command_line, provenance, versions, write_study

SIZE = (320, 640)
LABELS = ("Total", "Tax", "Discount", "Deposit")
REFRESH: tuple[int | str, ...] = (0, 8, 32, 128, "full")
FRAMES = 3  # changes per page
KINDS = ("one hop", "two hops")
HOLD = 0.99  # tokens stay where they are, so that only `refresh` differs


def page(rows: list[tuple[str, str]]) -> np.ndarray:
    """(H, W, 3) bytes: labels on the left, values on the right."""
    image = Image.new("RGB", SIZE[::-1], (250, 250, 248))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(28)
    for index, (label, value) in enumerate(rows):
        draw.text((60, 40 + 64 * index), f"{label}:", fill=(20, 20, 20), font=font)
        draw.text((320, 40 + 64 * index), value, fill=(20, 20, 20), font=font)
    return np.asarray(image)


def film(kind: str, seed: int) -> tuple[list[np.ndarray], list[str]]:
    """Pages, and the right answer to what is right of the first label at each of them."""
    chance = random.Random(f"{kind} {seed}")
    labels, values = list(LABELS), [f"${chance.randint(10, 99)}.{chance.randint(10, 99)}" for _ in LABELS]
    pages, answers = [], []
    for index in range(FRAMES + 1):
        if index and kind == KINDS[0]:
            values[labels.index(LABELS[0])] = f"${chance.randint(10, 99)}.{chance.randint(10, 99)}"
        elif index:
            here = labels.index(LABELS[0])
            other = chance.choice([one for one in range(len(labels)) if one != here])
            labels[here], labels[other] = labels[other], labels[here]
        pages.append(page(list(zip(labels, values))))
        answers.append(values[labels.index(LABELS[0])])
    return pages, answers


def watched(model: VLM, kind: str, seed: int, refresh: int | str) -> list[dict[str, Any]]:
    """The answer, the logits of its first token and the tokens computed, for each frame."""
    question = f"What is the {LABELS[0].lower()}?"
    options: Any = {"model": model, "relevance": "none", "interval": math.inf, "limit": 1024, "fps": 2.0}
    stream = VideoStream(SIZE, 160, "fit", refresh=refresh, keyframe=10**6, hold=HOLD, **options)
    talk = stream.conversation
    assert talk is not None
    talk.expect(question)
    found = []
    for image, right in zip(*film(kind, seed)):
        stream.step(image)
        computed = talk.computed
        answer = talk.ask(question, max_new_tokens=16)
        row = {"text": answer.text, "right": anls(answer.text, [right]), "computed": computed, "kept": talk.tokens}
        found.append({**row, "logits": answer.logits.tolist()})
    return found


def measured(model: VLM, count: int) -> list[dict[str, Any]]:
    """One row per kind, page, refresh and frame: agreement with the stream that computes everything anew."""
    rows = []
    progress = Progress(count * len(KINDS), "pages")
    for kind in KINDS:
        for seed in range(count):
            runs = {refresh: watched(model, kind, seed, refresh) for refresh in REFRESH}
            for refresh, steps in runs.items():
                for frame, (one, full) in enumerate(zip(steps, runs["full"])):
                    ours, theirs = torch.tensor(one["logits"]), torch.tensor(full["logits"])
                    row = {name: one[name] for name in ("right", "computed", "kept")}
                    row |= {"kind": kind, "page": seed, "refresh": refresh, "frame": frame}
                    row["same"] = one["text"] == full["text"]
                    row["away"] = float((ours.softmax(-1) - theirs.softmax(-1)).abs().sum() / 2)
                    rows.append(row)
            progress.step()
    return rows


def report(record: dict[str, Any]) -> str:
    table = []
    for kind in KINDS:
        for refresh in REFRESH:
            for frame in (1, FRAMES):
                own = [
                    row
                    for row in record["rows"]
                    if (row["kind"], row["refresh"], row["frame"]) == (kind, refresh, frame)
                ]
                means = [sum(row[name] for row in own) / len(own) for name in ("same", "away", "right", "computed")]
                cells = [f"{means[0]:.2f}", f"{means[1]:.3f}", f"{means[2]:.2f}", f"{means[3]:.0f}"]
                table.append((kind, refresh, frame, *cells, len(own)))
    heads = ["probe", "refresh", "changes", "same answer as full", "first token: total variation", "ANLS", "computed"]
    return markdown_page(
        "# A cache that is refreshed in part",
        provenance(record),
        f"Model {record['model']}. After so many changes of the page, each of which replaced tokens in the cache. "
        "Computed: tokens of the last change that went through the language model.",
        markdown_table([*heads, "pages"], table),
    )


def main(arguments: list[str] | None = None) -> int:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        prog="python -m texturevlm_lab.studies.live", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--limit", type=int, default=12, metavar="N", help="pages per probe (default: 12)")
    flag, settings = MODEL
    parser.add_argument(flag, **settings)
    options = parser.parse_args(arguments)
    model = load_vlm(options.model, relevance="none")
    record = {
        "command": command_line(parser, options),
        "code": str(origin("texturevlm_lab.studies.live")),
        **versions(),
    }
    record["model"] = options.model
    print(write_study(options.out, "live", {**record, "rows": measured(model, options.limit)}, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
