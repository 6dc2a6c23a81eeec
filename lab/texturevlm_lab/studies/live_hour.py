"""An hour of a stream with a model: does memory stay flat, and does the cache stay sound?

    python -m texturevlm_lab.studies.live_hour --out results [--frames 3600] [--every 60]

A small Qwen3-VL with random weights watches a made scene, one frame per second: a square that moves, another scene
now and then, long still stretches. Every so many frames it is asked. Measured per part of the hour: the memory of the
process, the tokens and slots in use, and, against a cache that is computed anew from the same tokens, how far the
logits of a question are off.
"""

import argparse
import gc
import math
import sys
from pathlib import Path
from typing import Any

import torch

from texturevlm.ask import VLM
from texturevlm.check import check_count
from texturevlm.live import VideoStream
from texturevlm.live.conversation import Conversation
from texturevlm.progress import Progress
from texturevlm_lab.bench.vlm_model import asked_model, random_model
from texturevlm_lab.evaluate.markdown import markdown_page, markdown_table
from texturevlm_lab.evaluate.provenance import origin
from texturevlm_lab.studies.study import command_line, provenance, versions, write_study

SIZE = (96, 160)
BUDGET, LIMIT = 15, 256
SCENE_FRAMES = 300  # after which the scene is another one
STILL = 0.5  # share of a minute in which nothing moves
QUESTION = "What is there?"


def frame(index: int) -> torch.Tensor:
    """(3, H, W), the frame at this second."""
    chance = torch.Generator().manual_seed(index // SCENE_FRAMES)
    coarse = torch.rand(1, 3, SIZE[0] // 8, SIZE[1] // 8, generator=chance)
    image = torch.nn.functional.interpolate(coarse, SIZE)[0]
    place = min(index % 60, round(60 * (1 - STILL)))
    left = 3 * place
    image[:, 32:64, left : left + 32] = 1.0
    return image


def resident() -> float:
    """MiB of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


def held() -> float:
    """KiB of all tensors that Python objects hold."""
    gc.collect()
    tensors = (one for one in gc.get_objects() if type(one) is torch.Tensor)
    return sum(one.numel() * one.element_size() for one in tensors) / 2**10


def watched(model: VLM, frames: int, every: int) -> list[dict[str, float]]:
    """One row per question."""
    stream = VideoStream(SIZE, BUDGET, "density", model=model, relevance="none", fps=1.0, limit=LIMIT, keyframe=60)
    talk = stream.conversation
    assert talk is not None
    rows, computed = [], 0
    progress = Progress(frames // every, "questions")
    for index in range(frames):
        stream.step(frame(index), time=float(index))
        computed += talk.computed
        if (index + 1) % every:
            continue
        kept = talk.ask(QUESTION, max_new_tokens=4).logits
        slots = len(talk.memory.free) + talk.tokens + len(talk.head)
        row = {"second": index + 1, "memory": resident(), "held": held(), "tokens": talk.tokens, "slots": slots}
        row["computed"] = computed
        anew = recomputed(talk)
        row["away"] = float((kept.softmax(-1) - anew.softmax(-1)).abs().sum() / 2)
        rows.append({**row, "evicted": talk.evicted})
        computed = 0
        progress.step()
    return rows


def recomputed(talk: Conversation) -> torch.Tensor:
    """The logits of the question when all that is kept is computed anew; the cache is as before afterwards."""
    memory = talk.memory
    before = [one.clone() for one in (memory.keys, memory.turned, memory.values)]
    memory.run([*talk.head, *(slot for moment in talk.moments for slot in moment.slots())])
    logits = talk.ask(QUESTION, max_new_tokens=1).logits
    for own, kept in zip((memory.keys, memory.turned, memory.values), before):
        own.copy_(kept)
    return logits


def report(record: dict[str, Any]) -> str:
    rows = record["rows"]
    count = max(1, math.ceil(len(rows) / 6))
    table = []
    for first in range(0, len(rows), count):
        part = rows[first : first + count]
        names = ("memory", "held", "tokens", "computed", "away")
        memory, tensors, tokens, computed, away = (sum(row[name] for row in part) / len(part) for name in names)
        most = max(row["away"] for row in part)
        cells = [f"{memory:.1f}", f"{tensors:.0f}", f"{tokens:.0f}", part[-1]["evicted"], f"{computed:.0f}"]
        table.append((f"{part[-1]['second'] / 60:.0f}", *cells, f"{away:.4f}", f"{most:.4f}"))
    heads = ["until minute", "memory of the process, MiB", "all tensors, KiB", "tokens kept", "moments evicted"]
    heads += ["computed per question"]
    return markdown_page(
        "# An hour of a stream",
        provenance(record),
        f"{record['frames']} frames, one per second, {SIZE[1]}×{SIZE[0]}; a small Qwen3-VL with random weights on one "
        f"CPU thread; limit {LIMIT} tokens; a question every {record['every']} frames. Computed: tokens through the "
        "language model since the last question. Off: total variation of the first token's probabilities against "
        "all kept tokens computed anew.",
        markdown_table([*heads, "off, mean", "off, most"], table),
    )


def main(arguments: list[str] | None = None) -> int:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        prog="python -m texturevlm_lab.studies.live_hour", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--frames", type=int, default=3600, metavar="N", help="(default: 3600)")
    parser.add_argument("--every", type=int, default=60, metavar="N", help="frames between questions (default: 60)")
    options = parser.parse_args(arguments)
    check_count("--frames", "N", options.frames, check_count("--every", "N", options.every, 1))
    record = {
        "command": command_line(parser, options),
        "code": str(origin("texturevlm_lab.studies.live_hour")),
        **versions(),
    }
    record |= {"frames": options.frames, "every": options.every}
    model = asked_model(random_model("cpu", small=True), BUDGET)
    rows = watched(model, options.frames, options.every)
    print(write_study(options.out, "live-hour", {**record, "rows": rows}, report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
