"""texturevlm channels: a contact sheet of an image's layers."""

import argparse
from pathlib import Path

from texturevlm.commands.options import Commands, check_png


def add_channels(commands: Commands) -> None:
    parser = commands.add_parser("channels", help="draw a contact sheet of an image's layers")
    parser.add_argument("image", type=Path, metavar="IMAGE")
    parser.add_argument("--channels", default="fast", metavar="NAMES", help="mvp, fast, all, or names (default: fast)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="(default: cpu)")
    parser.add_argument("--out", type=Path, default=Path("channels.png"), metavar="PNG", help="(default: channels.png)")
    parser.set_defaults(run=_channels)


def _channels(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.channels import PRESETS
    from texturevlm.channels.pretrained import torch_device
    from texturevlm.sheet import contact_sheet

    check_png(options.out)
    preset = options.channels in PRESETS
    wanted = options.channels if preset else [name.strip() for name in options.channels.split(",")]
    device = torch_device("channels", options.device)
    sheet, milliseconds = contact_sheet(tv.Texture.open(options.image, device=device), wanted)
    sheet.save(options.out)
    print(f"{options.out}: {len(milliseconds)} layers, {sum(milliseconds.values()):.0f} ms one by one")
    if preset and (left := len(PRESETS[options.channels]) - len(milliseconds)):
        print(f"{left} layers that need a model are left out")
    return 0
