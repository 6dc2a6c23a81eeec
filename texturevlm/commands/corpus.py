"""texturevlm corpus: choose the tokens of many images, and write them as a data set."""

import argparse
import sys
from pathlib import Path

from texturevlm.commands import arguments
from texturevlm.defaults import PATCH

WRITTEN = ("patches", "features", "codes", "allocations", "thumbnails")
FORMATS = ("parquet", "webdataset", "safetensors")
# Options of `build`, and fields of the recipe.
RUN = ("engine", "workers", "threads", "address", "kind", "questions", "decoder", "batch", "retry_errors")
MADE_BY = ("write", "format", "model", "budget", "allocator", "relevance", "turn", "patch", "buckets", "unit")
KINDS = ("auto", "images", "list", "webdataset", "parquet", "pdf")


def add_corpus(commands: arguments.Commands) -> None:
    help = "choose the tokens of many images, and write them as a data set"
    parser = arguments.add_command(commands, "corpus", _corpus, help)
    source = (
        "a folder of images, tars, parquet files or PDFs; such a file; or a list (.txt, .jsonl); also a URL of fsspec"
    )
    parser.add_argument("source", metavar="SOURCE", help=source)
    parser.add_option("--out", "DIR", "folder of the corpus; if it holds a part of it, the rest is made", required=True)
    parser.add_argument("--write", choices=WRITTEN, help="what a row holds (default: patches)")
    parser.add_argument("--format", choices=FORMATS, help="of the files (default: parquet)")
    parser.add_option("--model", "M", "for features and codes: a hub id, a folder or reader")
    parser.add_option("--codebook", "FILE", "for codes, fitted to the model", type=arguments.existing_file)
    parser.add_option("--questions", "FILE", "JSONL with key and question", type=arguments.existing_file)
    parser.add_tokens("budget", "allocator", "relevance", "turn")
    parser.add_count("--patch", f"side of a token in samples (default: the model's, or {PATCH})")
    parser.add_argument("--kind", choices=KINDS, default="auto", help="what SOURCE holds (default: auto)")
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="(default: local)")
    parser.add_option("--address", "A", "of the Ray cluster, such as auto (default: begin one here)")
    workers = "processes; 0: only this one (default: up to four per GPU, or one per core)"
    parser.add_option("--workers", "N", workers, type=int)
    threads = "that decode, per worker (default: the cores, shared by the workers of a GPU, else 1)"
    parser.add_count("--threads", threads)
    parser.add_device()
    parser.add_count("--batch", "images that are processed together (default: 32 on a GPU, 8 on a CPU)")
    ladder = "0: only images of one size share a batch; N: sides are stretched up to a ladder of N steps per octave"
    parser.add_option("--buckets", "N", f"{ladder} (default: 0)", type=int)
    parser.add_count("--unit", "images per unit, for folders and lists (default: 128)")
    parser.add_option("--decoder", "NAME", "of JPEGs: auto, simplejpeg, pillow; on GPUs nvimgcodec, torchcodec", "auto")
    parser.add_argument("--retry-errors", action="store_true", help="do units with errors again")
    seen = "write DIR/report.html with a contact sheet of what was seen"
    parser.add_argument("--report", action="store_true", help=seen)
    parser.add_option("--lance", "FOLDER", "write the finished corpus as a Lance data set, too", type=Path)


def _corpus(options: argparse.Namespace) -> int:
    from texturevlm.corpus import build, open
    from texturevlm.corpus.dataset import check_lance, export_lance
    from texturevlm.corpus.payloads import model_side
    from texturevlm.corpus.report import write_report
    from texturevlm.corpus.watch import shown

    if options.lance is not None:
        check_lance(options.lance)
    arguments.tokens_of(options)
    # The machine that drives a cluster need not have what its nodes have.
    device = options.device if options.engine == "ray" and options.device else str(arguments.device_of(options))
    run = {name: getattr(options, name) for name in RUN}
    made_by = {name: value for name in MADE_BY if (value := getattr(options, name)) is not None}
    if options.model and options.patch is None:
        made_by["patch"] = model_side(options.model)
    if options.codebook:
        made_by["codebook"] = str(options.codebook)
    found = build(options.source, options.out, quiet=False, device=device, **run, **made_by)
    print(f"{options.out}: {found.rows} rows in {found.units} units, {found.errors} errors")
    if found.made:
        rates = ", ".join(f"{stage} {shown(rate)}" for stage, rate in found.rates.items())
        print(f"this run: {found.made} rows in {found.seconds:.1f} s")
        print(f"images/s by stage: {rates}; bottleneck: {found.bottleneck}")
    if options.report or options.lance:
        made = open(options.out, partial=True)
        if options.report:
            write_report(made, found)
            print(f"report: {options.out}/report.html")
        if options.lance and not found.failed:
            print(f"{options.lance}: {export_lance(made, options.lance)} rows")
    if found.errors:
        print(f"what could not be read: {Path(options.out) / 'errors'}", file=sys.stderr)
    if found.unasked and not found.failed:
        count = f"{found.unasked} of {found.asked + found.unasked} questions"
        print(f"{count} have no image that could be read: is their key right?", file=sys.stderr)
    for number, why in found.failed.items():
        print(f"unit {number} is not done: {why}", file=sys.stderr)
    return 1 if found.failed else 0
