"""texturevlm allocate: write where the tokens of a budget lie, as JSON."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from texturevlm.commands.options import (
    Commands,
    add_device,
    add_tokens,
    announced,
    device_of,
    existing_file,
    names_of,
    reads_pages,
)

if TYPE_CHECKING:
    from texturevlm.types import Allocation


def add_allocate(commands: Commands) -> None:
    parser = commands.add_parser("allocate", help="write where the tokens of a budget lie, as JSON")
    parser.add_argument("images", type=existing_file, nargs="+", metavar="IMAGE")
    parser.add_argument("--query", default="", metavar="Q", help="a question: what matters for it is shown finely")
    parser.add_argument("--share", action="store_true", help="the images share one budget, instead of one budget each")
    add_tokens(parser)
    add_device(parser)
    parser.add_argument("--json", default="-", metavar="FILE", help="where to write; - for stdout (default: -)")
    parser.set_defaults(run=_allocate)


def _allocate(options: argparse.Namespace) -> int:
    out = Path(options.json)
    if options.json != "-" and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(f"--json must be a file in a folder that exists, got {out}")
    if options.share and options.budget < len(options.images):
        raise ValueError(f"--budget must be at least one token per image ({len(options.images)}), got {options.budget}")
    allocations = _allocations(options)
    encoded = [allocation.to_json() for allocation in allocations]
    text = encoded[0] if len(encoded) == 1 else "[" + ",\n".join(encoded) + "]"
    if options.json == "-":
        print(text)
        return 0
    out.write_text(text + "\n", encoding="utf-8")
    counts = " + ".join(str(int(allocation.valid.sum())) for allocation in allocations)
    print(f"{out}: {counts} tokens of {options.patch}×{options.patch}")
    return 0


def _allocations(options: argparse.Namespace) -> "list[Allocation]":
    import texturevlm as tv

    allocator, relevance = names_of(options)
    device = device_of(options)
    textures = [tv.Texture.open(path, device=device) for path in options.images]
    with announced("reading the images by OCR", only=reads_pages(relevance, options.query)):
        given = {"budget": options.budget, "patch": options.patch, "allocator": allocator, "relevance": relevance}
        if options.share:
            return tv.choose_tokens(textures, options.query, share=True, **given)
        return [tv.choose_tokens(texture, options.query, **given) for texture in textures]
