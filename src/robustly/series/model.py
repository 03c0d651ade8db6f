"""A statsmodels state-space model with localized disturbances, as a user holds it: ``rb.localize(model, "irregular")``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robustly.errors import DataError, LocalizeError, ModelError, did_you_mean, names
from robustly.fit.outcome import Outcome, warn_unless_converged
from robustly.result.fit import Fit
from robustly.rows.labels import as_floats
from robustly.series import meanfield, search
from robustly.series.disturbances import Disturbances, free_steps, read_start
from robustly.series.meanfield import LARGEST_DOF
from robustly.series.result import FittedSeries, series_fit
from robustly.series.source import StateSpaceSource, components_of
from robustly.series.space import Best, Space

METHODS = ("sampled", "leave-one-out", "bound", "em")
# More degrees of freedom than this are the normal.
NEARLY_NORMAL = 0.6 * LARGEST_DOF
DRAWS = 200
# Beyond this shape of their tail, weights do not tell their own error (Vehtari et al. 2024).
MOST_SHAPE = 0.7
HOW = {
    "sampled": "importance sampling of the precisions",
    "leave-one-out": "leaving one step out at a time",
    "bound": "structured mean field",
    "gaussian": "nothing to integrate: all disturbances are normal",
}


class LocalizedSeries:
    """A state-space model in which steps have precisions of their own, ready to be fitted. Made by ``rb.localize``."""

    def __init__(self, model: Any, sites: Sequence[str], fixed: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        if len(set(sites)) != len(sites):
            raise LocalizeError(f"each disturbance is named once; got {names(sites)}.")
        check_series(model)
        self.disturbances = Disturbances(model, sites)
        self.held: dict[int, float] = {}
        for site, given in (fixed or {}).items():
            for word, value in given.items():
                if word != "dof":
                    raise LocalizeError(
                        f'fixed= holds "dof" of a disturbance; got "{word}".{did_you_mean(word, ["dof"])}'
                    )
                if not isinstance(value, int | float | np.number) or not value > 0:
                    raise LocalizeError(f"dof is a positive number; got {value!r}.")
                self.held[list(sites).index(site)] = float(value)

    def __repr__(self) -> str:
        sites = [site.name for site in self.disturbances.sites]
        return f"<{type(self.disturbances.model).__name__} of {self.disturbances.steps} steps, localized in {names(sites)}>"

    def fit(
        self,
        method: str = "sampled",
        *,
        start: Mapping[str, float] | None = None,
        draws: int = DRAWS,
        seed: int = 0,
        max_steps: int = 100,
        rtol: float = 1e-8,
    ) -> Fit:
        r"""Fit the law of the precisions and the model's own parameters.

        ``"sampled"`` maximises the evidence by importance sampling of the precisions, from the leave-one-out estimate on; where
        fewer than 20 of the draws would count (long series, breaks that several steps may carry), the leave-one-out estimate
        stands, and a note says so. ``"leave-one-out"`` stops there. ``"bound"`` maximises the structured mean-field bound,
        ``"em"`` climbs the same bound by variational EM; both favour light tails.

        Args:
            start: statsmodels' parameters by name, natural values.
            draws: of the precisions, while searching; the evidence at the end takes 1000 fresh ones.
            seed: of the draws, and of the chain behind outliers and breaks.
            max_steps: most steps of the search.
            rtol: relative change of the bound that ends ``"em"``.
        """
        if not isinstance(method, str):
            raise ModelError(
                f"fit takes a method, one of {names(METHODS)}; got a {type(method).__name__}. The series is in the model already."
            )
        if method not in METHODS:
            raise ModelError(f'no method "{method}"; there are {names(METHODS)}.{did_you_mean(method, METHODS)}')
        for word, value, least in (("draws", draws, 50), ("max_steps", max_steps, 1), ("seed", seed, 0)):
            if not isinstance(value, int | np.integer) or value < least:
                raise ModelError(f"{word} is a whole number of {least} or more; got {value!r}.")
        model = self.disturbances
        plain, likelihood = search.gaussian(model, read_start(model.model, start))
        held = dict(self.held)
        while True:
            space = Space(model, held)
            best = self._search(space, plain, likelihood, method, draws, seed, max_steps, rtol)
            dofs = space.split(best.vector)[1]
            light = [s for s in space.fitted if dofs[s] >= NEARLY_NORMAL]
            if not light:
                break
            held |= dict.fromkeys(light, np.inf)
        fit = _result(space, best, plain, likelihood, seed, [s for s in held if s not in self.held])
        warn_unless_converged(fit.outcome)
        return fit

    def _search(self, space: Space, plain: np.ndarray, likelihood: float, method: str, draws: int, seed: int,
                max_steps: int, rtol: float) -> Best:  # fmt: skip
        if all(np.isinf(space.held.get(s, 1.0)) for s in range(len(self.disturbances.sites))):
            return search.at_gaussian(space, plain, likelihood)
        if method == "bound":
            return search.by_bound(space, plain, max_steps)
        if method == "em":
            return search.em_of_bound(space, plain, likelihood, max_steps, rtol)
        if self.disturbances.steps > 2 * search.STRETCH:
            # Importance weights of so many steps are worth nothing; see docs/series.md.
            return search.by_stretch(space, plain, max_steps)
        best = search.by_leaving_out(space, plain, max_steps)
        return search.by_sampling(space, best, draws, seed) if method == "sampled" else best


def _result(space: Space, best: Best, plain: np.ndarray, likelihood: float, seed: int, limit: list[int]) -> Fit:
    model = space.model
    params, dofs = space.split(best.vector)
    labels, scales = _parameter_labels(space)
    flat = natural(space, best.vector)
    assert best.left is not None
    found = meanfield.find_locals(model, params, dofs)
    pieces = model.by_step(params, 1.0 / found.locals.mean) + meanfield.penalty(model, dofs, found.locals).sum(axis=0)
    sampled = best.sampled
    outcome, notes = _told_search(model, best, dofs, likelihood, limit)
    endog = np.array(model.model.endog, dtype=float)
    values = endog.reshape(len(endog), -1)
    told = FittedSeries(
        sites=[site.name for site in model.sites],
        break_sites=[site.is_break for site in model.sites],
        held={model.sites[s].name: value for s, value in space.held.items()},
        log_likelihood_error=float(np.hypot(sampled.error, best.lost))
        if sampled
        else 0.0
        if best.kind in ("bound", "gaussian")
        else float("nan"),
        effective_draws=sampled.effective if sampled else 0.0,
        bound=found.bound,
        classical_log_likelihood=likelihood,
        classical_parameters=dict(zip(model.parameter_names, plain.tolist())),
        observed=~np.isnan(values).all(axis=1),
        series=values,
        steps=step_names(model.model),
        weights=np.where(free_steps(model, dofs), best.left.tilted.mean, 1.0),
        factors=best.left.factors,
        smoothed=components_of(model, params, best.left.factors),
        seed=seed,
        behind=StateSpaceSource(model, params, dofs, best.left.factors, best.draws, sampled),
    )
    return series_fit(
        told,
        parameters=dict(zip(labels, flat.tolist())),
        labels=labels,
        vector=best.vector,
        jacobian=_natural_slopes(space, best.vector),
        curve=best.curve,
        objective=best.value,
        evidence_by_row=pieces,
        weight=told.observed.astype(float),
        outcome=outcome,
        approximation=HOW[best.kind],
        is_bound=best.kind == "bound",
        notes=tuple(notes),
        limits={model.sites[s].name: {"dof": float("inf")} for s in limit},
        scales=scales,
        history=list(best.history),
    )


def _parameter_labels(space: Space) -> tuple[list[str], list[str]]:
    model = space.model
    labels = [f"{model.sites[s].name}.dof" for s in space.fitted]
    own = {site.parameter: site.name for site in model.sites}
    scales = ["log"] * len(labels)
    for i, name in enumerate(model.parameter_names):
        labels.append(f"{own[i]}.scale" if i in own else name)
        scales.append("variance" if i in own or name.startswith(("sigma2", "var.")) else "real")
    return labels, scales


def natural(space: Space, vector: np.ndarray) -> np.ndarray:
    """Fitted degrees of freedom, then the model's parameters, with standard deviations for localized variances."""
    params, dofs = space.split(vector)
    values = params.copy()
    for site in space.model.sites:
        values[site.parameter] = np.sqrt(max(params[site.parameter], 0.0))
    return np.concatenate([dofs[space.fitted], values])


