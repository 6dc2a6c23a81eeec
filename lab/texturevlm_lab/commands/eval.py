"""texturevlm eval: allocators on a data set, beside resize and the controls; tables, curves and failures.

With --model a model answers the questions (eval_model.py).
"""

import argparse
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from texturevlm.commands import arguments
from texturevlm.defaults import PATCH

OCR = "auto"
ANSWER_OPTIONS = (  # that mean nothing without a model
    *("conditions", "reduce", "batch", "max_new_tokens", "suffix", "dtype", "levels", "coordinates"),
    *("untimed", "captured", "texts"),
)
NAMED = 20  # entries that were skipped and are named at the end

_whole = partial(arguments.number_within, 1, math.inf, int)
counts = arguments.typed("whole numbers N,N from 1", lambda text: [_whole(part) for part in text.split(",")])


def add_eval(commands: arguments.Commands) -> None:
    help = "measure how much of the answers stays legible, against resize"
    parser = arguments.add_command(commands, "eval", _eval, help)
    data = "a folder with questions.jsonl, or a public release; with a model its name may stand before it, for videos "
    data += "it must: nextqa, mvbench or videomme"
    parser.add_argument("data", nargs="*", metavar="[SET] DATA", help=data)
    with_model = "with a model"
    allocators = f"(default: auto; {with_model}: auto,resize)"
    parser.add_option("--allocators", "A,B,C", allocators, type=arguments.names)
    relevance = f"(default: auto; {with_model}: none,scout,words)"
    parser.add_option("--relevance", "X,Y", relevance, type=arguments.names)
    budgets = f"tokens (default: 32,64,96,128,192,273,512; {with_model}: 32,64,96,273)"
    parser.add_option("--budgets", "N,N", budgets, type=counts)
    parser.add_option("--patch", "P", "side of a token in samples", PATCH, type=arguments.count)
    parser.add_option("--out", "DIR", "results, report.md, curves.png …", type=Path)
    metrics = (
        f"legibility, recall, fidelity, objects (default: what DATA allows); {with_model} anls … (default: SET's own)"
    )
    parser.add_option("--metrics", "M,N", metrics, type=arguments.names)
    controls = "other, none: another page's question, no question (default: both; '' for neither)"
    parser.add_option("--controls", "C,C", controls, type=arguments.names)
    parser.add_option("--ocr", "E,E", "tesseract, rapidocr; auto: those installed", OCR, type=arguments.names)
    parser.add_option("--format", "NAME", "format of DATA, if its files do not tell", "auto")
    parser.add_option("--split", None, "train, eval or all", "eval")
    parser.add_count("--limit", "use N samples, evenly spread (default: all)")
    parser.add_argument("--skip-broken", action="store_true", help="list broken entries of DATA, and leave them out")
    parser.add_option("--pages", "DIR", "cache of the pages' words (default: in --out)", type=Path)
    parser.add_device()
    parser.add_argument("--fresh", action="store_true", help="discard the results in --out")
    _add_model_options(parser)


def _add_model_options(parser: arguments.Parser) -> None:
    """The options of `eval` with a model."""
    group = parser.add_argument_group("with a model")
    group.add_argument("--model", metavar="ID|DIR", help="a model of the hub or a folder; it answers the questions")
    group.add_argument("--from", dest="rows", metavar="ROWS", help="make the table of an earlier run from its rows")
    kinds = "full, own, chosen, oracle, question, page, blank, text (default: all)"
    group.add_argument("--conditions", metavar="C,D", type=arguments.names, help=kinds)
    reductions = (
        "visionzip, fastv … or all: twice the budget is chosen, and the model reduces it to the budget (docs/rivals.md)"
    )
    group.add_argument("--reduce", metavar="M,N", type=arguments.names, help=reductions)
    group.add_argument("--batch", metavar="N", type=arguments.count, help="questions per batch (default: 16)")
    group.add_argument(
        "--max-new-tokens", metavar="N", type=arguments.count, help="of an answer (default: 64; 160 for a reader)"
    )
    suffix = (
        "text behind every question (default: Answer the question using a single word or phrase.; none for a reader)"
    )
    group.add_argument("--suffix", metavar="TEXT", help=suffix)
    group.add_argument("--dtype", metavar="T", help="of the model: bfloat16, float32 … (default: the checkpoint's)")
    turned = "angle of the text of pages in degrees, or auto: for the conditions chosen and question (default: 0)"
    group.add_argument("--turn", metavar="A", type=arguments.angle_or_auto, help=turned)
    group.add_argument("--levels", help="joint, apart or causal: how the vision tower sees tokens of several scales")
    group.add_argument("--coordinates", help="fine or native: the positions of tokens in the vision tower")
    group.add_argument("--untimed", action="store_true", help="do not time the first tokens")
    group.add_argument("--captured", action="store_true", help="decode answers from CUDA graphs (Qwen)")
    group.add_argument("--texts", metavar="FILE", type=Path, help="write the answers as text, for your own eyes")


