"""Robust generalized linear models: a row's predictor, dispersion or label of its own, with the spread fitted.

The package can be called: ``robustly.glm("y ~ x", data)`` is :func:`robustly.glm.formula.glm`. Names are imported when
they are first used.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from typing import Any

from robustly.errors import ModelError, did_you_mean

_HOMES = {
    "Family": "families",
    "Law": "law",
    "Description": "law",
    "Normal": "families",
    "Poisson": "families",
    "Bernoulli": "families",
    "Binomial": "families",
    "Gamma": "families",
    "Exponential": "families",
    "NegativeBinomial": "families",
    "ZeroInflatedPoisson": "zeros",
    "ZeroInflatedNegativeBinomial": "zeros",
    "HurdlePoisson": "zeros",
    "HurdleNegativeBinomial": "zeros",
    "Tweedie": "zeros",
    "Ordinal": "ordered",
    "RobustLinearRegression": "estimators",
    "RobustPoissonRegression": "estimators",
    "RobustLogisticRegression": "estimators",
    "RobustMultinomialRegression": "multinomial",
    "RobustGLM": "estimators",
    "GLMFit": "result",
    "check_family": "check",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"robustly.glm.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'robustly.glm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Callable(ModuleType):
    """`robustly.glm` is a folder of modules and, for its users, a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from robustly.glm.formula import glm

        known = self.__signature__.parameters
        for name in kwargs:
            if name not in known:
                raise ModelError(
                    f"rb.glm has no argument {name!r}; it takes {', '.join(known)}." + did_you_mean(name, known)
                )
        return glm(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the function, for ``inspect.signature`` and editors."""
        from robustly.glm.formula import glm

        return inspect.signature(glm)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What ``help(robustly.glm)`` shows first: the function."""
        from robustly.glm.formula import glm

        told = (glm.__doc__ or "").split("Example:")[0].rstrip()
        return f"glm{inspect.signature(glm)}\n\n    {told}\n\n{_PACKAGE}"


_PACKAGE = vars(sys.modules[__name__])["__doc__"]
sys.modules[__name__].__class__ = _Callable
