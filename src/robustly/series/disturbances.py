r"""What does a linear state-space model say of its disturbances, step by step, when each step has a scale of its own?

A statsmodels model is

.. math::
    y_t = d_t + Z_t\alpha_t + \varepsilon_t, \quad \varepsilon_t \sim N(0, H_t), \qquad
    \alpha_{t+1} = c_t + T_t\alpha_t + R_t\eta_t, \quad \eta_t \sim N(0, Q_t).

A *site* is a disturbance whose variance is one parameter of the model: ``sigma2.irregular`` is a diagonal entry of H,
``sigma2.level`` one of Q. Here its variance at step t is multiplied by a number of that step's own, and statsmodels'
filter and smoother are run with the time-varying matrices; none of their algebra is written again. The user's model is
copied and stays as it is.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.errors import LocalizeError, ModelError, did_you_mean, names

MATRICES = ("design", "obs_intercept", "obs_cov", "transition", "state_intercept", "selection", "state_cov")


@dataclass(frozen=True)
class Site:
    """A disturbance that gets a precision at every step."""

    name: str
    parameter: int
    """Which of the model's parameters is its variance."""
    matrix: str
    """``obs_cov`` or ``state_cov``."""
    entries: np.ndarray
    """Places on the diagonal of that matrix."""
    active: np.ndarray
    """Steps whose disturbance the data can say something of, (T,): not those of missing values, nor one after the end."""

    @property
    def is_break(self) -> bool:
        """Whether the disturbance moves the state, so that what follows is moved too."""
        return self.matrix == "state_cov"

    @property
    def size(self) -> int:
        """How many numbers share the precision of a step."""
        return len(self.entries)


@dataclass(frozen=True)
class Smoothed:
    """What a smoothing pass says of the sites' disturbances."""

    log_likelihood: float
    square: np.ndarray
    """E[disturbance² | y], summed over the entries of a site, (S, T)."""
    mean: np.ndarray
    """E[disturbance | y] of each site's first entry, (S, T)."""
    score: tuple[np.ndarray, ...]
    """u, the smoothing errors: disturbance means over their variances, (m, T) a site."""
    information: tuple[np.ndarray, ...]
    """D, variances of u, (m, T) a site. u/D estimates the disturbance from all other steps and this one's value, without its
    own law, with variance 1/D (its own variance included)."""