def _natural_slopes(space: Space, vector: np.ndarray, step: float = 1e-5) -> np.ndarray:
    shifts = step * np.eye(len(vector))
    return np.stack(
        [(natural(space, vector + one) - natural(space, vector - one)) / (2 * step) for one in shifts], axis=1
    )


def _told_search(
    model: Disturbances, best: Best, dofs: np.ndarray, likelihood: float, limit: list[int]
) -> tuple[Outcome, list[str]]:
    outcome, notes = best.outcome, []
    if limit:
        which = names(model.sites[s].name for s in limit)
        text = f"the disturbances of {which} are normal: the plain model is the answer there."
        outcome = Outcome("boundary", text, outcome.steps) if outcome.converged else outcome
    gain = best.value - likelihood
    if best.kind in ("sampled", "leave-one-out") and gain < 1.0:
        notes.append(f"almost classical: heavier tails gain {gain:.2f} nats over the plain model's {likelihood:.3f}.")
    if best.kind == "leave-one-out" and best.tried_sampling:
        notes.append(
            f"fewer than 20 importance draws would count here ({best.effective:.1f} did), so the log likelihood is the "
            "leave-one-out approximation; its error is not known."
        )
    if best.sampled is not None and best.sampled.tail_shape > MOST_SHAPE:
        notes.append(
            f"a few importance draws carry the log likelihood (Pareto k {best.sampled.tail_shape:.2f}): its error may be larger than "
            "told. Compare seeds, or take more draws."
        )
    if best.kind == "bound":
        notes.append("the log likelihood is a lower bound; it favours light tails.")
    for site in model.sites:
        params = model.variances
        if params[model.sites.index(site)] <= 1e-8 * max(params.max(), 1e-300):
            notes.append(
                f'the core of "{site.name}" does not move: its scale is zero, and what moves it are single steps.'
            )
    return outcome, notes


