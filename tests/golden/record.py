"""A record: what one case gave, as JSON that can be read and compared.

It is made of three things. *Footprints* are the used slots of an allocation, one line each: centre, ddx and ddy in
pixels. *Numbers* are lines of numbers with the tolerance that they are compared with. Anything else must be equal.
"""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent / "files"
MADE = "made"  # the file that says what the goldens were made with
PIXELS = 0.05  # that the centre and each corner of a footprint may be off
AGREE = 0.97  # share of footprints that must be found on another machine
PROBES, WIDTH = 6, 4096


def footprints(allocation: Any) -> list[Any]:
    """Of each image of an allocation, its footprints."""
    found = []
    for image in range(allocation.batch):
        used = allocation.valid[image]
        columns = [getattr(allocation, name)[image][used].double() for name in ("centre", "ddx", "ddy")]
        rows = np.concatenate([column.cpu().numpy() for column in columns], 1) if used.any() else np.zeros((0, 6))
        lines = [" ".join(short(value, 3 if at < 2 else 4) for at, value in enumerate(row)) for row in rows]
        sizes = {"size": list(allocation.size), "patch": allocation.patch, "slots": allocation.budget}
        found.append({"footprints": lines, **sizes, "agree": AGREE})
        if allocation.source.any():
            found[-1]["frames"] = " ".join(map(str, allocation.source[image][used].tolist()))
    return found


def short(value: float, decimals: int) -> str:
    """A number with at most so many decimals."""
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".")


def numbers(values: Any, tolerance: float, decimals: int = 3) -> dict[str, Any]:
    """Rows of numbers (N, M), one line each."""
    rows = np.atleast_2d(np.asarray(values, np.float64))
    lines = [" ".join(short(value, decimals) for value in row) for row in rows]
    return {"tolerance": tolerance, "lines": lines}


def fingerprint(values: Any, tolerance: float = 1e-4) -> dict[str, Any]:
    """The shape of an array, its mean, its root mean square and its products with six random arrays."""
    array = np.asarray(values, np.float64)
    flat, random = array.ravel(), np.random.default_rng(0)
    rows = np.pad(flat, (0, -flat.size % WIDTH)).reshape(-1, WIDTH)
    products = rows @ random.standard_normal((WIDTH, PROBES)) * random.standard_normal((len(rows), PROBES))
    facts = [flat.mean(), (flat**2).mean() ** 0.5, *products.sum(0) / flat.size**0.5] if flat.size else []
    return {"shape": list(array.shape), **numbers([facts], tolerance, 6)}


def machine() -> dict[str, str]:
    """What decides about the last bits of a float."""
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if line.startswith("model name")] if info.is_file() else []
    cpu = names[0].partition(":")[2].strip() if names else platform.processor()
    packages = ("torch", "numpy", "pillow", "transformers")
    return {"cpu": cpu, **{name: version(name) for name in packages}}


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def read(name: str) -> Any:
    return json.loads(path_of(name).read_text())


def write(name: str, record: Any) -> None:
    path = path_of(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def differences(golden: Any, found: Any, *, here: bool) -> list[str]:
    """What differs, a line each; none if nothing does.

    here: whether this is the machine that made the goldens
    """
    found = json.loads(json.dumps(found))
    chosen = [line for own in _pairs(golden, found, "") for line in _chosen(*own, here=here)]
    if here or not (chosen or _ties(golden, found)):
        chosen += [line for own in _pairs(golden, found, "") for line in _other(*own)]
    return chosen


def _pairs(golden: Any, found: Any, where: str) -> Iterator[tuple[str, Any, Any]]:
    """The parts that stand at the same place, as deep as both have one form."""
    kinds = {type(golden), type(found)}
    if kinds == {dict} and set(golden) == set(found) and not {"footprints", "lines"} & set(golden):
        for name in golden:
            yield from _pairs(golden[name], found[name], f"{where}.{name}".strip("."))
    elif kinds == {list} and len(golden) == len(found):
        for index, both in enumerate(zip(golden, found)):
            yield from _pairs(*both, f"{where}[{index}]")
    else:
        yield where, golden, found


def _has(part: Any, name: str) -> bool:
    return isinstance(part, dict) and name in part


def _chosen(where: str, golden: Any, found: Any, *, here: bool) -> list[str]:
    if not (_has(golden, "footprints") and _has(found, "footprints")):
        return []
    for name in ("size", "patch", "slots"):
        if golden[name] != found[name]:
            return [f"{where}: {name} was {golden[name]}, is {found[name]}"]
    wanted, got = len(golden["footprints"]), len(found["footprints"])
    same, needed = matched(golden, found), 1.0 if here else golden["agree"]
    if same < needed * max(wanted, got):
        return [f"{where}: {same} of {wanted} footprints are found again among {got}"]
    return []


def _ties(golden: Any, found: Any) -> bool:
    """Whether any footprint is another one, within what is allowed."""
    parts = [own for own in _pairs(golden, found, "") if _has(own[1], "footprints")]
    return any(matched(one, other) < len(one["footprints"]) for _, one, other in parts)


def matched(golden: Any, found: Any) -> int:
    """How many footprints of one are those of the other, each at most once, in any order."""
    mine, yours = (corners(own) for own in (golden, found))
    if not len(mine) or not len(yours):
        return 0
    near = np.abs(mine[:, None] - yours[None]).max(-1) <= PIXELS
    count = 0
    for row in near:
        if (free := row.nonzero()[0]).size:
            near[:, free[0]] = False
            count += 1
    return count


def corners(own: Any) -> np.ndarray:
    """(n, 8): the corners of footprints, in pixels."""
    rows = np.array([line.split() for line in own["footprints"]], np.float64).reshape(-1, 6)
    centre, along, down = rows[:, :2], rows[:, 2:4] * own["patch"] / 2, rows[:, 4:] * own["patch"] / 2
    return np.concatenate([centre + x * along + y * down for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))], 1)


def _other(where: str, golden: Any, found: Any) -> list[str]:
    """Differences of numbers, and of what must be equal."""
    if _has(golden, "footprints") and _has(found, "footprints"):
        return [] if golden.get("frames") == found.get("frames") else [f"{where}: footprints are of other frames"]
    if not (_has(golden, "lines") and _has(found, "lines")):
        return [] if golden == found else [f"{where}: was {_short(golden)}, is {_short(found)}"]
    if golden.get("shape") != found.get("shape") or len(golden["lines"]) != len(found["lines"]):
        shapes = [own.get("shape", len(own["lines"])) for own in (golden, found)]
        return [f"{where}: the shape was {shapes[0]}, is {shapes[1]}"]
    rows = [np.array(" ".join(own["lines"]).split(), np.float64) for own in (golden, found)]
    off = np.inf if rows[0].shape != rows[1].shape else np.abs(rows[0] - rows[1]).max(initial=0.0)
    rounding = 1e-6
    if not off <= golden["tolerance"] + rounding:
        return [f"{where}: numbers are off by {off:.3g}, at most {golden['tolerance']} is allowed"]
    return []


def _short(part: Any) -> str:
    text = json.dumps(part, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:160]}…"
