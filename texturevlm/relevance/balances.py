"""Balances by name: `even`, the default, and `learned`, one for each scorer that could be trained.

`texturevlm train examples/train/balance.toml` learns them and `texturevlm ship-balance` writes the file in the package.
Learned are explore and focus, from where the answers of train pages stand. particularise stays 1: it says how fine the
content is, and where an answer stands does not tell that.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from texturevlm.check import check_choice
from texturevlm.relevance.maps import Balance

BALANCES = ("even", "learned")
_SHIPPED = "balances.json"


def find_balance(function: str, balance: str | Balance, scorer: str) -> Balance:
    """The balance that a name stands for, for a scorer; a Balance is returned as it is.

    A scorer that no balance was learned for has the even one.
    """
    if isinstance(balance, Balance):
        return balance
    if not isinstance(balance, str):
        wanted = f"a Balance or one of {', '.join(BALANCES)}"
        raise TypeError(f"{function}: balance must be {wanted}, got {type(balance).__name__}")
    check_choice(function, "balance", balance, BALANCES)
    return load_balances().get(scorer, Balance()) if balance == "learned" else Balance()


@lru_cache(maxsize=4)
def load_balances(path: str | None = None) -> dict[str, Balance]:
    """scorer → its balance: those of the package, or of another file of `texturevlm ship-balance`."""
    source = Path(path) if path is not None else files("texturevlm.relevance").joinpath(_SHIPPED)
    try:
        table = json.loads(source.read_text(encoding="utf-8"))
        return {scorer: Balance(**values) for scorer, values in table.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"balance: {source} must be as ship-balance wrote it: {error}") from error


def save_balances(balances: dict[str, Balance], path: Path) -> None:
    """Write balances of plain numbers as the package holds them."""
    names = ("explore", "focus", "particularise")
    table = {scorer: {name: round(float(getattr(own, name)), 4) for name in names} for scorer, own in balances.items()}
    path.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
