"""Every door gives what it gave at 1a62bb3; see the package's docstring for what a wanted difference takes."""

import copy
import json

import pytest

from tests.golden import record
from tests.golden.cases import CASES, NEEDS

HERE = record.machine() == record.read(record.MADE)
LARGEST = 2 << 20  # bytes of all files


@pytest.mark.parametrize("name", CASES)
def test_golden(name):
    for start, packages in NEEDS.items():
        if name == start or name.startswith(f"{start}/"):
            for package in packages:
                pytest.importorskip(package, exc_type=ImportError)
    different = record.differences(record.read(name), CASES[name](), here=HERE)
    assert not different, "\n".join([f"python -m tests.golden.make --only {name}", *different[:20]])


def test_each_file_has_a_case():
    files = {str(path.relative_to(record.FOLDER).with_suffix("")): path for path in record.FOLDER.rglob("*.json")}
    assert set(files) == {*CASES, record.MADE}
    assert sum(path.stat().st_size for path in files.values()) <= LARGEST


def moved(golden, places, by):
    """A golden whose first footprints are moved."""
    found = copy.deepcopy(golden)
    for at in range(places):
        x, *rest = found[0]["footprints"][at].split()
        found[0]["footprints"][at] = " ".join([str(float(x) + by), *rest])
    return found


def test_a_moved_footprint_is_found():
    golden = record.read("choose/half")
    assert record.differences(golden, golden, here=True) == []
    assert record.differences(golden, moved(golden, 64, 0.04), here=True) == []
    for here in (True, False):
        (said,) = record.differences(golden, moved(golden, 9, 0.2), here=here)
        assert said == "[0]: 55 of 64 footprints are found again among 64"
    assert record.differences(golden, moved(golden, 1, 0.2), here=True)
    assert record.differences(golden, moved(golden, 1, 0.2), here=False) == []


def test_numbers_beyond_their_tolerance_are_found():
    golden = record.read("ask/half")
    other = json.loads(json.dumps(golden))
    other["model"]["logits"]["lines"][0] = other["model"]["logits"]["lines"][0].replace(".", ".1", 1)
    assert "model.logits: numbers are off by" in record.differences(golden, other, here=True)[0]
    other = {**golden, "model": {**golden["model"], "ids": ["1 2 3"]}}
    assert record.differences(golden, other, here=True)[0].startswith("model.ids")
