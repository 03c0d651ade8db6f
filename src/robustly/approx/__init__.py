"""How is a local value integrated out? One small object for each answer."""

from robustly.approx.base import Approximation
from robustly.approx.exact import Exact
from robustly.approx.gaussian import GaussianVI
from robustly.approx.laplace import Laplace
from robustly.approx.meanfield import MeanField
from robustly.approx.qmc import QMC
from robustly.approx.quadrature import Quadrature
from robustly.approx.two_centre import TwoCentre

__all__ = [
    "QMC",
    "Approximation",
    "Exact",
    "GaussianVI",
    "Laplace",
    "MeanField",
    "Quadrature",
    "TwoCentre",
    "default_approximation",
]


def default_approximation(model) -> Approximation:  # type: ignore[no-untyped-def]
    """Exact when conjugate (or nothing is local), else quadrature up to three dimensions, else quasi-random points."""
    if model.dim == 0 or model.conjugacy is not None or model.closed is not None:
        return Exact()
    if model.dim == 1:
        return Quadrature(21) if model.peak is None else TwoCentre()
    return Quadrature(5) if model.dim <= 3 else QMC(256)
