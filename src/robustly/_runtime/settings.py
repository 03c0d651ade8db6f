"""Is a setting a number that can be followed? Checked before any work, with what was expected and what came."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np

from robustly.errors import ModelError


def is_real_number(value: Any) -> bool:
    """A number that a float holds: no truth value, no NaN, no time span (which numpy takes for a whole number)."""
    if not isinstance(value, Real) or isinstance(value, bool | np.timedelta64):
        return False
    try:
        return not np.isnan(float(value))
    except OverflowError:
        return False


def check_real(name: str, value: Any, rule: str, low: float, high: float = np.inf, *, ends: bool = True) -> float:
    """A number from `low` to `high`, which both may be themselves unless `ends` is False; infinite only where `high` is not."""
    fits = is_real_number(value) and (low <= value <= high if ends else low < value < high)
    if not fits or (ends and value == np.inf):
        raise ModelError(f"{name} is {rule}; got {value!r}.")
    return float(value)


def check_yes_or_no(name: str, value: Any) -> bool:
    """True or False, or a number that stands for one of them."""
    if not isinstance(value, bool | np.bool_ | Real):
        raise ModelError(f"{name} is True or False; got {value!r}.")
    return bool(value)


def check_whole(name: str, value: Any, least: int) -> int:
    """A whole number from `least` up."""
    if not isinstance(value, Integral) or isinstance(value, bool | np.timedelta64) or value < least:
        raise ModelError(f"{name} is a whole number of {least} or more; got {value!r}.")
    return int(value)
