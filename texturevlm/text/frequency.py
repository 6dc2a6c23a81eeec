"""How common words are in questions. A common word hardly helps to find an answer."""

import json
from functools import lru_cache
from importlib.resources import files


@lru_cache(maxsize=1)
def load_commonness() -> dict[str, float]:
    """The commonness of words in questions, 0 to 1; words that are not listed are rare.

    The file is written by `texturevlm fit-words`. Words are as `strings.plain` makes them.
    """
    text = files("texturevlm.text").joinpath("commonness.json").read_text(encoding="utf-8")
    found: dict[str, float] = json.loads(text)
    return found
