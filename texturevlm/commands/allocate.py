"""texturevlm allocate: where a budget of tokens goes, as JSON."""

import argparse
from pathlib import Path

from texturevlm.commands.options import Commands, add_choice_of_tokens


def add_allocate(commands: Commands) -> None:
    parser = commands.add_parser("allocate", help="where a budget of tokens goes, as JSON")
    parser.add_argument("image", type=Path, metavar="IMAGE")
    parser.add_argument("--query", default="", metavar="Q", help="a question: what matters for it is seen finely")
    parser.add_argument("--budget", type=int, default=273, metavar="N", help="tokens (default: 273)")
    parser.add_argument("--patch", type=int, default=32, metavar="P", help="side of a token in pixels (default: 32)")
    add_choice_of_tokens(parser)
    parser.add_argument("--device", default="cpu", metavar="D", help="(default: cpu)")
    parser.add_argument("--json", default="-", metavar="FILE", help="where to write it; - for the output (default: -)")
    parser.set_defaults(run=_allocate)


def _allocate(options: argparse.Namespace) -> int:
    import texturevlm as tv

    allocation = tv.choose_tokens(
        tv.Texture.open(options.image, device=options.device),
        options.query,
        budget=options.budget,
        patch=options.patch,
        allocator=options.allocator,
        relevance=options.relevance,
    )
    if options.json == "-":
        print(allocation.to_json())
        return 0
    Path(options.json).write_text(allocation.to_json() + "\n", encoding="utf-8")
    print(f"{options.json}: {int(allocation.valid.sum())} tokens of {allocation.patch}×{allocation.patch}")
    return 0
