"""texturevlm eval: allocators on a data set, beside resize and the controls; tables, curves and failures."""

import argparse
import sys
from pathlib import Path
from typing import Any

from texturevlm.commands.options import Commands, add_device, count, device_of, existing_path
from texturevlm.defaults import PATCH


def add_eval(commands: Commands) -> None:
    parser = commands.add_parser("eval", help="measure how much of the answers stays legible, against resize")
    parser.add_argument(
        "data", type=existing_path, metavar="DATA", help="a folder with questions.jsonl, or a public release"
    )
    parser.add_argument("--allocators", type=_names, default=["auto"], metavar="A,B,C", help="(default: auto)")
    parser.add_argument("--relevance", type=_names, default=["auto"], metavar="X,Y", help="(default: auto)")
    parser.add_argument("--budgets", type=_counts, metavar="N,N", help="tokens (default: 32,64,96,128,192,273,512)")
    parser.add_argument(
        "--patch", type=count, default=PATCH, metavar="P", help=f"side of a token in samples (default: {PATCH})"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="results, report.md, curves.png …")
    parser.add_argument(
        "--metrics",
        type=_names,
        metavar="M,N",
        help="legibility, recall, fidelity, objects (default: what DATA allows)",
    )
    parser.add_argument(
        "--controls",
        type=_names,
        metavar="C,C",
        help="other, none: another page's question, no question (default: both; '' for neither)",
    )
    parser.add_argument("--ocr", default="auto", help="auto, tesseract or rapidocr (default: auto)")
    parser.add_argument("--format", default="auto", metavar="NAME", help="format of DATA, if its files do not tell")
    parser.add_argument("--split", default="eval", help="train, eval or all (default: eval)")
    parser.add_argument("--limit", type=count, metavar="N", help="use N samples, evenly spread (default: all)")
    parser.add_argument("--skip-broken", action="store_true", help="list broken entries of DATA, and leave them out")
    parser.add_argument("--pages", type=Path, metavar="DIR", help="cache of the pages' words (default: in --out)")
    add_device(parser)
    parser.add_argument("--fresh", action="store_true", help="discard the results in --out")
    parser.set_defaults(run=_eval)


def _eval(options: argparse.Namespace) -> int:
    from texturevlm.evaluate.data import load_data
    from texturevlm.evaluate.report import publish
    from texturevlm.evaluate.run import BUDGETS, CONTROLS, evaluate

    if options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {options.out}")
    device = str(device_of(options))
    located = None if options.metrics is None else set(options.metrics) <= {"legibility", "recall"}
    split = None if options.split == "all" else options.split
    common: dict[str, Any] = {"format": options.format, "split": split, "skip_broken": options.skip_broken}
    data = load_data(options.data, limit=options.limit, located=located, **common)
    for what in data.skipped:
        print(f"skipped {what}", file=sys.stderr)
    notes = [f"{len(data.samples)} samples of {options.data.resolve().name} ({data.format}, {options.split})."]
    if data.skipped:
        notes.append(f"{len(data.skipped)} broken entries were skipped.")
    evaluation = evaluate(
        data.samples,
        allocators=options.allocators,
        relevances=options.relevance,
        budgets=options.budgets or BUDGETS,
        patch=options.patch,
        metrics=options.metrics,
        ocr=options.ocr,
        out=options.out,
        controls=CONTROLS if options.controls is None else options.controls,
        device=device,
        pages=options.pages,
        fresh=options.fresh,
    )
    title = f"{options.data.resolve().name}: {', '.join(options.allocators)}"
    for path in publish(evaluation, options.out, title=title, notes=notes):
        print(path)
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _counts(text: str) -> list[int]:
    try:
        found = [int(number) for number in _names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers N,N, got {text!r}") from None
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"must be whole numbers from 1, got {text!r}")
    return found
