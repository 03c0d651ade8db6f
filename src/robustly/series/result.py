"""What did a robust series find? Estimates, components, precisions, outliers, breaks, forecasts, and how the fit ended."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from robustly.errors import DataError, FitError, IdentifiabilityWarning, ModelError, did_you_mean, names
from robustly.fit.outcome import Outcome
from robustly.result import persist
from robustly.result.summary import summarize
from robustly.result.views import view
from robustly.series.marks import Marks, apart, by_local_fdr, near


class SeriesSource(Protocol):
    """What can still be asked of the model behind a fit; a fit read from a file without its model has none."""

    def marks(self, seed: int) -> Marks: ...

    def forecast(self, steps: int, exog: Any, draws: int, seed: int, column: int) -> Any: ...

    def log_scores(self, first: int, draws: int, seed: int) -> np.ndarray: ...


@dataclass(eq=False)
class SeriesFit:
    """A state-space model with a precision of its own at every step, fitted.

    `hyperparameters` has degrees of freedom and scale of each localized disturbance, `shared` the model's other parameters by
    statsmodels' names, `parameters` all of them. `precision` and `components` are by step.
    """

    parameters: dict[str, float]
    labels: list[str]
    vector: np.ndarray
    jacobian: np.ndarray
    """d natural values / d vector."""
    curve: np.ndarray
    """Second derivatives of the evidence in the vector."""
    evidence: np.ndarray = field(repr=False)
    """Contributions of the steps to `bound`, which they add up to."""
    log_likelihood: float
    log_likelihood_error: float
    """Monte-Carlo standard error of it; 0 where nothing was drawn, NaN where the error of an approximation is not known."""
    effective_draws: float
    bound: float
    """The mean-field lower bound of the log likelihood at the estimates."""
    classical_log_likelihood: float
    """Of the plain model at its own best parameters: statsmodels' number."""
    classical_parameters: dict[str, float]
    outcome: Outcome
    approximation: str
    sites: list[str]
    break_sites: list[bool]
    observed: np.ndarray = field(repr=False)
    """Which steps have a value, (T,)."""
    values: np.ndarray = field(repr=False)
    """The series, (T,) or (T, columns)."""
    steps: np.ndarray = field(repr=False)
    """What each step is called, as text."""
    weights: np.ndarray = field(repr=False)
    """E[λ], (S, T)."""
    factors: np.ndarray = field(repr=False)
    """Variance factors at which states are smoothed, (S, T)."""
    smoothed: dict[str, tuple[np.ndarray, np.ndarray]] = field(repr=False)
    """Components: mean and standard deviation by step."""
    is_bound: bool = False
    notes: tuple[str, ...] = ()
    limits: dict[str, dict[str, float]] = field(default_factory=dict)
    scales: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    seed: int = 0
    source: SeriesSource | None = field(default=None, repr=False)
    saved_marks: Marks | None = field(default=None, repr=False)

    # ------------------------------------------------------------------ estimates

    @cached_property
    def hyperparameters(self) -> dict[str, dict[str, float]]:
        """``dof`` and ``scale`` of each localized disturbance; infinite dof is the normal."""
        return {
            site: {word: self.parameters.get(f"{site}.{word}", np.inf) for word in ("dof", "scale")}
            for site in self.sites
        }

    @cached_property
    def shared(self) -> dict[str, float]:
        """The model's other parameters, by statsmodels' names."""
        own = {f"{site}.{word}" for site in self.sites for word in ("dof", "scale")}
        return {name: value for name, value in self.parameters.items() if name not in own}

    @property
    def estimates(self) -> np.ndarray:
        return np.array([self.parameters[label] for label in self.labels])

    @property
    def weight(self) -> np.ndarray:
        return self.observed.astype(float)

    @property
    def aic(self) -> float:
        return -2.0 * self.log_likelihood + 2.0 * len(self.vector)

    @property
    def bic(self) -> float:
        return -2.0 * self.log_likelihood + float(np.log(self.weight.sum())) * len(self.vector)

    terms: ClassVar[tuple[str, ...]] = ()
    derived: ClassVar[dict[str, Any]] = {}
    information: ClassVar[str] = "observed"

    @property
    def told(self) -> dict[str, str]:
        return {"localized": names(self.sites)}

    def covariance(self, kind: str = "information") -> np.ndarray:
        """Covariance of the natural values in the order of `labels`, from the curvature of the evidence."""
        if kind != "information":
            raise ModelError(f'a series has the covariance "information" only; got {kind!r}.')
        unit = 1.0 / np.sqrt(np.maximum(np.abs(np.diag(self.curve)), 1e-300))
        scaled = -self.curve * unit[:, None] * unit
        values, vectors = np.linalg.eigh(0.5 * (scaled + scaled.T))
        if not len(values) or values.min() <= 1e-10 * values.max():
            warnings.warn(
                "the evidence is flat in some direction, so standard errors are not defined (NaN): a variance at zero, or two "
                "that the series cannot tell apart. Hold one, or take a simpler model.",
                IdentifiabilityWarning,
                stacklevel=3,
            )
            return np.full((len(self.labels),) * 2, np.nan)
        inverse = (unit[:, None] * vectors / values) @ (vectors.T * unit)
        return self.jacobian @ inverse @ self.jacobian.T

    @cached_property
    def standard_errors(self) -> dict[str, Any]:
        """Standard errors from the curvature of the evidence: by label, and for localized disturbances nested."""
        error = dict(zip(self.labels, np.sqrt(np.maximum(np.diag(self.covariance()), 0.0)).tolist()))
        nested = {s: {w: error.get(f"{s}.{w}", np.nan) for w in ("dof", "scale")} for s in self.sites}
        return {**error, **nested}

    def confint(self, level: float = 0.95, kind: str = "information") -> dict[str, tuple[float, float]]:
        """Intervals by label; those of positive values are symmetric in the logarithm."""
        from scipy.stats import norm

        if not 0 < level < 1:
            raise ModelError(f"level is a probability between 0 and 1; got {level}. 0.95 is usual.")
        half = float(norm.ppf(0.5 + level / 2))
        found = {}
        for label, value, scale in zip(self.labels, self.estimates, self.scales):
            error = float(self.standard_errors[label])
            if scale == "log" and error < 3.0 * value:
                ends = value * np.exp(-half * error / value), value * np.exp(half * error / value)
            else:
                # A variance that may be zero has no logarithm to be symmetric in; its interval begins at zero.
                ends = max(value - half * error, 0.0) if scale == "log" else value - half * error, value + half * error
            found[label] = float(ends[0]), float(ends[1])
        return found

    # ------------------------------------------------------------------ steps

    @property
    def surprise(self) -> np.ndarray:
        """Minus the contribution of every step to the evidence."""
        return -self.evidence

    def precision(self, site: str | None = None) -> np.ndarray:
        """E[λ] by step: one where a disturbance is as usual, near zero where it is out of the ordinary."""
        return self.weights[self._site(site)]

    def components(self, level: float = 0.9) -> Any:
        """A data frame by step: each component's mean and the ends of its interval."""
        import pandas as pd
        from scipy.stats import norm

        half = float(norm.ppf(0.5 + level / 2))
        columns = {}
        for name, (mean, sd) in self.smoothed.items():
            columns[name], columns[f"{name} low"], columns[f"{name} high"] = mean, mean - half * sd, mean + half * sd
        return pd.DataFrame(columns, index=pd.Index(self.steps, name="step"))

    @cached_property
    def marks(self) -> Marks:
        """Probabilities of outliers and breaks under the two-part law; drawn when first asked for."""
        if self.saved_marks is not None:
            return self.saved_marks
        return self._need("the probability of outliers and breaks").marks(self.seed)

    @cached_property
    def outlier_probability(self) -> np.ndarray:
        """For every step, how probable it is that its value is an additive outlier, (T,)."""
        return self._together(False)

    @cached_property
    def break_probability(self) -> np.ndarray:
        """For every step, how probable it is that a component jumps there, (T,)."""
        found = self._together(True)
        # The disturbance of step t moves the state of step t + 1: the first value after the break.
        return np.concatenate([[0.0], found[:-1]])

    def _together(self, breaks: bool) -> np.ndarray:
        chosen = [s for s, kind in enumerate(self.break_sites) if kind == breaks]
        if not chosen:
            what, name = ("breaks", "level") if breaks else ("outliers", "irregular")
            raise ModelError(
                f"no disturbance that makes {what} is localized here, only {names(self.sites)}. Localize it too: "
                f'rb.localize(model, ["{name}", …]).'
            )
        return 1.0 - np.prod(1.0 - self.marks.probability[chosen], axis=0)

    def outliers(self, fdr: float | None = None, level: float | None = None) -> np.ndarray:
        """Steps whose values are additive outliers, most probable first.

        The list holds an expected share of at most `fdr` (0.05 unless told) steps that belong to the core of a two-part law:
        steps are taken in order of their probability while the mean probability of a false one stays below it. With `level`
        instead, all steps whose probability of belonging is below it.
        """
        return self._chosen(self.outlier_probability, fdr, level)

    def breaks(self, fdr: float | None = None, level: float | None = None, *, within: int = 0) -> np.ndarray:
        """Steps at which a component jumps (the first value after the jump), most probable first; as :meth:`outliers`.

        Often the series is sure that there is a break but not at which of a few steps. With `within`, a step stands for all
        that lie within so many steps of it: it is listed where some break near it is probable, and is false only if there is
        none so near.
        """
        if within < 0:
            raise ModelError(f"within is a number of steps, 0 or more; got {within}.")
        if within == 0:
            return self._chosen(self.break_probability, fdr, level)
        order = apart(np.argsort(-self.break_probability, kind="stable"), within)
        chosen = self._chosen(self.break_probability_within(within)[order], fdr, level)
        return order[chosen]

    def break_probability_within(self, steps: int) -> np.ndarray:
        """For every step, how probable it is that some component jumps at most so many steps from it, (T,)."""
        exactly = self.break_probability
        sites = [s for s, kind in enumerate(self.break_sites) if kind]
        drawn: np.ndarray = np.any(self.marks.drawn[:, sites], axis=1)
        moved = np.zeros_like(drawn)
        moved[:, 1:] = drawn[:, :-1]
        return np.maximum(near(moved, steps), exactly)

    def _chosen(self, probability: np.ndarray, fdr: float | None, level: float | None) -> np.ndarray:
        if fdr is not None and level is not None:
            raise ModelError("give fdr= or level=, not both.")
        if level is None:
            return by_local_fdr(probability, 0.05 if fdr is None else fdr)
        if not 0 < level < 1:
            raise ModelError(f"level is a probability between 0 and 1; got {level}.")
        found = np.flatnonzero(1.0 - probability < level)
        return found[np.argsort(-probability[found], kind="stable")]

    # ------------------------------------------------------------------ the future

    def forecast(self, steps: int, exog: Any = None, *, draws: int = 400, seed: int = 0, column: int = 0) -> Any:
        """The law of the next `steps` values: mean, intervals, quantiles, densities, draws.

        A mixture over what the past precisions may have been and the future ones will be, so a last value that may be an
        outlier or the start of a new level counts as both. Parameters are taken at their estimates. `exog` has the regressors
        of the new steps, if the model has any; `column` chooses a series where there are several.
        """
        if not isinstance(steps, int | np.integer) or steps < 1:
            raise ModelError(f"forecast takes a whole number of steps, 1 or more; got {steps!r}.")
        return self._need("forecast").forecast(int(steps), exog, draws, seed, column)

    def log_scores(self, first: int | None = None, *, draws: int = 100, seed: int = 0) -> np.ndarray:
        """log p(y_t | all values before) from step `first` (half way unless told) to the end, parameters at their estimates."""
        length = len(self.observed)
        start = length // 2 if first is None else int(first)
        if not 1 <= start < length:
            raise ModelError(f"first is a step from 1 to {length - 1}; got {first}.")
        return self._need("log_scores").log_scores(start, draws, seed)

    # ------------------------------------------------------------------ telling and keeping

    def summary(self) -> Any:
        """Estimates with standard errors and intervals, and how the fit ended; prints as text or HTML."""
        return summarize(self)  # type: ignore[arg-type]

    def plot(self, kind: str = "series") -> Any:
        """A figure: ``"series"`` (values, level, marked steps), ``"components"`` or ``"precision"``."""
        from robustly.series import plots

        known = {"series": plots.plot_series, "components": plots.plot_components, "precision": plots.plot_precision}
        if kind not in known:
            raise ModelError(f'no plot "{kind}"; there are {names(known)}.{did_you_mean(kind, known)}')
        return known[kind](self)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page with the findings, the pictures and the tables."""
        return view("series_report")(self, path)

    def __repr__(self) -> str:
        return (
            f"<SeriesFit of {len(self.observed)} steps, log likelihood {self.log_likelihood:.4f}, {names(self.sites)} localized, "
            f"{self.outcome.kind}>"
        )

    def _site(self, site: str | None) -> int:
        if site is None and len(self.sites) == 1:
            return 0
        if site not in self.sites:
            raise ModelError(f"say which of {names(self.sites)}; got {site!r}.")
        return self.sites.index(site)

    def _need(self, what: str) -> SeriesSource:
        if self.source is None:
            raise FitError(f"{what} needs the statsmodels model of this fit. Read it with rb.load(path, model=...).")
        return self.source

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all numbers to one file; ``rb.load`` reads it, with ``model=`` also for forecasts."""
        arrays: dict[str, np.ndarray] = {
            name: getattr(self, name)
            for name in ("vector", "jacobian", "curve", "evidence", "observed", "values", "weights", "factors")
        }
        for name, (mean, sd) in self.smoothed.items():
            arrays[f"component:{name}"] = np.stack([mean, sd])
        marks = None
        if self.source is not None or self.saved_marks is not None:
            found = self.marks
            marks = found.accepted
            for name in ("probability", "error", "core", "width", "share", "drawn"):
                arrays[f"marks:{name}"] = getattr(found, name)
        plain = ("parameters", "labels", "log_likelihood", "log_likelihood_error", "effective_draws", "bound",
                 "classical_log_likelihood", "classical_parameters", "approximation", "sites", "break_sites", "is_bound",
                 "limits", "scales", "history", "seed")  # fmt: skip
        meta = {name: getattr(self, name) for name in plain}
        meta |= {
            "outcome": [self.outcome.kind, self.outcome.text, self.outcome.steps],
            "notes": list(self.notes),
            "steps": [str(step) for step in self.steps],
            "marks": marks,
            "components": list(self.smoothed),
        }
        return persist.write(path, "series", meta, arrays)


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Any = None) -> SeriesFit:
    """A fit as :meth:`SeriesFit.save` wrote it; with the statsmodels model it was made from, it can forecast again."""
    meta = dict(meta)
    accepted = meta.pop("marks")
    marks = None
    if accepted is not None:
        parts = {name: arrays[f"marks:{name}"] for name in ("probability", "error", "core", "width", "share", "drawn")}
        marks = Marks(**parts, accepted=accepted)
    kept: dict[str, Any] = {
        name: arrays[name]
        for name in ("vector", "jacobian", "curve", "evidence", "observed", "values", "weights", "factors")
    }
    fit = SeriesFit(
        **kept,
        smoothed={name: tuple(arrays[f"component:{name}"]) for name in meta.pop("components")},
        outcome=Outcome(*meta.pop("outcome")),
        notes=tuple(meta.pop("notes")),
        steps=np.array(meta.pop("steps")),
        saved_marks=marks,
        **meta,
    )  # fmt: skip
    if model is not None:
        from robustly.series.source import StateSpaceSource

        if np.shape(model.endog)[0] != len(fit.observed):
            raise DataError(
                f"the model given has {np.shape(model.endog)[0]} steps and the saved fit {len(fit.observed)}. Give the model with "
                "the series that was fitted."
            )
        fit.source = StateSpaceSource.of(fit, model)
    return fit
