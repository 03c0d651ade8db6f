"""Series whose steps may differ: state-space models with a precision at every step, and hidden Markov models with t emissions.

Names are imported when they are first used, so that the command line does not wait for them.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "FittedSeries": "series.result:FittedSeries",
    "Forecast": "series.forecast:Forecast",
    "LocalizedSeries": "series.model:LocalizedSeries",
    "RobustGaussianHMM": "series.hmm:RobustGaussianHMM",
    # A series' result is the one that all models have.
    "SeriesFit": "result.fit:Fit",
}

__all__ = ["FittedSeries", "Forecast", "LocalizedSeries", "RobustGaussianHMM", "SeriesFit"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, found = _HOMES[name].partition(":")
        return getattr(importlib.import_module(f"robustly.{module}"), found)
    raise AttributeError(f"module 'robustly.series' has no attribute {name!r}")
