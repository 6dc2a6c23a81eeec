"""texturevlm channels: draw a contact sheet of the channels of an image."""

import argparse

from texturevlm.commands.options import Commands, add_device, add_png, check_out, device_of, existing_file


def add_channels(commands: Commands) -> None:
    parser = commands.add_parser("channels", help="draw a contact sheet of the channels of an image")
    parser.add_argument("image", type=existing_file, metavar="IMAGE")
    parser.add_argument("--channels", default="fast", metavar="NAMES", help="mvp, fast, all, or names (default: fast)")
    add_device(parser)
    add_png(parser, "channels.png")
    parser.set_defaults(run=_channels)


def _channels(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.channels import PRESETS, resolve
    from texturevlm.sheet import contact_sheet

    check_out(options.out, ".png")
    preset = options.channels in PRESETS
    wanted = options.channels if preset else [name.strip() for name in options.channels.split(",")]
    resolve(wanted)
    texture = tv.Texture.open(options.image, device=device_of(options))
    sheet, milliseconds = contact_sheet(texture, wanted)
    sheet.save(options.out)
    print(f"{options.out}: {len(milliseconds)} channels, {sum(milliseconds.values()):.0f} ms one by one")
    if preset and (left := len(PRESETS[options.channels]) - len(milliseconds)):
        print(f"{left} channels that need a model are left out")
    return 0
