"""A NumPyro model with localized sites, as a user holds it: fit, compare, predict, sample."""

from robustly.localized.integrated import integrate
from robustly.localized.model import Localized, classical, localize
from robustly.localized.rows import fit_rows

__all__ = ["Localized", "classical", "fit_rows", "integrate", "localize"]
