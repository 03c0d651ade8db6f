"""Robust mixtures: clusters whose rows have scales of their own, so that outliers do not make clusters."""

from robustly.mixture.bayesian import BayesianRobustGaussianMixture
from robustly.mixture.estimator import RobustGaussianMixture
from robustly.mixture.plots import plot_bic, plot_mixture

__all__ = ["BayesianRobustGaussianMixture", "RobustGaussianMixture", "plot_bic", "plot_mixture"]
