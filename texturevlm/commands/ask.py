"""texturevlm ask: a question about images, answered by a model that reads a budget of chosen tokens."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from texturevlm.check import check_count
from texturevlm.commands.options import Commands, add_choice_of_tokens, check_png


def add_ask(commands: Commands) -> None:
    parser = commands.add_parser("ask", help="ask a vision-language model about images")
    parser.add_argument("images", type=Path, nargs="+", metavar="IMAGE")
    parser.add_argument("question", metavar="QUESTION")
    parser.add_argument(
        "--model", required=True, metavar="PATH_OR_ID", help="Qwen3-VL, Qwen2.5-VL or LLaVA: a hub id or a folder"
    )
    parser.add_argument(
        "--budget", type=int, default=273, metavar="N", help="tokens that all images share (default: 273)"
    )
    parser.add_argument(
        "--looks", type=int, default=1, choices=(1, 2), help="2: an overview, then where its attention went"
    )
    add_choice_of_tokens(parser)
    parser.add_argument("--device", metavar="D", help="(default: cuda if there is one)")
    parser.add_argument("--dtype", metavar="T", help="such as bfloat16 (default: the checkpoint's own)")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="of the answer (default: 256)")
    parser.add_argument("--out", type=Path, metavar="PNG", help="draw what it saw, too")
    parser.set_defaults(run=_ask)


def _ask(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.ask.model import check_options
    from texturevlm.ask.scene import check_budget, check_looks

    if options.out is not None:
        check_png(options.out)
    check_options("ask", options.budget, options.allocator, options.relevance)
    check_looks(options.looks, options.relevance)
    check_budget(options.budget, len(options.images))
    check_count("ask", "--max-new-tokens", options.max_new_tokens, 1)
    textures = [tv.Texture.open(path) for path in options.images]  # all of it before a model is loaded
    with _told(f"loading {options.model}"):
        model = tv.load_vlm(
            options.model,
            budget=options.budget,
            device=options.device,
            dtype=options.dtype,
            allocator=options.allocator,
            relevance=options.relevance,
            captured=False,  # which takes longer than one question
        )
    scene = model.see(textures)
    for piece in scene.ask(options.question, looks=options.looks, stream=True, max_new_tokens=options.max_new_tokens):
        print(piece, end="", flush=True)
    print()
    if options.out is not None:
        scene.look(options.question, looks=options.looks).save(options.out)
        print(f"{options.out}: what it saw", file=sys.stderr)
    return 0


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Says on stderr what goes on and how long it took; transformers draws its own bars between, on a terminal."""
    from texturevlm.channels.pretrained import optional

    bars = optional("ask", "transformers").utils.logging
    if not sys.stderr.isatty():
        bars.disable_progress_bar()
    print(f"{what} …", file=sys.stderr, flush=True)
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
