"""How does an estimator state its parameters, and what is left of a fit that does not end?"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

# scikit-learn reads parameters off the signature of __init__ and wants each kept as it came, which is what a dataclass does.
with_parameters = dataclass(kw_only=True, eq=False, repr=False)


def parameters_of(estimator: Any) -> dict[str, Any]:
    """What an estimator was made with."""
    return {one.name: getattr(estimator, one.name) for one in fields(estimator)}


def as_before_if_stopped(fit: F) -> F:
    """A method that leaves its object as it was when it ends with an error or is interrupted."""

    @functools.wraps(fit)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *args, **kwargs)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return run  # type: ignore[return-value]
