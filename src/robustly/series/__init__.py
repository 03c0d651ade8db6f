"""Series whose steps may differ: state-space models with a precision at every step, and hidden Markov models with t emissions."""

from robustly.series.forecast import Forecast
from robustly.series.hmm import RobustGaussianHMM
from robustly.series.model import LocalizedSeries
from robustly.series.result import SeriesFit

__all__ = ["Forecast", "LocalizedSeries", "RobustGaussianHMM", "SeriesFit"]
