"""texturevlm eval nextqa | mvbench | videomme: a model answers questions about videos, by multiple choice."""

import argparse
import sys
from pathlib import Path

from texturevlm.commands import arguments

ROWS, TABLE = "video-answers.jsonl", "video-answers.md"
BUDGETS = (96, 273)
SPLITS = {"eval": "val", "train": "train"}


def eval_videos(name: str, folder: str, options: argparse.Namespace) -> int:
    """Run, or go on with a run; the table is written to --out."""
    from texturevlm.ask import load_vlm
    from texturevlm.check import check_choice
    from texturevlm_lab.evaluate.video_answers import CONDITIONS, accuracy_table, answer_videos
    from texturevlm_lab.evaluate.video_data import load_video_questions

    if options.model is None or options.out is None:
        raise ValueError(f"--model and --out must be given for videos, got {options.model} and {options.out}")
    conditions = options.conditions or CONDITIONS[:2]
    for one in conditions:
        check_choice("eval", "--conditions", one, CONDITIONS)
    device = arguments.device_of(options)
    split = SPLITS.get(options.split, options.split)
    questions, skipped = load_video_questions(
        folder, format=name, split=split, limit=options.limit, skip_broken=options.skip_broken
    )
    for what in skipped:
        print(f"skipped {what}", file=sys.stderr)
    options.out.mkdir(parents=True, exist_ok=True)
    with arguments.announced(f"loading {options.model}"):
        model = load_vlm(options.model, device=device, dtype=options.dtype)
    rows = answer_videos(
        model, questions, budgets=options.budgets or BUDGETS, conditions=conditions, out=Path(options.out) / ROWS
    )
    page = (
        f"# {name}: {options.model}\n\n{len(questions)} questions, {len(skipped)} skipped.\n\n{accuracy_table(rows)}\n"
    )
    (Path(options.out) / TABLE).write_text(page)
    print(page)
    return 0
