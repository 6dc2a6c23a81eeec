"""texturevlm ask: ask a vision-language model about images, which it reads in a budget of chosen tokens."""

import argparse
import sys
from pathlib import Path

from texturevlm.commands.options import (
    Commands,
    add_device,
    add_tokens,
    announced,
    check_out,
    count,
    device_of,
    existing_file,
    names_of,
    reads_pages,
)


def add_ask(commands: Commands) -> None:
    parser = commands.add_parser(
        "ask",
        help="ask a vision-language model about images",
        usage="%(prog)s IMAGE [IMAGE …] QUESTION --model PATH_OR_ID [options]",
    )
    # One argument, because argparse gives a second one nothing if an option stands between the images.
    parser.add_argument("inputs", nargs="+", metavar="IMAGE … QUESTION", help="images, then the question")
    parser.add_argument(
        "--model", required=True, metavar="PATH_OR_ID", help="Qwen3-VL, Qwen2.5-VL or LLaVA: a hub id or a folder"
    )
    add_tokens(parser, budget="tokens that all images share", patch=False)
    parser.add_argument(
        "--looks", type=int, default=1, choices=(1, 2), help="2: an overview, then where the model's attention went"
    )
    parser.add_argument(
        "--tokens",
        default="chosen",
        choices=("chosen", "weighted"),
        help="weighted: the model's own full grid, each token weighted by relevance (default: chosen)",
    )
    add_device(parser)
    parser.add_argument("--dtype", metavar="T", help="such as bfloat16 (default: the checkpoint's own)")
    parser.add_argument("--max-new-tokens", type=count, default=256, metavar="N", help="of the answer (default: 256)")
    parser.add_argument("--out", type=Path, metavar="PNG", help="draw what the model saw, too")
    parser.set_defaults(run=_ask)


def _ask(options: argparse.Namespace) -> int:
    paths, question = _images_and_question(options.inputs)
    if options.out is not None:
        check_out(options.out, ".png")
    allocator, relevance = names_of(options, unusable=("embedding",))

    import texturevlm as tv
    from texturevlm.ask.choose import check_budget
    from texturevlm.ask.options import check_looks, check_options

    check_options("ask", options.budget, allocator, relevance, options.tokens)
    check_looks(options.looks, relevance, options.tokens)
    check_budget(options.budget, len(paths))
    device = device_of(options)
    textures = [tv.Texture.open(path) for path in paths]  # a bad image is refused before a model is loaded
    _quiet_bars()
    with announced(f"loading {options.model}"):
        model = tv.load_vlm(
            options.model,
            budget=options.budget,
            device=device,
            dtype=options.dtype,
            allocator=allocator,
            relevance=relevance,
            tokens=options.tokens,
            captured=False,  # a capture takes longer than one question
        )
    images = model.prepare(textures)
    if options.looks == 1 and reads_pages(relevance, question):
        with announced("reading the images by OCR"):
            images.choose(question)
    for piece in images.ask(question, looks=options.looks, stream=True, max_new_tokens=options.max_new_tokens):
        print(piece, end="", flush=True)
    print()
    if options.out is not None:
        images.look(question, looks=options.looks).save(options.out)
        print(f"{options.out}: what the model saw", file=sys.stderr)
    return 0


def _images_and_question(inputs: list[str]) -> tuple[list[Path], str]:
    *images, question = inputs
    if not images or Path(question).is_file():
        raise ValueError(f"needs images and then a QUESTION, got {', '.join(inputs)}")
    try:
        return [existing_file(image) for image in images], question
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"IMAGE: {error}") from None


def _quiet_bars() -> None:
    """Progress bars of transformers belong on a terminal."""
    from texturevlm.channels.pretrained import optional

    if not sys.stderr.isatty():
        optional("ask", "transformers").utils.logging.disable_progress_bar()
