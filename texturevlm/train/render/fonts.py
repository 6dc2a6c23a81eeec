"""Fonts: which files on this machine can write plain English, and which of them belong to one family.

A symbol font also has a glyph for "a", so files are checked by shape: letters must differ from one another and from the
glyph for a missing letter, an "l" must be taller than an "x", a "p" must descend below the line.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

_SUFFIXES = (".ttf", ".otf")
SYSTEM_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
_SIGNS = ".,:;-/$%()&#@*+='\"!?"
_MISSING = "\U0010fffd"
THINNEST = 0.035  # mean stroke of "n" in ems: hairlines vanish at the sizes that are printed
TRIAL_SIZE = 64


@dataclass(frozen=True)
class FontFamily:
    """One typeface: its files by (bold, italic), and whether all letters have the same width."""

    name: str
    files: dict[tuple[bool, bool], Path]
    fixed_width: bool

    def file(self, *, bold: bool = False, italic: bool = False) -> Path:
        """The file of a style, or the nearest one."""
        wanted = [(bold, italic), (bold, False), (False, italic), (False, False)]
        return next((self.files[style] for style in wanted if style in self.files), next(iter(self.files.values())))


def find_fonts(folder: str | Path | None = None) -> list[Path]:
    """The usable font files under `folder`, or under the system's font folders, in a fixed order."""
    folders = _system_folders() if folder is None else [Path(folder)]
    found = sorted({path for root in folders for path in root.rglob("*") if path.suffix.lower() in _SUFFIXES})
    usable = [path for path in found if is_usable(path)]
    if not usable:
        looked = ", ".join(map(str, folders)) or "no folder"
        raise ValueError(
            f"find_fonts: folder must hold .ttf or .otf files with Latin letters, got {looked} with {len(found)} fonts "
            "and none of them usable; install some (on Debian: apt-get install fonts-liberation fonts-dejavu)"
        )
    return usable


def _system_folders() -> list[Path]:
    folders = [Path(name).expanduser() for name in SYSTEM_FOLDERS]
    plotting = importlib.util.find_spec("matplotlib")  # ships DejaVu; found without being imported
    if plotting is not None and plotting.origin is not None:
        folders.append(Path(plotting.origin).parent / "mpl-data" / "fonts" / "ttf")
    return [folder for folder in folders if folder.is_dir()]


@lru_cache(maxsize=4096)
def is_usable(path: Path) -> bool:
    """Whether a font file draws the letters, digits and signs of English as such."""
    try:
        font = ImageFont.truetype(path, TRIAL_SIZE, layout_engine=ImageFont.Layout.BASIC)
        shapes = {sign: bytes(font.getmask(sign)) for sign in _LETTERS + _SIGNS + _MISSING}
        extent = {sign: font.getbbox(sign, anchor="ls") for sign in "xlp_"}
    except (OSError, ValueError):
        return False
    if any(shapes[sign] == shapes[_MISSING] for sign in _LETTERS + _SIGNS):
        return False
    if len({shapes[letter] for letter in "abcdefghijklmnopqrstuvwxyz"}) < 26:
        return False
    x_height, tall, deep = -extent["x"][1], -extent["l"][1], extent["p"][3]
    if not (0.25 * TRIAL_SIZE < x_height < 0.8 * tall and deep > 0.1 * TRIAL_SIZE and extent["x"][3] < 0.7 * deep):
        return False
    if extent["_"][1] < -0.1 * TRIAL_SIZE:  # the fonts of TeX keep accents and a pound sign where others keep signs
        return False
    return sum(shapes["n"]) / 255 / x_height / 2 >= THINNEST * TRIAL_SIZE  # two stems as high as an x


@lru_cache(maxsize=16)
def families(fonts: tuple[Path, ...]) -> list[FontFamily]:
    """The files grouped into families by the names in them."""
    styles: dict[str, dict[tuple[bool, bool], Path]] = {}
    for path in fonts:
        family, style = ImageFont.truetype(path, TRIAL_SIZE).getname()
        words = f"{style or ''} {path.stem}".lower()
        bold = any(word in words for word in ("bold", "demi", "black", "heavy"))
        italic = any(word in words for word in ("italic", "oblique"))
        styles.setdefault(family or path.stem, {}).setdefault((bold, italic), path)
    return [FontFamily(name, files, _has_fixed_width(next(iter(files.values())))) for name, files in styles.items()]


def _has_fixed_width(path: Path) -> bool:
    font = ImageFont.truetype(path, TRIAL_SIZE)
    return abs(font.getlength("i") - font.getlength("W")) < 1


def check_fonts(function: str, fonts: Sequence[Path]) -> tuple[Path, ...]:
    """At least one font file."""
    if not fonts:
        raise ValueError(f"{function}: fonts must be at least one font file (find_fonts finds them), got none")
    return tuple(fonts)
