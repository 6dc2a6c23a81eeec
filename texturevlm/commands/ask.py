"""texturevlm ask: ask a vision-language model about images, which it reads in a budget of chosen tokens."""

import argparse
import os
import sys
from pathlib import Path

from texturevlm.commands import arguments
from texturevlm.defaults import BUDGET
from texturevlm.paths import is_url


def add_ask(commands: arguments.Commands) -> None:
    usage = "%(prog)s IMAGE [IMAGE …] QUESTION [--model PATH_OR_ID] [options]"
    said = "Prints the answer on stdout, piece by piece, as the model generates it."
    parser = arguments.add_command(
        commands, "ask", _ask, "ask a vision-language model about images", usage=usage, description=said
    )
    # One argument, because argparse gives a second one nothing if an option stands between the images.
    parser.add_argument("inputs", nargs="+", metavar="IMAGE … QUESTION", help="images (files, URLs), then the question")
    models = "a hub id or a folder, of a family in docs/models.md (Qwen-VL, LLaVA …), or reader, which reads print"
    parser.add_option("--model", "PATH_OR_ID", models, "reader")
    shared = "tokens that all images share, unless a texturevlm.json beside the model says otherwise"
    scorers = "auto, words, scout, prior, channels, model, none, or, with --looks 2, attention"
    parser.add_tokens(shared, patch=False, scorers=scorers)
    parser.set_defaults(budget=None)  # so that what lies beside the model can be told from what was typed
    looks = "2: an overview, then where the model's attention went"
    parser.add_option("--looks", None, looks, 1, type=int, choices=(1, 2))
    weighted = "weighted: the model's own full grid, each token weighted by relevance"
    parser.add_option("--tokens", None, weighted, "chosen", choices=("chosen", "weighted"))
    methods = "visionzip, fastv …: tokens leave inside the model, after they were chosen (docs/rivals.md)"
    parser.add_option("--reduce", "M,N", methods, type=arguments.names)
    kept = "tokens that stay, or their share (0.5); default: the budget, and twice as many are chosen"
    parser.add_option("--keep", "N", kept, type=arguments.count_or_share)
    parser.add_device()
    parser.add_option("--dtype", "T", "such as bfloat16 (default: the checkpoint's own)")
    parser.add_count("--max-new-tokens", "of the answer", 256)
    parser.add_option("--out", "PNG", "draw what the model saw, and the answer, too", type=Path)


def _ask(options: argparse.Namespace) -> int:
    images, question = _images_and_question(options.inputs)
    if options.out is not None:
        arguments.check_out(options.out, ".png")
    allocator, relevance = arguments.names_of(options, unusable=("embedding",), own=("model",))
    budget = BUDGET if options.budget is None else options.budget

    import texturevlm as tv
    from texturevlm.ask.choose import check_budget
    from texturevlm.ask.options import check_looks, check_options
    from texturevlm.ask.reduction import sampled_and_kept
    from texturevlm.reduce import steps_of

    check_options("ask", budget, allocator, relevance, options.tokens)
    check_looks("ask", options.looks, relevance, options.tokens)
    check_budget(budget, len(images))
    if options.budget is None:  # what lies beside the model may say another one
        steps_of("ask", options.reduce, 1 if options.keep is None and options.reduce else options.keep)
    else:
        sampled_and_kept("ask", options.reduce, options.keep, budget)
    device = arguments.device_of(options)
    textures = [tv.Texture.open(image) for image in images]  # a bad image is refused before a model is loaded
    _quiet_bars()
    with arguments.announced(f"loading {options.model}"):
        names = ("budget", "allocator", "relevance", "dtype", "tokens", "looks", "reduce", "keep")
        given = {name: getattr(options, name) for name in names}
        # Not captured: that takes longer than one question.
        model = tv.load_vlm(options.model, device=device, captured=False, **given)
    session = model.prepare(textures)
    pages_read = model.relevance != "model" and arguments.reads_pages(model.relevance, question)
    if options.looks == 1 and pages_read:
        with arguments.announced("reading the images by OCR"):
            session.choose(question)
    answer = ""
    for piece in session.ask(question, stream=True, max_new_tokens=options.max_new_tokens):
        answer += piece
        print(piece, end="", flush=True)
    print()
    if options.out is not None:
        session.look(question, answer=answer.strip()).save(options.out)
        print(f"{options.out}: what the model saw", file=sys.stderr)
    return 0


def _images_and_question(inputs: list[str]) -> tuple[list[str | Path], str]:
    *images, question = inputs
    if not images or os.path.isfile(question):
        raise ValueError(f"needs images and then a QUESTION, got {', '.join(inputs)}")
    try:
        return [image if is_url(image) else arguments.existing_file(image) for image in images], question
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"IMAGE: {error}") from None


def _quiet_bars() -> None:
    """Progress bars of transformers belong on a terminal."""
    from texturevlm.channels.pretrained import optional

    if not sys.stderr.isatty():
        optional("ask", "transformers").utils.logging.disable_progress_bar()
