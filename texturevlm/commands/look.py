"""texturevlm look: what a model would see of an image, for a question or around a point, as a picture."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from texturevlm.commands.options import Commands, add_choice_of_tokens, check_png, point

if TYPE_CHECKING:
    from texturevlm.types import Allocation


def add_look(commands: Commands) -> None:
    parser = commands.add_parser("look", help="draw what a model would see of an image")
    parser.add_argument("image", type=Path, metavar="IMAGE")
    parser.add_argument("--query", metavar="Q", help="a question: what matters for it is seen finely")
    add_choice_of_tokens(parser, default=None)
    parser.add_argument("--fixation", type=point, metavar="X,Y", help="or a point to look at (default: the centre)")
    parser.add_argument("--e0", type=float, default=0.5, help="eccentricity at which resolution halves (default: 0.5)")
    parser.add_argument("--budget", type=int, default=273, metavar="N", help="tokens (default: 273)")
    parser.add_argument(
        "--patch", type=int, metavar="P", help="side of a token in pixels (default: 32 for a question, 16 for a point)"
    )
    parser.add_argument("--out", type=Path, default=Path("look.png"), metavar="PNG", help="(default: look.png)")
    parser.set_defaults(run=_look)


def _look(options: argparse.Namespace) -> int:
    check_png(options.out)
    if options.query is None and options.allocator is None and options.relevance is None:
        return _look_at_a_point(options)
    if options.fixation is not None:
        raise ValueError("--fixation looks at a point, and --query, --allocator and --relevance choose; give one")
    return _look_for_a_question(options)


def _look_at_a_point(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.draw import look_picture

    patch = 16 if options.patch is None else options.patch
    texture = tv.Texture.open(options.image)
    height, width = texture.size
    fixation = options.fixation or (width / 2, height / 2)
    allocation = tv.foveate(texture.size, fixation=fixation, budget=options.budget, patch=patch, e0=options.e0)
    look_picture(texture, allocation, fixation).save(options.out)
    _say(options, allocation, f" at {fixation[0]:g},{fixation[1]:g}")
    return 0


def _look_for_a_question(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.allocate import ALLOCATORS
    from texturevlm.check import check_choice
    from texturevlm.draw import question_picture
    from texturevlm.relevance import find_relevance

    patch = 32 if options.patch is None else options.patch
    question = options.query or ""
    texture = tv.Texture.open(options.image).mipmapped()
    allocator = options.allocator or "auto"
    check_choice("look", "allocator", allocator, ALLOCATORS)  # before the page is read
    relevance = find_relevance(texture, question, patch=patch, relevance=options.relevance or "auto")
    allocation = tv.choose_tokens(texture, budget=options.budget, patch=patch, allocator=allocator, relevance=relevance)
    question_picture(texture, allocation, relevance, question).save(options.out)
    _say(options, allocation)
    return 0


def _say(options: argparse.Namespace, allocation: "Allocation", where: str = "") -> None:
    level = allocation.level[allocation.valid]
    finest, coarsest = (2**one for one in (level.min().item(), level.max().item()))
    height, width = allocation.size
    print(
        f"{options.out}: {width}×{height} seen with {int(allocation.valid.sum())} tokens of "
        f"{allocation.patch}×{allocation.patch}, from {finest:.2f} px a sample{where} to {coarsest:.2f}"
    )
