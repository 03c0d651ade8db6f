"""When does memory that is free again go back to the system? After compiling; not after every chunk of a pass."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from threading import Event
from typing import Any

_compiled = Event()

# glibc's names for what mallopt sets, and what a process keeps at most for its next chunk, in bytes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT, KEPT_IN_ONE = 1 << 26, 1 << 25


def may_have_compiled() -> None:
    """To be called where something may be compiled for the first time."""
    _compiled.set()


def give_back() -> None:
    """To be called between compiling and reading many rows: compiling leaves 100 MB and more that C's library would keep.

    Nothing happens where nothing was compiled since the last time: giving back takes time, and so does asking again.
    """
    trim = _from_c("malloc_trim")
    if trim is not None and _compiled.is_set():
        _compiled.clear()
        trim(0)


@cache
def keep_for_next_chunk() -> None:
    """To be called on workers: Dask starts them with ``MALLOC_TRIM_THRESHOLD_``, and to ask the system again for every array
    of every chunk takes longer than the arithmetic. Elsewhere glibc finds out by itself."""
    if "MALLOC_TRIM_THRESHOLD_" in os.environ and (choose := _from_c("mallopt")) is not None:
        choose(M_TRIM_THRESHOLD, KEPT)
        choose(M_MMAP_THRESHOLD, KEPT_IN_ONE)


@cache
def _from_c(name: str) -> Any:
    """A function of C's library; None where it is not glibc."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
