"""What lies behind a fitted series: its statsmodels model, for components, marks, forecasts and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaincinv

from robustly.errors import DataError, ModelError
from robustly.result.laws import LEVELS, RowPosterior
from robustly.series.disturbances import Disturbances, clone, free_steps
from robustly.series.forecast import Forecast, NormalMixture
from robustly.series.leaveout import leave_out
from robustly.series.marks import Marks, mark_steps
from robustly.series.sampled import LEAST_EFFECTIVE, Estimate, PrecisionDraws, draw_precisions, estimate

# Chains of marks run on at most this many steps; longer series are cut into windows with margins.
LONGEST_CHAIN, WINDOW, MARGIN = 3000, 2000, 60


@dataclass
class StateSpaceSource:
    """A fitted model, its parameters, and draws of the precisions if there are any."""

    model: Disturbances
    params: np.ndarray
    dofs: np.ndarray
    factors: np.ndarray
    draws: PrecisionDraws | None = None
    sampled: Estimate | None = None

    @classmethod
    def of(cls, fit: Any, model: Any) -> StateSpaceSource:
        """The source of a fit that was read from a file."""
        behind = Disturbances(model, fit.sites)
        params = np.array([
            fit.parameters.get(name, np.nan) for name in behind.parameter_names
        ])  # fmt: skip
        for site in behind.sites:
            params[site.parameter] = fit.parameters[f"{site.name}.scale"] ** 2
        dofs = np.array([fit.hyperparameters[site]["dof"] for site in fit.sites])
        return cls(behind, params, dofs, fit.factors)

    def marks(self, seed: int) -> Marks:
        """Of a long series in stretches that overlap: what is far away says nothing of a mark."""
        length = self.model.steps
        if length <= LONGEST_CHAIN:
            return mark_steps(self.model, self.params, self.factors, seed)
        model = self.model.model
        endog = np.array(model.endog, dtype=float).reshape(length, -1)
        exog = getattr(model, "exog", None)
        parts, owned = [], np.array_split(np.arange(length), -(-length // WINDOW))
        for number, mine in enumerate(owned):
            low, high = max(int(mine[0]) - MARGIN, 0), min(int(mine[-1]) + 1 + MARGIN, length)
            near = clone(model, endog[low:high], None if exog is None else np.asarray(exog)[low:high])
            piece = Disturbances(near, [site.name for site in self.model.sites])
            found = mark_steps(piece, self.params, self.factors[:, low:high], seed + number)
            parts.append((found, slice(int(mine[0]) - low, int(mine[-1]) + 1 - low)))
        share = [len(mine) / length for mine in owned]
        mean = lambda name: sum(w * getattr(found, name) for w, (found, _) in zip(share, parts))
        return Marks(
            np.concatenate([found.probability[:, part] for found, part in parts], axis=1),
            np.concatenate([found.error[:, part] for found, part in parts], axis=1),
            mean("core"), mean("width"), mean("share"),
            {move: sum(w * found.accepted[move] for w, (found, _) in zip(share, parts)) for move in parts[0][0].accepted},
            np.concatenate([found.drawn[:, :, part] for found, part in parts], axis=2),
        )  # fmt: skip

    def precisions(self, site: int) -> RowPosterior:
        """What is believed of every step's precision, the states integrated out and other steps at their fitted place."""
        left = leave_out(self.model, self.params, self.dofs, self.factors, max_rounds=1, keep=True)
        tilted = left.tilted
        grid = np.exp(tilted.low[site][:, None] + tilted.step[site][:, None] * np.arange(tilted.log_density.shape[2]))
        share = np.exp(tilted.log_density[site] - tilted.log_density[site].max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        mean = (share * grid).sum(axis=1)
        sd = np.sqrt(np.maximum((share * (grid - mean[:, None]) ** 2).sum(axis=1), 0.0))
        # The middle of a point's share lies at the point.
        below = np.cumsum(share, axis=1) - 0.5 * share
        quantile = np.stack([np.interp(LEVELS, *pair) for pair in zip(below, grid)])
        return RowPosterior(mean, sd, LEVELS, quantile)

    def past(self, number: int, random: np.random.Generator) -> np.ndarray:
        """Draws of the past variance factors given the series, (number, S, T)."""
        if self.draws is not None and self.sampled is not None:
            chosen = random.choice(len(self.draws.logs), number, p=self.sampled.weights)
            return np.exp(-self.draws.logs[chosen])
        return draw_past(self.model, self.params, self.dofs, self.factors, number, random)

    def forecast(self, steps: int, exog: Any, draws: int, seed: int, column: int) -> Forecast:
        model = self.model.model
        random = np.random.default_rng(seed)
        columns = model.k_endog
        if not 0 <= column < columns:
            raise ModelError(f"column is one of 0 to {columns - 1}; got {column}.")
        endog = np.concatenate(
            [np.array(model.endog, dtype=float).reshape(-1, columns), np.full((steps, columns), np.nan)]
        )
        longer = Disturbances(
            clone(model, endog, _longer(model, exog, steps)), [site.name for site in self.model.sites]
        )
        past, length = self.past(draws, random), self.model.steps
        means, sds = np.empty((draws, steps)), np.empty((draws, steps))
        for n in range(draws):
            factors = np.ones((len(self.dofs), longer.steps))
            factors[:, :length] = past[n]
            ahead = ~self.model.active
            new = _prior_factors(self.dofs, longer.steps, random)
            factors[:, :length][ahead] = new[:, :length][ahead]
            factors[:, length:] = new[:, length:]
            mean, variance = longer.predictions(self.params, factors)
            means[n], sds[n] = mean[column, length:], np.sqrt(variance[column, length:])
        return Forecast(NormalMixture(means, sds), _labels_after(model, steps))

    def log_scores(self, first: int, draws: int, seed: int) -> np.ndarray:
        """For each step: refit the precisions of the past alone, draw them, and ask the value of what follows."""
        model = self.model.model
        if model.k_endog != 1:
            raise ModelError(f"log_scores is for a single series; this model has {model.k_endog}.")
        random = np.random.default_rng(seed)
        endog = np.array(model.endog, dtype=float).reshape(-1)
        own = next((s for s, site in enumerate(self.model.sites) if not site.is_break), None)
        # The step's own noise is integrated over a fixed set of quantiles of its law, not drawn.
        noise = np.ones((1, 1))
        if own is not None and np.isfinite(self.dofs[own]):
            half = 0.5 * self.dofs[own]
            noise = half / gammaincinv(half, (np.arange(200) + 0.5) / 200)[:, None]
        found = np.full(len(endog) - first, np.nan)
        for t in range(first, len(endog)):
            if np.isnan(endog[t]):
                continue
            known = np.where(np.arange(len(endog)) < t, endog, np.nan)[: t + 1]
            exog = None if getattr(model, "exog", None) is None else np.asarray(model.exog)[: t + 1]
            short = Disturbances(clone(model, known, exog), [site.name for site in self.model.sites])
            past = draw_past(short, self.params, self.dofs, None, draws, random)
            means, variances = np.empty(draws), np.empty(draws)
            for n in range(draws):
                factors = np.where(short.active, past[n], _prior_factors(self.dofs, t + 1, random))
                if own is not None:
                    factors[own, t] = 1.0
                mean, variance = short.predictions(self.params, factors)
                means[n], variances[n] = mean[0, t], variance[0, t]
            usual = self.params[self.model.sites[own].parameter] if own is not None else 0.0
            spread = np.sqrt(np.maximum(variances - usual, 0.0) + usual * noise)
            law = NormalMixture(np.broadcast_to(means, spread.shape).reshape(-1, 1), spread.reshape(-1, 1))
            found[t - first] = law.log_prob(np.array([endog[t]]))[0]
        return found


def draw_past(
    model: Disturbances,
    params: np.ndarray,
    dofs: np.ndarray,
    factors: np.ndarray | None,
    number: int,
    random: np.random.Generator,
) -> np.ndarray:
    """Variance factors given the series: importance draws resampled, or, where too few would count, the leave-one-out laws."""
    left = leave_out(model, params, dofs, factors, keep=True)
    draws = draw_precisions(left, free_steps(model, dofs), number, random)
    found = estimate(model, params, dofs, draws)
    if found.effective >= LEAST_EFFECTIVE:
        chosen = random.choice(number, number, p=found.weights)
        return np.exp(-draws.logs[chosen])
    return draws.factors


def _prior_factors(dofs: np.ndarray, steps: int, random: np.random.Generator) -> np.ndarray:
    """New variance factors from the fitted laws, (S, steps)."""
    found = np.ones((len(dofs), steps))
    for s, nu in enumerate(dofs):
        if np.isfinite(nu):
            found[s] = nu / np.maximum(random.chisquare(nu, steps), 1e-300)
    return np.minimum(found, 1e12)


def _longer(model: Any, exog: Any, steps: int) -> np.ndarray | None:
    """The regressors with those of the new steps behind them."""
    old = getattr(model, "exog", None)
    if old is None:
        if exog is not None:
            raise DataError("exog came, but the model has no regressors. Leave it out.")
        return None
    old = np.asarray(old, dtype=float).reshape(int(model.nobs), -1)
    if exog is None:
        raise DataError(
            f"the model has {old.shape[1]} regressors; give their {steps} new rows: forecast(steps, exog=...)."
        )
    new = (
        np.asarray(exog, dtype=float).reshape(-1, old.shape[1])
        if np.size(exog) % old.shape[1] == 0
        else np.zeros((0, 1))
    )
    if new.shape != (steps, old.shape[1]) or not np.isfinite(new).all():
        raise DataError(
            f"exog has {steps} rows and {old.shape[1]} columns of finite numbers here; got shape {np.shape(exog)}."
        )
    return np.concatenate([old, new])


def _labels_after(model: Any, steps: int) -> list[str]:
    """What the steps after the end are called, where the index says so."""
    import pandas as pd

    index = getattr(model, "_index", None)
    length = int(model.nobs)
    if isinstance(index, pd.PeriodIndex) or (isinstance(index, pd.DatetimeIndex) and index.freq is not None):
        return [str(index[-1] + (h + 1) * index.freq) for h in range(steps)]
    return [str(length + h) for h in range(steps)]


def components_of(
    model: Disturbances, params: np.ndarray, factors: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Smoothed components and the signal: mean and standard deviation by step."""
    from statsmodels.tsa.statespace.structural import UnobservedComponents, UnobservedComponentsResults

    seen = model.states(params, factors)
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    if isinstance(model.model, UnobservedComponents):
        told = UnobservedComponentsResults(model.model, params, seen, cov_type="none")
        for name in ("level", "trend", "seasonal", "cycle", "autoregressive"):
            part = getattr(told, name)
            if part is not None:
                found[name] = _joined_pair(part.smoothed, part.smoothed_cov)
        for part in told.freq_seasonal or []:
            found[part["pretty_name"]] = _joined_pair(part["smoothed"], part["smoothed_cov"])
    else:
        for i, name in enumerate(model.model.state_names):
            found[str(name)] = _joined_pair(seen.smoothed_state[i], seen.smoothed_state_cov[i, i])
    design = np.broadcast_to(seen.design, (*seen.design.shape[:2], model.steps))[0]
    shift = np.broadcast_to(seen.obs_intercept, (seen.obs_intercept.shape[0], model.steps))[0]
    mean = shift + np.einsum("it,it->t", design, seen.smoothed_state)
    spread = np.einsum("it,ijt,jt->t", design, seen.smoothed_state_cov, design)
    return {"signal": _joined_pair(mean, spread), **found}


def _joined_pair(mean: Any, variance: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.array(mean, dtype=float), np.sqrt(np.maximum(np.array(variance, dtype=float), 0.0))
