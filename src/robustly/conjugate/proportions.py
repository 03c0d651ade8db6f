"""Successes out of trials, each row with a chance of its own: beta-binomial and its one-trial case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import gammaln, xlog1py, xlogy
from numpy.typing import ArrayLike
from scipy import stats

from robustly.conjugate.base import ClassicalModel, Columns, SciPyLaw, Theta
from robustly.conjugate.chances import BetaPair
from robustly.conjugate.gammas import log_rising
from robustly.conjugate.reading import read_counts, refuse_where
from robustly.result.fit import Fit
from robustly.rows.distinct import Table


@dataclass(frozen=True)
class BetaBinomial(BetaPair):
    r"""Successes with a chance of their own.

    :math:`p_i \sim \mathrm{Beta}(c_1, c_0),\; x_i \sim \mathrm{Binomial}(n_i, p_i)`.

    Integrated, a beta-binomial: litters, batting averages, batches. If rows do not differ, the concentration runs to
    infinity and `fit` returns the binomial and says so. The intra-class correlation is ``fit.rho``,
    :math:`1/(c_1 + c_0 + 1)`.

    Args:
        concentration, mean: fix :math:`c_1 + c_0` or the prior mean of the chance; None fits them.

    Example:
        >>> from robustly.conjugate import BetaBinomial
        >>> fit = BetaBinomial().fit([0, 9, 3, 10, 1, 7], trials=10)
        >>> bool(fit.rho > 0.3)
        True
    """

    def fit(  # type: ignore[override]
        self,
        successes: ArrayLike,
        trials: ArrayLike,
        *,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the prior of the chances.

        Args:
            successes: whole numbers from 0 to `trials`, shape (n,).
            trials: whole numbers from 1, one for all rows or one a row.
            method, weights, hyperprior: ``"direct"`` or ``"em"``; how often each row counts; NumPyro distributions by
                name of a hyperparameter.
        """
        return self._fit_to((successes, trials), method, weights, hyperprior)

    def read(self, successes: ArrayLike, trials: ArrayLike) -> dict[str, np.ndarray]:
        if successes is None:
            return {"trials": read_counts("trials", np.atleast_1d(trials), least=1, what="trials")}
        x = read_counts("successes", successes)
        n = read_counts("trials", trials, rows=len(x), least=1, what="trials")
        bad = np.flatnonzero(x > n)
        if bad.size:
            refuse_where("successes", x, x > n, f"there are only {n[bad[0]]} trials in that row")
        return {"successes": x, "trials": n}

    def statistic(self, theta: Theta, row: Columns) -> tuple[Any, ...]:
        return row["successes"], row["trials"] - row["successes"]

    def log_base(self, theta: Theta, row: Columns) -> Array:
        return _log_choose(row["trials"], row["successes"])

    def derived(self, theta: Theta) -> dict[str, Any]:
        return {**super().derived(theta), "rho": 1.0 / (1.0 + theta["concentration"])}

    def likelihood(self, local: Any, theta: Theta, columns: Columns) -> SciPyLaw:
        return stats.binom(columns["trials"], local)

    def predictive_law(self, theta: Theta, columns: Columns) -> SciPyLaw:
        first, second = self.natural(theta, {})
        return stats.betabinom(np.asarray(columns["trials"]).astype(np.int64), float(first), float(second))

    def raw(self, theta: Theta, columns: Columns) -> np.ndarray:
        return columns["successes"] / columns["trials"]

    def start(self, table: Table) -> dict[str, Any]:
        x, n, w = table.columns["successes"], table.columns["trials"], table.weight
        p = float(w @ x) / float(w @ n) if self.mean is None else self.mean
        p = min(max(p, 1e-6), 1 - 1e-6)
        # E(x − np)² = np(1−p){1 + (n−1)ρ}, solved for ρ over all rows.
        above = float(w @ ((x - n * p) ** 2 - n * p * (1 - p)))
        room = float(w @ (n * (n - 1))) * p * (1 - p)
        rho = above / room if room > 0 else 0.0
        concentration = 1.0 / rho - 1.0 if 1e-6 < rho < 0.98 else 0.02 if rho >= 0.98 else 20.0
        return {"concentration": float(np.clip(concentration, 1e-2, 1e6)), "mean": p}

    def classical(self, table: Table) -> ClassicalModel | None:
        x, n, w = table.columns["successes"], table.columns["trials"], table.weight
        p = float(w @ x) / float(w @ n) if self.mean is None else self.mean
        why, score = "", 0.0
        if p in (0.0, 1.0):
            kind = "no successes" if p == 0.0 else "successes only"
            why = f"all rows have {kind}: no heterogeneity can be seen, and a chance of {p:.0f} is returned."
        elif np.all(n[w > 0] == 1):
            why = (
                "every row has a single trial, which carries no information on heterogeneity: any concentration fits "
                "as well, and the model with one chance is returned. Fix concentration, or group the trials."
            )
        elif np.all((x == 0) | (x == n)):
            return self._all_or_nothing(table)
        else:
            g, h = (x - n * p) / (p * (1 - p)), x / p**2 + (n - x) / (1 - p) ** 2
            score = float(w @ (g**2 - h)) / float(w @ h)
        law = lambda values, columns: stats.binom(columns["trials"].astype(np.int64), float(values["chance"]))
        return self.with_one_chance(p, score, _log_binomial, law, why, at_edge=p in (0.0, 1.0))

    def _all_or_nothing(self, table: Table) -> ClassicalModel:
        """The other end: concentrations of 0, where a row is all successes or none."""
        x, w = table.columns["successes"], table.weight
        share = float(w @ (x > 0)) / table.total if self.mean is None else self.mean
        return self.with_one_chance(
            share,
            0.0,
            lambda values, row: jnp.where(
                row["successes"] > 0, jnp.log(values["chance"]), jnp.log1p(-values["chance"])
            ),
            lambda values, columns: AllOrNothing(columns["trials"], float(values["chance"])),
            "every row is all or nothing: the heterogeneity is as large as it can be, and rows that are all successes "
            "with one chance, else none, are returned.",
            at_edge=False,
            concentration=0.0,
            common=lambda values, columns: columns["successes"] / columns["trials"],
        )


