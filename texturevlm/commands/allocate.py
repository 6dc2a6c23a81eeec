"""texturevlm allocate: write where the tokens of a budget lie, as JSON."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from texturevlm.commands import arguments
from texturevlm.defaults import FINE_PAGES, MOST_FINE_PAGES

if TYPE_CHECKING:
    import torch

    from texturevlm.channels import Segmenter
    from texturevlm.placement import Allocator, TokenConfig

STDOUT = Path("-")


def add_allocate(commands: arguments.Commands) -> None:
    parser = arguments.add_command(commands, "allocate", _allocate, "write where the tokens of a budget lie, as JSON")
    given = "images; with a PDF among them, one budget is spent on all images and pages together"
    parser.add_argument("images", type=arguments.existing_file, nargs="+", metavar="IMAGE", help=given)
    parser.add_option("--query", "Q", "a question: what matters for it is shown finely")
    parser.add_argument("--share", action="store_true", help="the images share one budget, instead of one budget each")
    parser.add_tokens()
    sam = "a SAM model (hub id or folder) whose regions stay whole, for --allocator atlas or cascade"
    parser.add_option("--regions", "PATH_OR_ID", sam)
    fine = "with a PDF: pages that get tokens of their own, at most"
    parser.add_option("--fine-pages", "N", f"{fine} (default: {FINE_PAGES})", type=arguments.count)
    parser.add_device()
    parser.add_option("--json", "FILE", "where to write; - for stdout", "-")


def _allocate(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.pages import is_document

    out, images, how = Path(options.json), options.images, arguments.tokens_of(options)
    if out != STDOUT and (out.is_dir() or not out.parent.is_dir()):
        raise ValueError(f"--json must be a file in a folder that exists, got {out}")
    if options.share and how.budget < len(images):
        raise ValueError(f"--budget must be at least one token per image ({len(images)}), got {how.budget}")
    device = arguments.device_of(options)
    if any(is_document(path) for path in images):
        encoded, counts = _pages(options, how, device)
        return _written(out, how.patch, _listed(encoded), counts)
    if options.fine_pages is not None:
        raise ValueError(f"--fine-pages needs a PDF, got {', '.join(map(str, images))}")
    if options.regions is not None:
        how = replace(how, options={"regions": _segmenter(options.regions, how.allocator, device)})
    textures = [tv.Texture.open(path, device=device) for path in images]
    allocations = tv.choose_tokens(textures, options.query or "", how=how, share=options.share)
    encoded = [allocation.to_json() for allocation in allocations]
    counts = [int(allocation.valid.sum()) for allocation in allocations]
    return _written(out, how.patch, encoded[0] if len(encoded) == 1 else _listed(encoded), counts)


def _listed(encoded: Sequence[str]) -> str:
    return "[" + ",\n".join(encoded) + "]"


def _written(out: Path, patch: int, text: str, counts: Sequence[int]) -> int:
    """Print or write JSON; counts: tokens of each image or page."""
    if out == STDOUT:
        print(text)
        return 0
    out.write_text(text + "\n", encoding="utf-8")
    print(f"{out}: {' + '.join(map(str, counts))} tokens of {patch}×{patch}")
    return 0


def _pages(options: argparse.Namespace, how: "TokenConfig", device: "torch.device") -> tuple[list[str], list[int]]:
    """The pages and images that get tokens, as JSON with files and page numbers, and how many each gets."""
    from texturevlm.check import check_count
    from texturevlm.pages import SharedBudget

    if options.regions is not None:
        raise ValueError(f"--regions takes images, got {options.regions} with a PDF")
    fine = FINE_PAGES if options.fine_pages is None else options.fine_pages
    check_count("allocate", "--fine-pages", fine, 1, MOST_FINE_PAGES)
    with arguments.announced("reading the pages"):
        found = SharedBudget(how=how, fine_pages=fine, device=device).spend(options.images, options.query or "")
    encoded = []
    for unit in found:
        pages = [{"file": str(options.images[source]), "page": page} for source, page in unit.units]
        whole = {"pages": pages, "allocation": json.loads(unit.tokens.placement.given.to_json())}
        encoded.append(json.dumps(whole, allow_nan=False))
    return encoded, [unit.tokens.tokens for unit in found]


def _segmenter(model: str, allocator: "str | Allocator", device: "torch.device") -> "Segmenter":
    """The SAM of --regions, before images are read."""
    from texturevlm.allocate import ALLOCATORS
    from texturevlm.channels import Segmenter

    if "regions" not in getattr(ALLOCATORS.find("allocate", allocator), "options", ()):
        raise ValueError(f"--regions needs an --allocator that keeps regions whole, such as atlas, got {allocator}")
    with arguments.announced(f"loading {model}"):
        return Segmenter.load(model, device=device)
