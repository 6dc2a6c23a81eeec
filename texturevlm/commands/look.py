"""texturevlm look: draw what a model would see of an image, for a question or around a point."""

import argparse
from typing import TYPE_CHECKING

from texturevlm.commands import arguments

if TYPE_CHECKING:
    from texturevlm.placement import Placement
    from texturevlm.types import Allocation, Texture


def add_look(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "look", _look, "draw what a model would see of an image")
    parser.add_argument("image", type=arguments.file_or_url, metavar="IMAGE", help="a file, or the URL of one")
    parser.add_option("--query", "Q", "a question: what matters for it is shown finely")
    parser.add_option(
        "--fixation",
        "X,Y",
        "or a point to look at (default: the centre)",
        type=arguments.typed("two numbers X,Y", _point),
    )
    parser.add_option("--e0", None, "eccentricity that halves the resolution", 0.5, type=float)
    parser.add_argument("--explain", action="store_true", help="with --relevance channels: which channels decided")
    parser.add_tokens()
    parser.add_device()
    parser.add_png("look.png")


def _look(options: argparse.Namespace) -> int:
    arguments.check_out(options.out, ".png")
    if options.explain and options.relevance != "channels":
        raise ValueError(f"--explain needs --relevance channels, got {options.relevance or 'none'}")
    if options.query is None and options.allocator is None and options.relevance is None:
        return _look_at_point(options)
    if options.fixation is not None:
        raise ValueError("--fixation excludes --query, --allocator and --relevance; give one or the others")
    return _look_for_question(options)


def _look_at_point(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.draw import look_picture

    texture = tv.Texture.open(options.image, device=arguments.device_of(options))
    x, y = options.fixation or (texture.size[1] / 2, texture.size[0] / 2)
    how = arguments.tokens_of(options)
    given = {"budget": how.budget, "patch": how.patch, "e0": options.e0}
    allocation = tv.foveate(texture.size, fixation=(x, y), device=texture.device, **given)
    if texture.pages is not None:
        tv.sample(texture, allocation)  # reads the pages that the picture shows
    look_picture(texture, allocation, (x, y)).save(options.out)
    return _report(options, texture, allocation, f" at {x:g},{y:g}")


def _look_for_question(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.draw import draw, stacked
    from texturevlm.draw_terms import terms_picture

    how, question = arguments.tokens_of(options), options.query or ""
    picture = tv.prepare(options.image, how, device=arguments.device_of(options))
    placement = tv.place(picture, question, how)
    if picture.texture.pages is not None:
        tv.sample(picture.texture, placement.allocation)  # reads the pages that the drawing shows
    drawing = draw([placement], question)
    if options.explain:
        drawing = stacked([drawing, terms_picture(_decided(placement, question))])
    drawing.save(options.out)
    return _report(options, picture.texture, placement.allocation)


def _decided(placement: "Placement", question: str) -> dict[str, float]:
    """What each channel added, printed too, the strongest first."""
    from texturevlm.draw_terms import MOST_BARS, decided
    from texturevlm.relevance import ChannelScorer, find_scorer

    memo, scorer = placement.picture.memo, find_scorer("look", "channels", question)
    assert isinstance(scorer, ChannelScorer)  # --explain was checked
    found = decided(scorer.terms(memo.reading(scorer), question, memo.maps), placement.allocation)
    for name, value in list(found.items())[:MOST_BARS]:
        print(f"{value:+.2f} {name}")
    return found


def _point(text: str) -> tuple[float, float]:
    x, y = (float(number) for number in text.split(","))
    return x, y


def _report(options: argparse.Namespace, texture: "Texture", allocation: "Allocation", where: str = "") -> int:
    level = allocation.level[allocation.valid]
    finest, coarsest = 2 ** level.min().item(), 2 ** level.max().item()
    height, width = allocation.size
    # Counted at the texture's finest level: of an image that is read by pages, not all pixels would fit into memory.
    held = texture.levels[0].shape[2], texture.levels[0].shape[3]
    covered = allocation.scaled_to(held).coverage.item()
    print(
        f"{options.out}: {width}×{height} seen with {int(allocation.valid.sum())} tokens of "
        f"{allocation.patch}×{allocation.patch}, from {finest:.2f} pixels per sample{where} to {coarsest:.2f}; "
        f"they cover {covered:.0%} of it"
    )
    arguments.print_pages(texture)
    return 0
