"""What is a model of the corpus? A program as people write it, the site that may differ by row, and small simulated data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A program, what is localized in it, and a call."""

    model: Callable[..., Any]
    site: str | list[str]
    args: tuple[Any, ...]
    tags: frozenset[str] = frozenset()
    """``plate``, ``groups``, ``sizes`` (taken from data), ``outcome`` (ordinal, categorical, zero-inflated, censored, …)."""
    refused: str | None = None
    """Words of the reason, where it is one of principle."""
    options: dict[str, Any] = field(default_factory=dict)
    new: tuple[Any, ...] | None = None
    """A call for predictions; by default the first three rows without the last argument. Empty where none can be made."""

    @property
    def name(self) -> str:
        return self.model.__name__


class Corpus(dict[str, Case]):
    """Cases by the name of their program; ``@corpus.add(site, …)`` over a program adds it."""

    def add(
        self,
        site: str | list[str],
        *args: Any,
        tags: str = "",
        refused: str | None = None,
        new: tuple[Any, ...] | None = None,
        **options: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(model: Callable[..., Any]) -> Callable[..., Any]:
            assert model.__name__ not in self
            self[model.__name__] = Case(model, site, args, frozenset(tags.split()), refused, options, new)
            return model

        return keep


def noise(seed: int, size: int, tails: float = 2.0) -> np.ndarray:
    """Heavy-tailed errors: rows that differ in their precision."""
    return np.random.default_rng(seed).standard_t(tails, size=size)


def spread(seed: int, size: int, scale: float = 1.0) -> np.ndarray:
    """Rows that differ in their level."""
    return scale * np.random.default_rng(seed).normal(size=size)
