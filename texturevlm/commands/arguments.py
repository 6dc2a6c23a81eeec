"""Arguments that several commands share, and their checks, which run before slow work begins."""

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from texturevlm.defaults import ALLOCATOR, BUDGET, PATCH, RELEVANCE, TURN
from texturevlm.paths import is_url

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from texturevlm.placement import TokenConfig
    from texturevlm.types import Texture

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"
AddCommand = Callable[["argparse._SubParsersAction[Parser]"], object]
Run = Callable[[argparse.Namespace], int]
MOST_ERRORS = 5  # pages that are named
BALANCES = ("even", "learned")
SCORER_NAMES = "auto, words, scout, prior, channels, none or embedding:MODEL,PCA"


class Parser(argparse.ArgumentParser):
    """Says what was wrong in one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def add_option(self, name: str, metavar: str | None, help: str, default: Any = None, **more: Any) -> None:
        """An option; its default is said in the help."""
        said = help if default is None else f"{help} (default: {default})".strip()
        self.add_argument(name, metavar=metavar, help=said, default=default, **more)

    def add_count(self, name: str, help: str, default: int | None = None) -> None:
        """An option that takes a whole number from 1."""
        self.add_option(name, "N", help, default, type=count)

    def add_out(self, metavar: str, help: str | None = None) -> None:
        """--out, which must be given."""
        self.add_argument("--out", type=Path, required=True, metavar=metavar, help=help)

    def add_png(self, default: str) -> None:
        self.add_option("--out", "PNG", "", Path(default), type=Path)

    def add_device(self) -> None:
        self.add_option("--device", "D", "cpu, cuda, cuda:1 … (default: cuda if there is one)")

    def add_tokens(self, *names: str, budget: str = "tokens", scorers: str = SCORER_NAMES, model: bool = False) -> None:
        """Options for fields of TokenConfig, or for all that a command line can give; `tokens_of` reads them.

        budget:  what the tokens are for
        scorers: the names that --relevance takes, for the help
        model:   whether the settings of a model come before the package's defaults
        """
        place = f"what finds the answer's place: {scorers}; {RELEVANCE} is scout, or prior (what is usually asked) "
        turned = "angle of the text in degrees, 90 for a page turned clockwise; auto: it is found, patches come upright"
        known: dict[str, tuple[str | None, str, Any, dict[str, Any]]] = {
            "budget": ("N", budget, BUDGET, {"type": count}),
            "allocator": ("NAME", "how tokens are placed", ALLOCATOR, {}),
            "relevance": ("NAME", f"{place}without a question", RELEVANCE, {}),
            "balance": (None, "how far the question is trusted", BALANCES[0], {"choices": BALANCES}),
            "turn": ("A", turned, TURN, {"type": angle_or_auto}),
            "patch": ("P", "side of a token in samples", PATCH, {"type": count}),
        }
        first = "the model's, or " if model else ""
        for name in names or known:
            metavar, help, default, more = known[name]
            self.add_option(f"--{name}", metavar, f"{help} (default: {first}{default})", **more)

    def add_images(self) -> None:
        """IMAGES, --limit and --skip-bad of the commands that learn from the user's images."""
        images = "files, or folders searched for images"
        self.add_argument("images", type=existing_path, nargs="+", metavar="IMAGES", help=images)
        self.add_count("--limit", "use N images, evenly spread (default: all)")
        self.add_argument("--skip-bad", action="store_true", help="report images that cannot be read, and continue")


def add_command(commands: Commands, name: str, run: Run, help: str, **more: Any) -> Parser:
    """The parser of a new command; `run` takes its options and returns the exit status."""
    parser = commands.add_parser(name, help=help, **more)
    parser.set_defaults(run=run)
    return parser


def existing_file(text: str) -> Path:
    """The type of an argument that names a file to read."""
    if is_url(text):
        raise argparse.ArgumentTypeError(f"must be a file on this machine, got the URL {text}; download it first")
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, got the folder {text}")
    if not Path(text).exists():
        raise argparse.ArgumentTypeError(f"no such file: {text}")
    return Path(text)


def existing_path(text: str) -> Path:
    """The type of an argument that names a file or a folder to read."""
    if not is_url(text) and not Path(text).exists():
        raise argparse.ArgumentTypeError(f"no such file or folder: {text}")
    return Path(text) if Path(text).is_dir() else existing_file(text)


