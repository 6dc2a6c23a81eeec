"""The command line: one subcommand a task. A mistake gets one line that says what was wrong, and status 2."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeAlias

from texturevlm.channels.command import add_fit_pca
from texturevlm.evaluate.command import add_eval


class _Parser(argparse.ArgumentParser):
    """Says what was wrong in one line instead of printing how it is used."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _Parser(prog="texturevlm", description="Level of detail for vision-language models.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_doctor(commands)
    _add_look(commands)
    _add_channels(commands)
    add_fit_pca(commands)
    add_eval(commands)
    _add_bench(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"texturevlm {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _add_doctor(commands: Commands) -> None:
    parser = commands.add_parser("doctor", help="versions, GPU, and which backend runs each operation and why")
    parser.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from texturevlm.doctor import report

    print(report())
    return 0


def _add_look(commands: Commands) -> None:
    parser = commands.add_parser("look", help="draw what a model would see of an image")
    parser.add_argument("image", type=Path, metavar="IMAGE")
    parser.add_argument("--fixation", type=_point, metavar="X,Y", help="where to look, in pixels (default: the centre)")
    parser.add_argument("--budget", type=int, default=273, metavar="N", help="tokens (default: 273)")
    parser.add_argument("--patch", type=int, default=16, metavar="P", help="side of a token in pixels (default: 16)")
    parser.add_argument("--e0", type=float, default=0.5, help="eccentricity at which resolution halves (default: 0.5)")
    parser.add_argument("--out", type=Path, default=Path("look.png"), metavar="PNG", help="(default: look.png)")
    parser.set_defaults(run=_look)


def _look(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.draw import look_picture

    _check_png(options.out)
    texture = tv.Texture.open(options.image)
    height, width = texture.size
    fixation = options.fixation or (width / 2, height / 2)
    allocation = tv.foveate(texture.size, fixation=fixation, budget=options.budget, patch=options.patch, e0=options.e0)
    look_picture(texture, allocation, fixation).save(options.out)
    finest, coarsest = (2**level for level in (allocation.level.min().item(), allocation.level.max().item()))
    print(
        f"{options.out}: {width}×{height} seen with {options.budget} tokens of {options.patch}×{options.patch}, "
        f"from {finest:.2f} px a sample at {fixation[0]:g},{fixation[1]:g} to {coarsest:.2f}"
    )
    return 0


def _add_channels(commands: Commands) -> None:
    parser = commands.add_parser("channels", help="draw a contact sheet of an image's layers")
    parser.add_argument("image", type=Path, metavar="IMAGE")
    parser.add_argument("--channels", default="fast", metavar="NAMES", help="mvp, fast, all, or names (default: fast)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="(default: cpu)")
    parser.add_argument("--out", type=Path, default=Path("channels.png"), metavar="PNG", help="(default: channels.png)")
    parser.set_defaults(run=_channels)


def _channels(options: argparse.Namespace) -> int:
    import texturevlm as tv
    from texturevlm.channels import PRESETS
    from texturevlm.sheet import contact_sheet

    _check_png(options.out)
    wanted = options.channels if options.channels in PRESETS else options.channels.split(",")
    sheet, milliseconds = contact_sheet(tv.Texture.open(options.image, device=options.device), wanted)
    sheet.save(options.out)
    print(f"{options.out}: {len(milliseconds)} layers, {sum(milliseconds.values()):.0f} ms one by one")
    return 0


def _check_png(out: Path) -> None:
    """Before any work is done for it."""
    if out.suffix.lower() != ".png":
        raise ValueError(f"--out must end in .png, got {out}")


def _point(text: str) -> tuple[float, float]:
    try:
        x, y = (float(number) for number in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be two numbers X,Y, got {text!r}") from None
    return x, y


def _add_bench(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="speed, beside baselines measured in the same run")
    parser.add_argument("what", choices=["engine", "channels"])
    parser.add_argument("--device", choices=["cpu", "cuda"], help="(default: cuda if there is one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurements here too")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions and no torch.compile: to try it out")
    parser.set_defaults(run=_bench)


def _bench(options: argparse.Namespace) -> int:
    from texturevlm.bench import channels, engine

    bench = {"engine": engine, "channels": channels}[options.what]
    report = bench.run(options.device, quick=options.quick)
    print(report.table())
    if options.json is not None:
        report.save(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
