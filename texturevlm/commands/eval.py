"""texturevlm eval: allocators on a data set, beside resize and the controls; tables, curves and failures."""

import argparse
import sys
from pathlib import Path

from texturevlm.commands import arguments
from texturevlm.defaults import PATCH


def add_eval(commands: arguments.Commands) -> None:
    help = "measure how much of the answers stays legible, against resize"
    parser = arguments.add_command(commands, "eval", _eval, help)
    data = "a folder with questions.jsonl, or a public release"
    parser.add_argument("data", type=arguments.existing_path, metavar="DATA", help=data)
    parser.add_option("--allocators", "A,B,C", "", "auto", type=_names)
    parser.add_option("--relevance", "X,Y", "", "auto", type=_names)
    parser.add_option("--budgets", "N,N", "tokens (default: 32,64,96,128,192,273,512)", type=_counts)
    parser.add_option("--patch", "P", "side of a token in samples", PATCH, type=arguments.count)
    parser.add_out("DIR", "results, report.md, curves.png …")
    metrics = "legibility, recall, fidelity, objects (default: what DATA allows)"
    parser.add_option("--metrics", "M,N", metrics, type=_names)
    controls = "other, none: another page's question, no question (default: both; '' for neither)"
    parser.add_option("--controls", "C,C", controls, type=_names)
    parser.add_option("--ocr", "E,E", "tesseract, rapidocr; auto: those installed", "auto", type=_names)
    parser.add_option("--format", "NAME", "format of DATA, if its files do not tell", "auto")
    parser.add_option("--split", None, "train, eval or all", "eval")
    parser.add_count("--limit", "use N samples, evenly spread (default: all)")
    parser.add_argument("--skip-broken", action="store_true", help="list broken entries of DATA, and leave them out")
    parser.add_option("--pages", "DIR", "cache of the pages' words (default: in --out)", type=Path)
    parser.add_device()
    parser.add_argument("--fresh", action="store_true", help="discard the results in --out")


def _eval(options: argparse.Namespace) -> int:
    from texturevlm.evaluate.data import load_data
    from texturevlm.evaluate.report import publish
    from texturevlm.evaluate.run import BUDGETS, CONTROLS, evaluate

    if options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {options.out}")
    device = str(arguments.device_of(options))
    located = None if options.metrics is None else set(options.metrics) <= {"legibility", "recall"}
    split = None if options.split == "all" else options.split
    common = {name: getattr(options, name) for name in ("format", "skip_broken", "limit")}
    data = load_data(options.data, split=split, located=located, **common)
    for what in data.skipped:
        print(f"skipped {what}", file=sys.stderr)
    notes = [
        f"Command: `{_command(options)}`.",
        f"{len(data.samples)} samples of {options.data.resolve().name} ({data.format}, {options.split}).",
    ]
    if data.unlocated:
        notes.append(data.left_out)
    if data.skipped:
        notes.append(f"{len(data.skipped)} broken entries were skipped.")
    evaluation = evaluate(
        data.samples,
        relevances=options.relevance,
        budgets=options.budgets or BUDGETS,
        controls=CONTROLS if options.controls is None else options.controls,
        device=device,
        **{name: getattr(options, name) for name in ("allocators", "patch", "metrics", "ocr", "out", "pages", "fresh")},
    )
    title = f"{options.data.resolve().name}: {', '.join(options.allocators)}"
    for path in publish(evaluation, options.out, title=title, notes=notes):
        print(path)
    return 0


def _command(options: argparse.Namespace) -> str:
    """The command that makes the table again, with the options that its numbers depend on."""
    lists = {
        name: getattr(options, name) for name in ("allocators", "relevance", "budgets", "metrics", "controls", "ocr")
    }
    words = [f"--{name} {','.join(map(str, value)) or repr('')}" for name, value in lists.items() if value is not None]
    words += [f"--{name} {getattr(options, name)}" for name in ("patch", "split", "limit") if getattr(options, name)]
    return " ".join(["texturevlm eval DATA --out DIR", *words])


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