def file_or_url(text: str) -> Path | str:
    """The type of an argument that names an image: a file to read, or a URL, which `Texture.open` looks for."""
    return text if is_url(text) else existing_file(text)


def video_or_images(text: str) -> Path | str:
    """The type of an argument that is a file, a folder, a URL or a camera: files and folders must be there."""
    return Path(text) if Path(text).is_dir() else text if text.startswith("camera:") else file_or_url(text)


def typed(wanted: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The type of an argument: what `read` makes of its text; a ValueError becomes one that says what was wanted."""

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}") from None

    return convert


def number_within(low: float, high: float, kind: Callable[[str], Any], text: str) -> Any:
    """A number from `low` to `high`, neither NaN nor infinite."""
    number = kind(text)
    if low <= number <= high and abs(number) < math.inf:
        return number
    raise ValueError


def names(text: str) -> list[str]:
    """The type of an option that takes names A,B,C."""
    return [name.strip() for name in text.split(",") if name.strip()]


_whole = partial(number_within, 1, math.inf, int)
_share = partial(number_within, math.ulp(0.0), 1, float)
_angle = partial(number_within, -math.inf, math.inf, float)
count = typed("a whole number from 1", _whole)
count_or_share = typed(
    "a whole number from 1, or a share above 0 and at most 1.0, such as 0.5",
    lambda text: _share(text) if "." in text else _whole(text),
)
counts = typed("whole numbers N,N from 1", lambda text: [_whole(part) for part in names(text) or [text]])
angle_or_auto = typed("auto or an angle in degrees", lambda text: text if text == "auto" else _angle(text))


def check_out(out: Path, suffix: str, *, folder: bool = True) -> None:
    """A file to write: its name, and its folder, which must exist if `folder`."""
    if out.suffix.lower() != suffix:
        raise ValueError(f"--out must end in {suffix}, got {out}")
    if folder and not out.parent.is_dir():
        raise ValueError(f"--out must be in a folder that exists, got {out}")
    if out.is_dir():
        raise ValueError(f"--out must be a file, got the folder {out}")


def device_of(options: argparse.Namespace) -> "torch.device":
    """The device that --device names, if it works on this machine."""
    import torch

    from texturevlm.channels import torch_device

    return torch_device(options.command, options.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def tokens_of(options: argparse.Namespace, *, own: Sequence[str] = ()) -> "TokenConfig":
    """How tokens are placed, as the options of `Parser.add_tokens` say; what is not given is TokenConfig's default.

    own: relevances that only this command has
    """
    from texturevlm.allocate import ALLOCATORS
    from texturevlm.placement import TokenConfig
    from texturevlm.placement.config import TOKEN_OPTIONS
    from texturevlm.relevance import check_relevance

    how = TokenConfig().given(**{name: getattr(options, name, None) for name in TOKEN_OPTIONS})
    ALLOCATORS.find(options.command, how.allocator, argument="--allocator")
    check_relevance(options.command, how.relevance, own, "--relevance")
    return how


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Say on stderr what goes on and how long it took."""
    start = time.perf_counter()
    print(f"{what} …", file=sys.stderr, flush=True)
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)


def quiet_bars(command: str) -> None:
    """Keep progress bars of transformers off what is no terminal."""
    from texturevlm.channels import optional

    if not sys.stderr.isatty():
        optional(command, "transformers").utils.logging.disable_progress_bar()


def print_pages(*textures: "Texture") -> None:
    """Say on stderr what was read of images that are read by pages, and what could not be read."""
    for texture in textures:
        if texture.pages is not None:
            print(texture.pages, file=sys.stderr)
            for error in texture.pages.counters.errors[:MOST_ERRORS]:
                print(f"note: {error}; coarser data stand in", file=sys.stderr)


def read_images(paths: Sequence[Path], *, skip_bad: bool) -> "Iterator[Tensor]":
    """Images (1, C, H, W), with progress on stderr; skip_bad: report what cannot be read, and continue."""
    from texturevlm.image import to_tensor
    from texturevlm.progress import Progress

    progress = Progress(len(paths), "images")
    for path in paths:
        try:
            image = to_tensor(path)
        except (ValueError, TypeError, OSError) as error:
            if not skip_bad:
                raise ValueError(f"{path}: {error} (--skip-bad continues without it)") from error
            print(f"skipped {path}: {error}", file=sys.stderr, flush=True)
        else:
            yield image
        progress.step()
