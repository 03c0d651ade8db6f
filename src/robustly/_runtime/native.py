"""Loops compiled to machine code, kept on disk where there is a folder for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``numba.njit`` that keeps its machine code on disk where it may, and in memory where it may not."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(nogil=True, error_model="numpy", cache=True, **options)(function)
        except RuntimeError:  # no folder to keep the code in
            return numba.njit(nogil=True, error_model="numpy", **options)(function)

    return decorate
