"""texturevlm look: draw what a model would see of an image, for a question or around a point."""

import argparse
from typing import TYPE_CHECKING

from texturevlm.commands.options import (
    Commands,
    add_device,
    add_png,
    add_tokens,
    announced,
    check_out,
    device_of,
    existing_file,
    names_of,
    point,
    reads_pages,
)

if TYPE_CHECKING:
    from texturevlm.types import Allocation


def add_look(commands: Commands) -> None:
    parser = commands.add_parser("look", help="draw what a model would see of an image")
    parser.add_argument("image", type=existing_file, metavar="IMAGE")
    parser.add_argument("--query", metavar="Q", help="a question: what matters for it is shown finely")
    parser.add_argument("--fixation", type=point, metavar="X,Y", help="or a point to look at (default: the centre)")
    parser.add_argument("--e0", type=float, default=0.5, help="eccentricity that halves the resolution (default: 0.5)")
    add_tokens(parser)
    add_device(parser)
    add_png(parser, "look.png")
    parser.set_defaults(run=_look)


def _look(options: argparse.Namespace) -> int:
    check_out(options.out, ".png")
    if options.query is None and options.allocator is None and options.relevance is None:
        return _look_at_point(options)
    if options.fixation is not None:
        raise ValueError("--fixation excludes --query, --allocator and --relevance; give one or the others")
    return _look_for_question(options)


def _look_at_point(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.draw import look_picture

    texture = tv.Texture.open(options.image, device=device_of(options))
    height, width = texture.size
    fixation = options.fixation or (width / 2, height / 2)
    allocation = tv.foveate(
        texture.size,
        fixation=fixation,
        budget=options.budget,
        patch=options.patch,
        e0=options.e0,
        device=texture.device,
    )
    look_picture(texture, allocation, fixation).save(options.out)
    _report(options, allocation, f" at {fixation[0]:g},{fixation[1]:g}")
    return 0


def _look_for_question(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.draw import question_picture
    from texturevlm.relevance import find_relevance

    allocator, name = names_of(options)
    question = options.query or ""
    texture = tv.Texture.open(options.image, device=device_of(options)).mipmapped()
    with announced("reading the image by OCR", only=reads_pages(name, question)):
        relevance = find_relevance(texture, question, patch=options.patch, relevance=name)
    allocation = tv.choose_tokens(
        texture, budget=options.budget, patch=options.patch, allocator=allocator, relevance=relevance
    )
    question_picture(texture, allocation, relevance, question).save(options.out)
    _report(options, allocation)
    return 0


def _report(options: argparse.Namespace, allocation: "Allocation", where: str = "") -> None:
    level = allocation.level[allocation.valid]
    finest, coarsest = (2**one for one in (level.min().item(), level.max().item()))
    height, width = allocation.size
    print(
        f"{options.out}: {width}×{height} seen with {int(allocation.valid.sum())} tokens of "
        f"{allocation.patch}×{allocation.patch}, from {finest:.2f} pixels per sample{where} to {coarsest:.2f}"
    )
