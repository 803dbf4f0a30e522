"""Warnings that point at the line that can be changed."""

from __future__ import annotations

import sys
import warnings
from typing import Final

_OURS: Final = frozenset((__package__, "torch"))


def warn_user(message: str) -> None:
    """Warns at the innermost line that belongs neither to this package nor to torch.

    How many frames lie between is not known: torch wraps steps in hooks of its own and of others.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _package_of(frame.f_globals) in _OURS:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _package_of(names: dict[str, object]) -> str:
    return str(names.get("__name__")).partition(".")[0]
