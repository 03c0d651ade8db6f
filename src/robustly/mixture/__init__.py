"""Robust mixtures: clusters whose rows have scales of their own, so that outliers do not make clusters."""

from robustly.mixture.bayesian import BayesianRobustGaussianMixture
from robustly.mixture.estimator import RobustGaussianMixture

__all__ = ["BayesianRobustGaussianMixture", "RobustGaussianMixture"]
