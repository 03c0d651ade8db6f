"""What do rows with a chance of their own have in common? A beta prior, and one chance for all where rows do not differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from scipy import stats

from robustly.conjugate.base import ClassicalModel, Columns, SciPyLaw, Theta, positive_or_none
from robustly.conjugate.fitting import ConjugatePair
from robustly.conjugate.gammas import beta_evidence
from robustly.errors import ModelError

INF = float("inf")


@dataclass(frozen=True)
class BetaPair(ConjugatePair):
    """Counts whose rows have chances from a Beta(c₁, c₀), told by its mean and its concentration c₁ + c₀."""

    concentration: float | None = None
    mean: float | None = None

    local: ClassVar[str] = "chance"
    support: ClassVar[str] = "count"
    _known: ClassVar[tuple[str, ...]] = ("concentration", "mean")

    def __post_init__(self) -> None:
        positive_or_none(type(self).__name__, concentration=self.concentration)
        if self.mean is not None and not 0 < self.mean < 1:
            raise ModelError(f"{type(self).__name__}(mean={self.mean}): a prior mean of chances lies between 0 and 1.")

    def coordinates(self, columns: Columns) -> dict[str, tuple[Any, tuple[int, ...]]]:
        return {"concentration": (constraints.positive, ()), "mean": (constraints.unit_interval, ())}

    def natural(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return theta["concentration"] * theta["mean"], theta["concentration"] * (1.0 - theta["mean"])

    def strayed(self, theta: Theta, shift: Any, variance: Any) -> Theta:
        mean = theta["mean"]
        moved = jax.nn.sigmoid(jnp.log(mean) - jnp.log1p(-mean) + shift)
        # Log odds vary by about one over concentration times μ(1 − μ).
        return {**theta, "concentration": 1.0 / (moved * (1.0 - moved) * variance), "mean": moved}

    def log_normalizer(self, eta: tuple[Any, ...]) -> Array:
        return gammaln(eta[0]) + gammaln(eta[1]) - gammaln(eta[0] + eta[1])

    def evidence(self, theta: Theta, row: Columns) -> Array:
        return beta_evidence(*self.natural(theta, row), *self.statistic(theta, row)) + self.log_base(theta, row)

    def arguments(self, theta: Theta) -> dict[str, Any]:
        first, second = self.natural(theta, {})
        return {"concentration1": first, "concentration0": second}

    def derived(self, theta: Theta) -> dict[str, Any]:
        return {"concentration": theta["concentration"], "mean": theta["mean"]}

    def law(self, eta: tuple[Any, ...]) -> SciPyLaw:
        return stats.beta(*eta)

    def with_one_chance(
        self,
        chance: float,
        score: float,
        log_prob: Callable[[Theta, Columns], Array],
        law: Callable[[Theta, Columns], SciPyLaw],
        why: str,
        at_edge: bool,
        concentration: float = INF,
        common: Callable[[Theta, Columns], np.ndarray] | None = None,
    ) -> ClassicalModel:
        """The model at an end of the concentration; by default the one in which all rows share the chance."""
        derived = self.derived({"concentration": np.asarray(concentration), "mean": np.asarray(chance)})
        same = lambda values, columns: np.broadcast_to(values["chance"], np.shape(next(iter(columns.values()))))
        return ClassicalModel(
            {"chance": chance}, {"concentration1": concentration, "concentration0": concentration}, score, log_prob, law,
            same if common is None else common, {name: float(value) for name, value in derived.items()}, why,
            ("chance",) if at_edge else (), () if self.mean is None else ("chance",),
        )  # fmt: skip
