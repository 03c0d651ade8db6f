"""Series whose steps may differ: state-space models with a precision at every step, and hidden Markov models with t emissions.

Names are imported when they are first used, so that the command line does not wait for them.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {"Forecast": "forecast", "LocalizedSeries": "model", "RobustGaussianHMM": "hmm", "SeriesFit": "result"}

__all__ = ["Forecast", "LocalizedSeries", "RobustGaussianHMM", "SeriesFit"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"robustly.series.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'robustly.series' has no attribute {name!r}")
