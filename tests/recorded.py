"""What was recorded once, as JSON beside the tests, and is compared from then on.

`TEXTUREVLM_RECORD=1 python -m pytest TEST` writes what the tests find instead of comparing it. Use one process, and
look at `git diff`: every difference is a change that somebody wanted.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest


def compare(file: Path, key: str, found: Any, *, like: str | None = None) -> None:
    """Compare `found`, made of JSON's types, with the entry `key` of a file.

    like: what else must be the same for a comparison to mean anything, such as the version of a compiler; where it
          differs, the test is skipped with that reason
    """
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if os.environ.get("TEXTUREVLM_RECORD"):
        known = {**known, key: found, **({"made by": like} if like else {})}
        file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
        return
    if like is not None and known["made by"] != like:
        pytest.skip(f"{file.name} was made by {known['made by']}, and this is {like}")
    assert key in known, f"{file.name} has no {key!r}: {__doc__}"
    assert found == known[key]
