"""texturevlm channels: draw a contact sheet of the channels of an image."""

import argparse

from texturevlm.commands import arguments


def add_channels(commands: arguments.Commands) -> None:
    help = "draw a contact sheet of the channels of an image"
    parser = arguments.add_command(commands, "channels", _channels, help)
    parser.add_argument("image", type=arguments.existing_file, metavar="IMAGE")
    parser.add_option("--channels", "NAMES", "mvp, fast, all, or names", "fast")
    parser.add_device()
    parser.add_png("channels.png")


def _channels(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.channels import PRESETS, resolve
    from texturevlm.draw import contact_sheet

    arguments.check_out(options.out, ".png")
    preset = options.channels in PRESETS
    wanted = options.channels if preset else [name.strip() for name in options.channels.split(",")]
    resolve(wanted)
    texture = tv.Texture.open(options.image, device=arguments.device_of(options))
    sheet, milliseconds = contact_sheet(texture, wanted)
    sheet.save(options.out)
    print(f"{options.out}: {len(milliseconds)} channels, {sum(milliseconds.values()):.0f} ms one by one")
    if preset and (left := len(PRESETS[options.channels]) - len(milliseconds)):
        print(f"{left} channels that need a model are left out")
    return 0
