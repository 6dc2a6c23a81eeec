"""texturevlm allocate: write where the tokens of a budget lie, as JSON."""

import argparse
from pathlib import Path

from texturevlm.commands import arguments


def add_allocate(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "allocate", _allocate, "write where the tokens of a budget lie, as JSON")
    parser.add_argument("images", type=arguments.existing_file, nargs="+", metavar="IMAGE")
    parser.add_option("--query", "Q", "a question: what matters for it is shown finely")
    parser.add_argument("--share", action="store_true", help="the images share one budget, instead of one budget each")
    parser.add_tokens()
    parser.add_turn(0.0)
    parser.add_option("--balance", None, "how far the question is trusted", "even", choices=("even", "learned"))
    parser.add_device()
    parser.add_option("--json", "FILE", "where to write; - for stdout", "-")


def _allocate(options: argparse.Namespace) -> int:
    import texturevlm as tv

    out, images, question = Path(options.json), options.images, options.query or ""
    if options.json != "-" and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(f"--json must be a file in a folder that exists, got {out}")
    if options.share and options.budget < len(images):
        raise ValueError(f"--budget must be at least one token per image ({len(images)}), got {options.budget}")
    allocator, relevance = arguments.names_of(options)
    device = arguments.device_of(options)
    textures = [tv.Texture.open(path, device=device) for path in images]
    given = {"budget": options.budget, "patch": options.patch, "allocator": allocator, "relevance": relevance}
    given |= {"turn": options.turn, "balance": options.balance}
    with arguments.announced("reading the images by OCR", only=arguments.reads_pages(relevance, question)):
        allocations = tv.choose_tokens(textures, question, share=options.share, **given)
    encoded = [allocation.to_json() for allocation in allocations]
    text = encoded[0] if len(encoded) == 1 else "[" + ",\n".join(encoded) + "]"
    if options.json == "-":
        print(text)
        return 0
    out.write_text(text + "\n", encoding="utf-8")
    counts = " + ".join(str(int(allocation.valid.sum())) for allocation in allocations)
    print(f"{out}: {counts} tokens of {options.patch}×{options.patch}")
    return 0