class Disturbances:
    """A copy of a statsmodels model whose disturbances have a variance factor at each step."""

    def __init__(self, model: Any, sites: Sequence[str]) -> None:
        from statsmodels.tsa.statespace.kalman_filter import FILTER_CONCENTRATED

        self.model = copy.deepcopy(model)
        if self.model.ssm.filter_method & FILTER_CONCENTRATED:
            raise LocalizeError(
                "this model has its scale concentrated out, so its disturbances have no variance parameter of their own. "
                "Build it with concentrate_scale=False."
            )
        if getattr(model, "simple_differencing", False):
            raise LocalizeError(
                "this model differences the series before it sees it, so steps would not be those of the series. Build it with "
                "simple_differencing=False."
            )
        self.parameter_names = list(self.model.param_names)
        self.steps = int(self.model.nobs)
        self.sites = tuple(_find_site(self.model, name) for name in sites)
        self.active = np.stack([site.active for site in self.sites]) if self.sites else np.zeros((0, self.steps), bool)
        self._matrices = sorted({site.matrix for site in self.sites})
        # The filter keeps different arrays for the likelihood and for smoothing; one copy each, so that none is remade.
        self._filter, self._smoother = copy.deepcopy(self.model.ssm), copy.deepcopy(self.model.ssm)
        self.burn = int(self.model.ssm.loglikelihood_burn)
        self._filter.loglikelihood_burn = self._smoother.loglikelihood_burn = 0
        self._held: np.ndarray | None = None
        self._base: dict[str, np.ndarray] = {}
        self._burnt = 0.0
        self.passes = 0
        """Smoothing passes so far."""

    @property
    def variances(self) -> np.ndarray:
        """The sites' variances at the parameters last used, (S,)."""
        assert self._held is not None
        return np.array([self._held[site.parameter] for site in self.sites])

    def at(self, params: np.ndarray) -> None:
        """Take the model's matrices at `params` (natural values, in statsmodels' order)."""
        if self._held is not None and np.array_equal(params, self._held):
            return
        self.model.update(np.asarray(params, dtype=float))
        self._held = np.array(params, dtype=float)
        from statsmodels.tsa.statespace.initialization import Initialization

        ssm = self.model.ssm
        # A stationary start has the variance that the disturbances have in the long run, not that of the first step.
        mean, diffuse, stationary = ssm.initialization(model=ssm)
        start = Initialization.from_components(ssm.k_states, a=mean, Pstar=stationary, Pinf=diffuse)
        for copied in (self._filter, self._smoother):
            for name in MATRICES:
                if name not in self._matrices:
                    copied[name] = getattr(ssm, name)
            copied.initialization = start
        self._base = {name: np.array(getattr(ssm, name)) for name in self._matrices}
        # What statsmodels leaves out while an approximately diffuse start settles stays left out, as the plain model has it.
        self._burnt = float(np.sum(ssm.loglikeobs(loglikelihood_burn=0)[: self.burn])) if self.burn else 0.0

    def _set(self, copied: Any, factors: np.ndarray) -> None:
        for name in self._matrices:
            base = self._base[name]
            matrix = np.repeat(base, self.steps, axis=2) if base.shape[2] == 1 else base.copy()
            for site, factor in zip(self.sites, factors):
                if site.matrix == name:
                    matrix[site.entries, site.entries] *= factor
            copied[name] = matrix

    def log_likelihood(self, params: np.ndarray, factors: np.ndarray) -> float:
        """log p(y | variance factors (S, T)): statsmodels' own number where all factors are one."""
        self.at(params)
        self._set(self._filter, factors)
        return float(self._filter.loglike()) - self._burnt

    def by_step(self, params: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """The same, step by step, (T,); steps that statsmodels leaves out are zero."""
        self.at(params)
        self._set(self._filter, factors)
        found = np.array(self._filter.loglikeobs())
        if self.burn:
            found[: self.burn] -= self.model.ssm.loglikeobs(loglikelihood_burn=0)[: self.burn]
        return found

    def smooth(self, params: np.ndarray, factors: np.ndarray) -> Smoothed:
        """Moments of the sites' disturbances under variance factors (S, T)."""
        from statsmodels.tsa.statespace.kalman_smoother import SMOOTHER_DISTURBANCE, SMOOTHER_DISTURBANCE_COV

        self.at(params)
        self._set(self._smoother, factors)
        self.passes += 1
        seen = self._smoother.smooth(
            smoother_output=SMOOTHER_DISTURBANCE | SMOOTHER_DISTURBANCE_COV, update_representation=False
        )
        shape = (len(self.sites), self.steps)
        square, mean = np.empty(shape), np.empty(shape)
        score, information = [], []
        for s, (site, factor) in enumerate(zip(self.sites, factors)):
            kind = "state" if site.is_break else "measurement"
            means = getattr(seen, f"smoothed_{kind}_disturbance")[site.entries]
            spreads = getattr(seen, f"smoothed_{kind}_disturbance_cov")[site.entries, site.entries]
            square[s] = (means**2 + spreads).sum(axis=0)
            mean[s] = means[0]
            prior = self._base[site.matrix][site.entries, site.entries] * factor
            with np.errstate(divide="ignore", invalid="ignore"):
                score.append(np.where(prior > 0, means / prior, 0.0))
                information.append(np.where(prior > 0, np.maximum(prior - spreads, 0.0) / prior**2, 0.0))
        return Smoothed(float(seen.llf_obs.sum()) - self._burnt, square, mean, tuple(score), tuple(information))

    def states(self, params: np.ndarray, factors: np.ndarray) -> Any:
        """statsmodels' results of a full smoothing pass: states, signal, filter."""
        self.at(params)
        self._set(self._smoother, factors)
        return self._smoother.smooth()

    def predictions(self, params: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of every value given those before it, (columns, T)."""
        self.at(params)
        self._set(self._smoother, factors)
        seen = self._smoother.filter()
        return np.array(seen.forecasts), np.array(np.diagonal(seen.forecasts_error_cov, axis1=0, axis2=1).T)

    def ones(self) -> np.ndarray:
        """Factors of the plain Gaussian model."""
        return np.ones((len(self.sites), self.steps))


def free_steps(model: Disturbances, dofs: np.ndarray) -> np.ndarray:
    """Steps with a precision of their own, (S, T): where the data say something, and the site's law is not the normal."""
    return model.active & np.isfinite(dofs)[:, None]


def _find_site(model: Any, name: str) -> Site:
    """The variance parameter called `name`, and the entries of H or Q that it is."""
    known = list(model.param_names)
    tried = [name, f"sigma2.{name}", f"var.{name}"] + (["sigma2"] if name == "innovation" else [])
    found = next((one for one in tried if one in known), None)
    if found is None:
        short = [one.removeprefix("sigma2.").removeprefix("var.") for one in known if _is_variance(model, one)]
        raise LocalizeError(
            f'no disturbance "{name}" in this model; it has {names(short)}.{did_you_mean(name, short)} '
            "A component that does not move has no disturbance: build the model with a stochastic one."
        )
    where = _entries(model, found)
    if isinstance(where, str):
        raise LocalizeError(f'"{name}" cannot be localized: {where}')
    matrix, entries = where
    missing = np.isnan(model.ssm.endog)
    if matrix == "obs_cov":
        active = ~missing[entries].all(axis=0)
    else:
        seen = np.flatnonzero(~missing.all(axis=0))
        # The disturbance of step t moves the state of step t + 1; after the last value nothing is known of it.
        active = np.arange(model.nobs) < (seen[-1] if len(seen) else 0)
    return Site(name, known.index(found), matrix, entries, active)


def _is_variance(model: Any, name: str) -> bool:
    return not isinstance(_entries(model, name), str)


def _entries(model: Any, name: str) -> tuple[str, np.ndarray] | str:
    """Where on the diagonals of H and Q the parameter stands; or why it cannot be given a value at each step."""
    index = list(model.param_names).index(name)
    seen: list[Mapping[str, np.ndarray]] = []
    model = copy.deepcopy(model)
    for value in (1.0, 2.0):
        params = _start_of(model)
        params[index] = value
        try:
            model.update(params)
        except (ValueError, np.linalg.LinAlgError) as error:
            return f"the model does not take {name} = {value} ({error})."
        seen.append({matrix: np.array(getattr(model.ssm, matrix)) for matrix in MATRICES})
    moved = [matrix for matrix in MATRICES if not np.array_equal(seen[0][matrix], seen[1][matrix])]
    if len(moved) != 1 or moved[0] not in ("obs_cov", "state_cov"):
        return f"{name} is not the variance of one disturbance: it enters {names(moved)} of the state space."
    before, after = seen[0][moved[0]], seen[1][moved[0]]
    places = np.argwhere((before != after).any(axis=2))
    if (places[:, 0] != places[:, 1]).any():
        return f"{name} enters covariances between disturbances. Choose a model in which they are independent."
    entries = places[:, 0]
    if not np.allclose(after[entries, entries], 2.0 * before[entries, entries], rtol=1e-9):
        return f"the variance of its disturbance is not proportional to {name}."
    others = before[entries].copy()
    others[np.arange(len(entries)), entries] = 0.0
    if np.any(others):
        return f"its disturbance is correlated with others in {moved[0]}."
    return moved[0], entries


def _start_of(model: Any) -> np.ndarray:
    """statsmodels' own start values."""
    try:
        return np.array(model.start_params, dtype=float)
    except (ValueError, TypeError, IndexError, np.linalg.LinAlgError) as error:
        raise ModelError(
            f"statsmodels finds no start values for this {type(model).__name__} of {np.shape(model.endog)} values ({error}). Check that "
            "model.start_params can be asked for."
        ) from error


def read_start(model: Any, start: Mapping[str, float] | None) -> np.ndarray:
    """Start values by name in statsmodels' order, statsmodels' own where none is given."""
    params = _start_of(model)
    known = list(model.param_names)
    if start is not None and not isinstance(start, Mapping):
        raise ModelError(f"start= is a table of values by name, {{{known[0]!r}: 1.0}}; got {start!r}.")
    for name, value in (start or {}).items():
        if name not in known:
            raise ModelError(f'start= names "{name}"; this model has {names(known)}.{did_you_mean(name, known)}')
        if not isinstance(value, int | float | np.number) or not np.isfinite(value):
            raise ModelError(f'start= gives "{name}" the value {value!r}. Give a finite number.')
        params[known.index(name)] = value
    return params


def clone(model: Any, endog: np.ndarray, exog: np.ndarray | None) -> Any:
    """The same model of another stretch."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.clone(endog, exog=exog) if exog is not None else model.clone(endog)
    except NotImplementedError as error:
        raise ModelError(
            f"{type(model).__name__} cannot be made for a longer series: it has no clone(endog, exog). Add one to the class."
        ) from error
