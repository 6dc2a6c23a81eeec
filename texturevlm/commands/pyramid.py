"""texturevlm pyramid: write a flat image file as levels of pages, which are read when they are needed."""

import argparse
from pathlib import Path

from texturevlm.commands import arguments


def add_pyramid(commands: arguments.Commands) -> None:
    help = "make a large image file readable by pages (extra large)"
    parser = arguments.add_command(commands, "pyramid", _pyramid, help)
    parser.add_argument("image", type=arguments.existing_file, metavar="FLAT")
    parser.add_option("--out", "TIF", "(default: FLAT.pyramid.tif beside it)", type=Path)
    parser.add_count("--page", "side of a page in pixels", 256)
    parser.add_count("--quality", "of JPEG, 1 to 100", 85)
    parser.add_argument("--lossless", action="store_true", help="pages by Deflate instead of JPEG")


def _pyramid(options: argparse.Namespace) -> int:
    from texturevlm.virtual.build import build_pyramid, pyramid_path

    out = options.out or pyramid_path(options.image)
    if not out.parent.is_dir():
        raise ValueError(f"--out must be in a folder that exists, got {out}")
    with arguments.announced(f"writing {out}"):
        build_pyramid(options.image, out, page=options.page, quality=options.quality, lossless=options.lossless)
    before, after = (path.stat().st_size / 1e6 for path in (options.image, out))
    print(f"{out}: {after:.1f} MB, from {before:.1f} MB")
    return 0
