"""Fonts: which files on this machine can write plain English, which belong to one family, and their drawn glyphs.

A symbol font also has a glyph for "a", so files are checked by shape: letters must differ from one another and from the
glyph for a missing letter, an "l" must be taller than an "x", a "p" must descend below the line.
"""

import importlib.util
import string
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFont

SYSTEM_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts")
_SIGNS = string.ascii_letters + string.digits + ".,:;-/$%()&#@*+='\"!?"
_MISSING = "\U0010fffd"
THINNEST = 0.035  # mean stroke of "n" in ems: hairlines vanish at the sizes that are printed
TRIAL_SIZE = 64
KEPT_FACES = 768


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
    found = sorted({path for root in folders for path in root.rglob("*") if path.suffix.lower() in (".ttf", ".otf")})
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
        shapes = {sign: bytes(font.getmask(sign)) for sign in _SIGNS + _MISSING}
        extent = {sign: font.getbbox(sign, anchor="ls") for sign in "xlp_"}
    except (OSError, ValueError):
        return False
    x_height, tall, deep = -extent["x"][1], -extent["l"][1], extent["p"][3]
    return (
        all(shapes[sign] != shapes[_MISSING] for sign in _SIGNS)
        and len({shapes[letter] for letter in string.ascii_lowercase}) == 26
        and 0.25 * TRIAL_SIZE < x_height < 0.8 * tall
        and deep > 0.1 * TRIAL_SIZE
        and extent["x"][3] < 0.7 * deep
        and extent["_"][1] >= -0.1 * TRIAL_SIZE  # the fonts of TeX have other signs where others have these
        and sum(shapes["n"]) / 255 / x_height / 2 >= THINNEST * TRIAL_SIZE  # two stems as high as an x
    )


def family_name(path: Path) -> str:
    """The name of the family that a font file says it belongs to."""
    return _names(path)[0] or path.stem


@lru_cache(maxsize=4096)
def _names(path: Path) -> tuple[str | None, str | None]:
    """The names of the family and of the style in a font file."""
    return ImageFont.truetype(path, TRIAL_SIZE).getname()


@lru_cache(maxsize=16)
def families(fonts: tuple[Path, ...]) -> list[FontFamily]:
    """The files grouped into families by the names in them."""
    styles: dict[str, dict[tuple[bool, bool], Path]] = {}
    for path in fonts:
        words = f"{_names(path)[1] or ''} {path.stem}".lower()
        bold = any(word in words for word in ("bold", "demi", "black", "heavy"))
        italic = any(word in words for word in ("italic", "oblique"))
        styles.setdefault(family_name(path), {}).setdefault((bold, italic), path)
    found = []
    for name, files in styles.items():
        font = ImageFont.truetype(next(iter(files.values())), TRIAL_SIZE)
        found.append(FontFamily(name, files, abs(font.getlength("i") - font.getlength("W")) < 1))
    return found


class Glyph(NamedTuple):
    """The ink of one letter (0 none, 255 full), cropped; its offset from the pen; the advance of the pen."""

    ink: NDArray[np.uint8]
    left: int
    top: int
    advance: float


class Face(dict[str, Glyph]):
    """The glyphs of a font file at one size, letters `stretch` times as wide; lengths in pixels of the sheet.

    Each is drawn once: copying one takes about a microsecond, drawing a word anew seventy, and a page holds hundreds.
    """

    def __init__(self, path: Path, size: int, stretch: float = 1.0) -> None:
        self.size, self.stretch = size, stretch
        self._font = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)
        self.x_height, self.space = -self["x"].top, self[" "].advance

    def width(self, text: str) -> float:
        """The advance of a text."""
        return sum([self[sign].advance for sign in text])

    def __missing__(self, sign: str) -> Glyph:
        mask, (left, top) = self._font.getmask2(sign, mode="L", anchor="ls")
        ink = np.frombuffer(bytes(mask), np.uint8).reshape(mask.size[::-1])
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        advance = max(self._font.getlength(sign), 0.18 * self.size if sign == " " else 0) * self.stretch
        glyph = Glyph(np.zeros((1, 1), np.uint8), 0, 0, advance)
        if len(rows):
            tight = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].copy()
            if self.stretch != 1:
                width = max(1, round(tight.shape[1] * self.stretch))
                tight = np.array(Image.fromarray(tight).resize((width, tight.shape[0]), Image.Resampling.BILINEAR))
            glyph = Glyph(tight, round((left + int(columns[0])) * self.stretch), top + int(rows[0]), advance)
        self[sign] = glyph
        return glyph


cached_face = lru_cache(maxsize=KEPT_FACES)(Face)  # per process
