"""Reversible replacement of one method of one module."""

from __future__ import annotations

import inspect
from typing import Any


class Override:
    """Stands in for a method of one module until `remove`; it can be copied and pickled with the module.

    It shows the signature of what it replaces, because `generate` passes only the arguments that it finds there.
    """

    def __init__(self, module: Any, name: str, method: Any) -> None:
        if not callable(getattr(module, name, None)):
            raise RuntimeError(f"adapt: {type(module).__name__} has no {name} in this version of transformers")
        self.module, self.name, self.method, self.removed = module, name, method, False
        self.before = module.__dict__.get(name)
        self.__signature__ = inspect.signature(getattr(module, name))
        module.__dict__[name] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs) if self.removed else self.method(*args, **kwargs)

    def original(self, *args: Any, **kwargs: Any) -> Any:
        """Call what was replaced."""
        if self.before is not None:
            return self.before(*args, **kwargs)
        kind = type(self.module)
        return inspect.getattr_static(kind, self.name).__get__(self.module, kind)(*args, **kwargs)

    def remove(self) -> None:
        """Put back what was there. If another replacement stands in front, this one only calls what it replaced."""
        self.removed = True
        if self.module.__dict__.get(self.name) is not self:
            return
        before = self.before
        while isinstance(before, Override) and before.removed:
            before = before.before
        if before is None:
            del self.module.__dict__[self.name]
        else:
            self.module.__dict__[self.name] = before
