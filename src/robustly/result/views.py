"""Who draws a fit? What stands further down the line of imports, or beside it, is found by name here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

_HOMES: dict[str, str] = {}


def register(homes: Mapping[str, str]) -> None:
    """Say where views are: ``{"plot_rows": "robustly.report.plots:plot_rows"}``; nothing is imported yet."""
    _HOMES.update(homes)


def view(name: str) -> Callable[..., Any]:
    """The function registered under `name`."""
    module, function = _HOMES[name].split(":")
    return getattr(importlib.import_module(module), function)
