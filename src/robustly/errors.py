"""What can go wrong, by stage. Every message says what came, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 80


class RobustlyError(ValueError):
    """Any error this package raises on purpose."""


class DataError(RobustlyError):
    """The rows cannot be used: wrong shapes, missing or infinite values, nothing to fit."""


class NotANumberError(DataError, TypeError):
    """A value is not a number at all: a text, a mapping, a list."""


class SupportError(DataError):
    """A value lies where the model gives it no probability."""


class LocalizeError(RobustlyError):
    """A program cannot be localized as asked."""


class ModelError(RobustlyError):
    """A row model, family or prior is not what it has to be."""


class FitError(RobustlyError):
    """The fit could not start or broke down on the way."""


class NotFittedError(RobustlyError, AttributeError):
    """A result was asked of something that has not been fitted yet."""


class PersistError(RobustlyError):
    """A saved result cannot be written or read."""


class ConvergenceWarning(UserWarning):
    """The search stopped before it was sure; the outcome says why."""


class IdentifiabilityWarning(UserWarning):
    """The data cannot tell some of the parameters apart."""


class HeavyTailsWarning(UserWarning):
    """Rows were listed as not belonging that a core with heavy tails would explain about as well."""


class ManyLevelsWarning(UserWarning):
    """A column of words gives hundreds of columns to a formula, one for each word."""


class OverlapWarning(UserWarning):
    """Components of a fit, such as topics, are near copies of one another."""


def names(items: Iterable[str]) -> str:
    """``"a", "b" and "c"`` for messages."""
    quoted = [f'"{item}"' if len(item) <= LONGEST else f'"{item[: LONGEST - 1]}…"' for item in items]
    if not quoted:
        return "none"
    if len(quoted) == 1:
        return quoted[0]
    return ", ".join(quoted[:-1]) + " and " + quoted[-1]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A closing sentence with the nearest known name, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f' Did you mean "{near[0]}"?' if near else ""
