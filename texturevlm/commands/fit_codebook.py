"""texturevlm fit-codebook: fit discrete tokens to a model and the user's own images, and say what they lose."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from texturevlm.commands import arguments
from texturevlm.paths import image_paths

if TYPE_CHECKING:
    from texturevlm.codebook import TokenFeatures
    from texturevlm.placement import TokenConfig
    from texturevlm.vlm import Adapter


def add_fit_codebook(commands: arguments.Commands) -> None:
    help = "fit discrete tokens (uint16 codes) to a model's features of your own images"
    parser = arguments.add_command(commands, "fit-codebook", _fit_codebook, help)
    parser.add_images()
    parser.add_option("--model", "PATH_OR_ID", "a vision-language model: hub id, folder or reader", required=True)
    parser.add_out("FILE.safetensors")
    parser.add_count("--entries", "of each stage, up to 65536", 1024)
    parser.add_count("--stages", "codes that are summed, per group", 4)
    parser.add_count("--groups", "slices of a feature that are coded apart; must divide its width", 16)
    parser.add_argument("--one-book", action="store_true", help="one book for all levels of detail")
    parser.add_tokens("budget", "allocator", "relevance", "balance", budget="tokens per image")
    parser.add_device()


def _fit_codebook(options: argparse.Namespace) -> int:
    arguments.check_out(options.out, ".safetensors", folder=False)
    how = arguments.tokens_of(options)
    paths = image_paths(options.images, options.limit)
    device = arguments.device_of(options)

    from texturevlm.ask import load_vlm
    from texturevlm.check import check_count
    from texturevlm.codebook import fit_codebook, tower_digest
    from texturevlm.codebook.codebook import MOST_ENTRIES
    from texturevlm.codebook.fit import HELD, LEAST_ENTRIES, PER_ENTRY

    check_count("fit-codebook", "--entries", options.entries, LEAST_ENTRIES, MOST_ENTRIES)
    if len(paths) < HELD:
        raise ValueError(f"IMAGES must be at least {HELD}, got {len(paths)}")
    tokens = (len(paths) - len(paths) // HELD) * how.budget  # at most: one image in HELD is measured on
    if tokens < PER_ENTRY * options.entries:
        wanted = f"at least {PER_ENTRY} tokens of IMAGES per entry: more images, a larger --budget or fewer --entries"
        raise ValueError(f"--entries {options.entries} needs {wanted}, got {tokens} of {len(paths)} images")
    with arguments.announced(f"loading {options.model}"):
        adapter = load_vlm(options.model, device=device, captured=False).adapter
    options.out.parent.mkdir(parents=True, exist_ok=True)
    views = _views(adapter, paths, options.skip_bad, how)
    codebook, report = fit_codebook(
        views,
        entries=options.entries,
        stages=options.stages,
        groups=options.groups,
        per_level=not options.one_book,
        model=options.model,
        digest=tower_digest(adapter),
    )
    codebook.save(options.out)
    size = options.out.stat().st_size / 1e6
    print(f"{options.out}: {options.model}, {codebook.token_bytes} bytes per token, {size:.1f} MB")
    print(report)
    return 0


def _views(adapter: "Adapter", paths: Sequence[Path], skip_bad: bool, how: "TokenConfig") -> "Iterator[TokenFeatures]":
    """The features of the tokens that each image gets without a question."""
    from texturevlm.codebook import joined_features, token_features
    from texturevlm.placement import choose_tokens
    from texturevlm.types import Texture
    from texturevlm.vlm import PromptImage

    for image in arguments.read_images(paths, skip_bad=skip_bad):
        texture = Texture.open(image.to(adapter.device)).mipmapped()
        groups = adapter.groups(PromptImage(texture, choose_tokens(texture, how=how, patch=adapter.side)))
        yield joined_features(token_features(adapter, [view for group in groups for view in group]))
