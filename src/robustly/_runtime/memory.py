"""Memory that is free again goes back to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from threading import Event
from typing import Any

_compiled = Event()


def may_have_compiled() -> None:
    """To be called where something may be compiled for the first time."""
    _compiled.set()


def give_back() -> None:
    """To be called between compiling and reading many rows: compiling leaves 100 MB and more that C's library would keep.

    Nothing happens where nothing was compiled since the last time: giving back takes time, and so does asking again.
    """
    trim = _trim()
    if trim is not None and _compiled.is_set():
        _compiled.clear()
        trim(0)


@cache
def _trim() -> Any:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None  # not glibc
