"""Packages that only some uses need: pip installs them by extras."""

from importlib import import_module
from typing import Any


def extra(said: str, name: str, *packages: str) -> Any:
    """The last of the packages of an extra, all of which are imported; said: who needs them, for the error."""
    try:
        return [import_module(package) for package in packages][-1]
    except (ImportError, OSError):  # OSError: without a library of the system
        raise ImportError(f"{said} the extra {name}: pip install 'texturevlm[{name}]'") from None