def step_names(model: Any) -> np.ndarray:
    """Steps by the series' own index, or by number."""
    index = getattr(model.data, "row_labels", None)
    return np.array([str(one) for one in (range(int(model.nobs)) if index is None else index)])


# Squares of variances are taken.
MOST = 1e70


def check_series(model: Any) -> None:
    """Raise a DataError for a series that says nothing, or whose steps are not evenly spaced."""
    if np.asarray(model.endog).dtype.kind not in "fiub":
        as_floats(model.endog, "the series")  # names the step that holds no number
        raise DataError(
            "the series is a column of objects. Make numbers of it before building the model: astype(float)."
        )
    if not np.size(model.endog):
        raise DataError("the series has no steps. Check which column was read.")
    values = np.asarray(model.endog, dtype=float).reshape(int(model.nobs), -1)
    seen = ~np.isnan(values)
    infinite = np.argwhere(np.isinf(values))
    if len(infinite):
        raise DataError(f"step {infinite[0][0]} of the series holds an infinite value. Mark it as missing (NaN).")
    huge = np.argwhere(np.abs(values) > MOST)
    if len(huge):
        raise DataError(
            f"step {huge[0][0]} of the series holds {values[tuple(huge[0])]:g}, whose fourth power is beyond what a computer's numbers can "
            "hold. Divide the series by a common scale."
        )
    if not seen.any():
        raise DataError(f"all {len(values)} steps of the series are missing. Check which column was read.")
    least = len(model.param_names) + int(model.k_states) + 2
    if seen.any(axis=1).sum() < least:
        raise DataError(
            f"{int(seen.any(axis=1).sum())} steps have a value; this model with {len(model.param_names)} parameters and "
            f"{int(model.k_states)} states needs {least} or more. Take a longer series or a simpler model."
        )
    spread = np.array([np.ptp(column[~np.isnan(column)]) if (~np.isnan(column)).any() else 0.0 for column in values.T])
    if (spread == 0).any():
        held = values[:, int(np.argmin(spread))]
        raise DataError(
            f"the series is constant ({held[~np.isnan(held)][0]:g} at every step): nothing varies that could be fitted."
        )
    check_spacing(getattr(model.data, "row_labels", None))


def calendar_of(index: Any) -> Any:
    """The frequency of dates that follow a calendar (months, quarters, working days), or None."""
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the answer will be of another type one day; both will do
        return pd.infer_freq(index) if len(index) > 2 else None


def check_spacing(index: Any) -> None:
    """Raise a DataError where time stamps are not evenly spaced and in order."""
    import pandas as pd

    if index is None or isinstance(index, pd.RangeIndex | pd.PeriodIndex) or len(index) < 3:
        return
    if isinstance(index, pd.DatetimeIndex):
        if index.freq is not None or calendar_of(index) is not None:
            return
        gaps = np.diff(index.to_numpy().astype("datetime64[ns]").astype(np.int64)).astype(float)
        if (index.is_month_start.all() or index.is_month_end.all()) and (index.normalize() == index).all():
            # Months differ in length: the step named is the one where a month is missing.
            gaps = np.diff(12.0 * index.year + index.month)
    elif pd.api.types.is_numeric_dtype(index):
        gaps = np.diff(index.to_numpy().astype(float))
    else:
        return
    usual = float(np.median(gaps))
    off = (
        np.flatnonzero(~(np.abs(gaps - usual) <= 1e-3 * abs(usual))) if usual > 0 else np.array([int(np.argmin(gaps))])
    )
    # Years and business days differ in length too; a calendar that pandas knows was let pass above.
    if len(off):
        t = int(off[0])
        raise DataError(
            f"time stamps are not evenly spaced: step {t + 1} ({index[t + 1]}) does not follow {index[t]} at the usual distance. "
            "Sort the rows, drop doubles, and give steps without a value a row of their own with a missing one."
        )