def _eval(options: argparse.Namespace) -> int:
    from texturevlm_lab.evaluate.video_data import VIDEO_SETS

    if options.out is not None and options.out.exists() and not options.out.is_dir():
        raise ValueError(f"--out must be a folder, got the file {options.out}")
    videos = len(options.data) == 2 and options.data[0] in VIDEO_SETS
    if options.turn is not None and (videos or options.model is None):
        raise ValueError(
            f"--turn is for pages that a --model is asked about, got it {'for videos' if videos else 'alone'}"
        )
    if not videos:
        _check_use(options)
    if videos or options.model is not None or options.rows is not None:
        from texturevlm_lab.commands.eval_model import eval_model, eval_videos

        return eval_videos(options) if videos else eval_model(options)
    if len(options.data) != 1 or options.out is None:
        raise ValueError(f"DATA and --out must be given, got {len(options.data)} × DATA and --out {options.out}")
    return _legibility(options, Path(options.data[0]))


def _check_use(options: argparse.Namespace) -> None:
    """Options of the other kind of run are refused, because they would change nothing."""
    from texturevlm.check import check_choice

    check_choice("eval", "--split", options.split, ["train", "eval", "all"])
    asked = options.model is not None
    if asked and (options.controls is not None or options.ocr != [OCR]):
        name = "--ocr" if options.controls is None else "--controls"
        raise ValueError(f"{name} is for runs without a model (with one: --conditions), got it with --model")
    given = [name for name in ANSWER_OPTIONS if getattr(options, name) not in (None, False)]
    if given and not asked:
        raise ValueError(f"--{given[0].replace('_', '-')} is for answers of a --model, got no --model")


def _legibility(options: argparse.Namespace, folder: Path) -> int:
    """Without a model: what allocators keep legible."""
    from texturevlm_lab.evaluate.data import NothingLeft, load_data
    from texturevlm_lab.evaluate.report import publish
    from texturevlm_lab.evaluate.run import BUDGETS, CONTROLS, evaluate

    options.allocators, options.relevance = options.allocators or ["auto"], options.relevance or ["auto"]
    device = str(arguments.device_of(options))
    located = None if options.metrics is None else set(options.metrics) <= {"legibility", "recall"}
    split = None if options.split == "all" else options.split
    common = {name: getattr(options, name) for name in ("format", "skip_broken", "limit")}
    try:
        data = load_data(folder, split=split, located=located, **common)
    except NothingLeft as error:
        return nothing_left(str(error), error.skipped)
    report_skipped(data.skipped)
    notes = [
        f"Command: `{_command(options)}`.",
        f"{len(data.samples)} samples of {folder.resolve().name} ({data.format}, {options.split}).",
    ]
    if data.unlocated:
        notes.append(data.left_out)
    if data.skipped:
        notes.append(f"{len(data.skipped)} broken entries were skipped.")
    evaluation = evaluate(
        data.samples,
        allocators=options.allocators,
        relevances=options.relevance,
        budgets=options.budgets or BUDGETS,
        controls=CONTROLS if options.controls is None else options.controls,
        device=device,
        **{name: getattr(options, name) for name in ("patch", "metrics", "ocr", "out", "pages", "fresh")},
    )
    title = f"{folder.resolve().name}: {', '.join(options.allocators)}"
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


def nothing_left(message: str, skipped: Sequence[str]) -> int:
    """Name the broken entries; the status."""
    report_skipped(skipped)
    print(f"texturevlm eval: {message.removeprefix('load_data: ')}", file=sys.stderr)
    return 1


def report_skipped(skipped: Sequence[str]) -> None:
    for what in skipped[:NAMED]:
        print(f"skipped {what}", file=sys.stderr)
    if len(skipped) > NAMED:
        print(f"skipped {len(skipped) - NAMED} more", file=sys.stderr)
    if skipped:
        print(f"{len(skipped)} skipped in all", file=sys.stderr)
