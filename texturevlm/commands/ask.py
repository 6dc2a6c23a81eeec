"""texturevlm ask: ask a vision-language model about images, a video or a PDF, read in a budget of chosen tokens."""

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from texturevlm.commands import arguments
from texturevlm.defaults import FINE_PAGES, MOST_FINE_PAGES

HOW = ("budget", "allocator", "relevance", "turn", "looks", "tokens", "reduce", "keep")  # options of `load_vlm`


def add_ask(commands: arguments.Commands) -> None:
    usage = "%(prog)s IMAGE [IMAGE …] | VIDEO | PDF  QUESTION [--model PATH_OR_ID] [options]"
    said = (
        "Prints the answer on stdout, piece by piece, as the model generates it. Where --budget, --allocator, "
        "--relevance and --turn are not given, a texturevlm.json beside the model comes before the defaults: the "
        "reader's says 512 tokens by the scout, turned upright by itself."
    )
    help = "ask a vision-language model about images, a video or a PDF"
    parser = arguments.add_command(commands, "ask", _ask, help, usage=usage, description=said)
    given = "images (files, URLs), a PDF, or a video (file, folder of images, camera:0, rtsp://…), then the question"
    # One argument, because argparse gives a second one nothing if an option stands between the images.
    parser.add_argument("inputs", nargs="+", metavar="IMAGE … QUESTION", help=given)
    models = "a hub id or a folder, of a family in docs/models.md (Qwen-VL, LLaVA …), or reader, which reads print"
    parser.add_option("--model", "PATH_OR_ID", models, "reader")
    scorers = "auto, words, scout, prior, channels, embedding:MODEL,PCA, model, none, or, with --looks 2, attention"
    names = ("budget", "allocator", "relevance", "turn")
    parser.add_tokens(*names, budget="tokens that all images share", scorers=scorers, model=True)
    looks = "2: an overview, then where the model's attention went; auto: that only if the model is not sure"
    parser.add_option("--looks", "N", looks, 1, type=arguments.typed("1, 2 or auto", _looks))
    kinds = "weighted: the model's own full grid, each token weighted by relevance; merged: tokens that are too coarse "
    kinds += "to be legible are means of finer ones, in the model's features"
    parser.add_option("--tokens", None, kinds, "chosen", choices=("chosen", "weighted", "merged"))
    methods = "visionzip, fastv …: tokens leave inside the model, after they were chosen (docs/rivals.md)"
    parser.add_option("--reduce", "M,N", methods, type=arguments.names)
    kept = "tokens that stay, or their share (0.5); default: the budget, and twice as many are chosen"
    parser.add_option("--keep", "N", kept, type=arguments.count_or_share)
    parser.add_device()
    parser.add_option("--dtype", "T", "such as bfloat16 (default: the checkpoint's own)")
    parser.add_count("--max-new-tokens", "of the answer", 256)
    parser.add_option("--fps", "N", "of a video: frames per second that are looked at (default: 2)", type=float)
    parser.add_option("--seconds", "N", "of a video: the first N (default: all; 10 of a camera)", type=float)
    parser.add_option("--rate", "N", "of a video: tokens per second, within the budget", type=float)
    fine = "of a PDF: pages that get tokens of their own, at most "
    fine += f"(default: what the model names, else {FINE_PAGES})"
    parser.add_option("--fine-pages", "N", fine, type=arguments.count)
    parser.add_option("--out", "PNG", "draw what the model saw, and the answer, too", type=Path)


def _ask(options: argparse.Namespace) -> int:
    images, question = _images_and_question(options.inputs)
    if options.out is not None:
        arguments.check_out(options.out, ".png")
    tokens = arguments.tokens_of(options, own=("attention", "model"))

    import texturevlm as tv
    from texturevlm.ask import AskConfig, DocumentSession, ImageSession, VideoOptions
    from texturevlm.ask.session import is_video
    from texturevlm.check import check_count
    from texturevlm.pages import is_document, open_pages
    from texturevlm.placement.placement import check_budget
    from texturevlm.video import open_video

    how = {name: getattr(options, name) for name in HOW if getattr(options, name) is not None}
    if options.fine_pages is not None:
        check_count("ask", "--fine-pages", options.fine_pages, 1, MOST_FINE_PAGES)
    # What no model can be asked is refused before one is loaded.
    check_budget(tokens.budget, len(images), "ask")
    usual = AskConfig(tokens).given("ask", {**how, "fine_pages": options.fine_pages})
    asked = usual.for_hooks("ask").check("ask")
    device = arguments.device_of(options)
    video = VideoOptions(options.fps, options.seconds, options.rate).check()
    if len(images) > 1 and (videos := [str(image) for image in images if is_video(image)]):
        raise ValueError(f"a video must stand alone before the question, got {videos[0]} among {len(images)}")
    filmed, document = is_video(images[0]), len(images) == 1 and is_document(images[0])
    if not filmed and (name := next((name for name, value in video._asdict().items() if value is not None), None)):
        raise ValueError(f"--{name} takes a video, got {', '.join(map(str, images))}")
    if options.fine_pages is not None and not document:
        raise ValueError(f"--fine-pages takes a PDF, got {', '.join(map(str, images))}")
    if filmed and asked.looks == 2:
        raise ValueError("--looks must be 1 or auto for a video, got 2")
    if document:
        DocumentSession.check(asked)
    given: Any = images[0] if filmed else open_pages(images[0], function="ask") if document else None
    if filmed:
        open_video(given)  # a bad one is refused before a model is loaded
    elif given is None:
        given = [tv.Texture.open(image) for image in images]
    arguments.quiet_bars("ask")
    with arguments.announced(f"loading {options.model}"):
        # Not captured: that takes longer than one question.
        model = tv.load_vlm(options.model, device=device, dtype=options.dtype, captured=False, **how)
    session = model.prepare(given, **video._asdict())
    for note in getattr(session, "notes", ()):
        print(f"note: {note}", file=sys.stderr)
    own = {} if options.fine_pages is None else {"fine_pages": options.fine_pages}
    answer = ""
    with (
        arguments.announced(f"reading {len(given)} page{'s' if len(given) > 1 else ''}") if document else nullcontext()
    ):
        pieces = session.ask(question, stream=True, max_new_tokens=options.max_new_tokens, **own)
    if document:
        counts = ", ".join(f"{page} ({tokens})" for page, tokens in sorted(session.tokens_by_page.items()))
        print(f"pages seen (tokens of each): {counts}", file=sys.stderr)
    for piece in pieces:
        answer += piece
        print(piece, end="", flush=True)
    print()
    if options.out is not None:
        session.look(question, answer=answer.strip(), **own).save(options.out)
        print(f"{options.out}: what the model saw", file=sys.stderr)
    if isinstance(session, ImageSession):
        arguments.print_pages(*(picture.texture for picture in session.pictures))
    return 0


def _images_and_question(inputs: list[str]) -> tuple[list[str | Path], str]:
    *images, question = inputs
    if not images or os.path.isfile(question):
        raise ValueError(f"needs images and then a QUESTION, got {', '.join(inputs)}")
    try:
        return [arguments.video_or_images(image) for image in images], question
    except argparse.ArgumentTypeError as error:
        hint = "; ask one QUESTION, and put quotes around its words" if os.path.isfile(inputs[0]) else ""
        raise ValueError(f"IMAGE: {error}{hint}") from None


def _looks(text: str) -> int | str:
    return text if text == "auto" else arguments.number_within(1, 2, int, text)