class AllOrNothing:
    """All trials succeed with one chance, else none."""

    def __init__(self, trials: np.ndarray, chance: float) -> None:
        self.trials, self.chance = np.asarray(trials, dtype=float), chance

    def mean(self) -> np.ndarray:
        return self.trials * self.chance

    def std(self) -> np.ndarray:
        return self.trials * np.sqrt(self.chance * (1 - self.chance))

    def ppf(self, level: Any) -> np.ndarray:
        return np.where(level <= 1 - self.chance, 0.0, self.trials)

    def cdf(self, x: ArrayLike) -> np.ndarray:
        return np.where(np.asarray(x) < 0, 0.0, np.where(np.asarray(x) < self.trials, 1 - self.chance, 1.0))

    def sf(self, x: ArrayLike) -> np.ndarray:
        return 1.0 - self.cdf(x)

    def rvs(self, size: Any, random_state: np.random.Generator) -> np.ndarray:
        return np.where(random_state.random(size) < self.chance, self.trials, 0.0)


def _log_choose(n: Array, x: Array) -> Array:
    return log_rising(x + 1.0, n - x) - gammaln(n - x + 1.0)


def _log_binomial(values: Theta, row: Columns) -> Array:
    p, n, x = values["chance"], row["trials"], row["successes"]
    return _log_choose(n, x) + xlogy(x, p) + xlog1py(n - x, -p)


@dataclass(frozen=True)
class BetaBernoulli(BetaBinomial):
    """Outcomes of 0 or 1, each row with a chance of its own.

    One trial a row cannot show how much chances differ: every concentration has the same evidence. So the concentration
    has to be given (or a hyperprior); without it the classical Bernoulli is returned with a note.
    """

    def fit(  # type: ignore[override]
        self,
        outcomes: ArrayLike,
        *,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the prior of the chances to outcomes of 0 or 1; options as in :meth:`BetaBinomial.fit`."""
        return self._fit_to((outcomes,), method, weights, hyperprior)

    def read(self, outcomes: ArrayLike) -> dict[str, np.ndarray]:  # type: ignore[override]
        if outcomes is None:
            return {"trials": np.ones(1, dtype=np.int64)}
        x = read_counts("outcomes", outcomes, what="outcomes")
        refuse_where("outcomes", x, x > 1, "outcomes are 0 or 1", "For several trials a row use BetaBinomial.")
        return {"successes": x, "trials": np.ones(len(x), dtype=np.int64)}
