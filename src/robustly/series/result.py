"""What does a fitted series say beside its estimates? Components, precisions, outliers, breaks and forecasts, by step.

The result is a :class:`~robustly.result.fit.Fit` like any other. What a series adds is its model, :class:`FittedSeries`, whose
names in `adds` the fit passes on: ``fit.forecast(8)``, ``fit.breaks()``, ``fit.components()``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from robustly.errors import DataError, FitError, ModelError, did_you_mean, names
from robustly.result.estimates import Hyperparameters
from robustly.result.fit import Fit
from robustly.result.laws import ByRow
from robustly.result.outliers import POSTERIOR, stand_out
from robustly.result.saved import fields_of
from robustly.result.source import Source, refuse_other_models
from robustly.series.marks import Marks, apart, near
from robustly.series.source import StateSpaceSource

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from robustly.series.forecast import Forecast

MARKED = ("probability", "error", "core", "width", "share", "drawn")
BY_STEP = ("series", "observed", "weights", "factors")
TOLD = ("log_likelihood_error", "effective_draws", "bound", "classical_log_likelihood")
PLAIN = (*TOLD, "sites", "break_sites", "held", "classical_parameters", "seed")
OTHERS = "programs of NumPyro, regressions and conjugate pairs"


@dataclass(eq=False)
class FittedSeries:
    """A state-space model with a precision of its own at every step, fitted."""

    sites: list[str]
    break_sites: list[bool]
    """Which of them move the state, so that what follows is moved too."""
    held: dict[str, float]
    """Degrees of freedom that were not fitted; infinite for the normal."""
    log_likelihood_error: float
    """Standard error by chance of draws; 0 where nothing was drawn, NaN where the error of an approximation is not known."""
    effective_draws: float
    bound: float
    """The mean-field lower bound of the log likelihood at the estimates."""
    classical_log_likelihood: float
    """Of the plain model at its own best parameters: statsmodels' number."""
    classical_parameters: dict[str, float]
    observed: np.ndarray
    """Which steps have a value, (T,)."""
    series: np.ndarray
    """The series, (T, columns)."""
    steps: np.ndarray
    """What each step is called, as text."""
    weights: np.ndarray
    """E[λ], (S, T)."""
    factors: np.ndarray
    """Variance factors at which states are smoothed, (S, T)."""
    smoothed: dict[str, tuple[np.ndarray, np.ndarray]]
    """Components: mean and standard deviation by step."""
    seed: int
    behind: StateSpaceSource | None = None
    """The statsmodels model; a fit read from a file without it has none."""
    saved_marks: Marks | None = field(default=None, repr=False)

    kind: ClassVar[str] = "series"
    page: ClassVar[str] = "series_report"
    adds: ClassVar[tuple[str, ...]] = (
        "sites", "break_sites", "observed", "values", "steps", "weights", "factors", "smoothed", "seed", "marks",
        "classical_parameters", "precision", "components", "outlier_probability", "break_probability",
        "break_probability_within", "breaks", "forecast", "log_scores", "plot",
    )  # fmt: skip

    @property
    def values(self) -> np.ndarray:
        """The series, (T,) or (T, columns)."""
        return self.series[:, 0] if self.series.shape[1] == 1 else self.series

    def precision(self, site: str | None = None) -> np.ndarray:
        """E[λ] by step: one where a disturbance is as usual, near zero where it is out of the ordinary."""
        if site is None and len(self.sites) == 1:
            return self.weights[0]
        if site not in self.sites:
            raise ModelError(f"say which of {names(self.sites)}; got {site!r}.")
        return self.weights[self.sites.index(site)]

    def components(self, level: float = 0.9) -> pd.DataFrame:
        """A data frame by step: each component's mean and the ends of its interval."""
        import pandas as pd
        from scipy.stats import norm

        half = float(norm.ppf(0.5 + level / 2))
        columns = {}
        for name, (mean, sd) in self.smoothed.items():
            columns[name], columns[f"{name} low"], columns[f"{name} high"] = mean, mean - half * sd, mean + half * sd
        return pd.DataFrame(columns, index=pd.Index(self.steps, name="step"))

    # ------------------------------------------------------------------ outliers and breaks

    @cached_property
    def marks(self) -> Marks:
        """Probabilities of outliers and breaks under the two-part law; drawn when first asked for."""
        if self.saved_marks is not None:
            return self.saved_marks
        return self.need_model("the probability of outliers and breaks").marks(self.seed)

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
        """As :meth:`robustly.Fit.outliers`: steps whose values are additive outliers, most probable first."""
        return _steps_listed(self.outlier_probability, fdr, level)

    def breaks(self, fdr: float | None = None, level: float | None = None, *, within: int = 0) -> np.ndarray:
        """Steps at which a component jumps (the first value after the jump), most probable first; as :meth:`outliers`.

        Often the series is sure that there is a break but not at which of a few steps. With `within`, a step stands for all
        that lie within so many steps of it: it is listed where some break near it is probable, and is false only if there is
        none so near.
        """
        if within < 0:
            raise ModelError(f"within is a number of steps, 0 or more; got {within}.")
        if within == 0:
            return _steps_listed(self.break_probability, fdr, level)
        order = apart(np.argsort(-self.break_probability, kind="stable"), within)
        return order[_steps_listed(self.break_probability_within(within)[order], fdr, level)]

    def break_probability_within(self, steps: int) -> np.ndarray:
        """For every step, how probable it is that some component jumps at most so many steps from it, (T,)."""
        exactly = self.break_probability
        sites = [s for s, kind in enumerate(self.break_sites) if kind]
        drawn: np.ndarray = np.any(self.marks.drawn[:, sites], axis=1)
        moved = np.zeros_like(drawn)
        moved[:, 1:] = drawn[:, :-1]
        return np.maximum(near(moved, steps), exactly)

    # ------------------------------------------------------------------ the future

    def forecast(
        self, steps: int, exog: ArrayLike | None = None, *, draws: int = 400, seed: int = 0, column: int = 0
    ) -> Forecast:
        """The law of the next `steps` values: mean, intervals, quantiles, densities, draws.

        A mixture over what the past precisions may have been and the future ones will be, so a last value that may be an
        outlier or the start of a new level counts as both. Parameters are taken at their estimates. `exog` has the regressors
        of the new steps, if the model has any; `column` chooses a series where there are several.
        """
        if not isinstance(steps, int | np.integer) or steps < 1:
            raise ModelError(f"forecast takes a whole number of steps, 1 or more; got {steps!r}.")
        return self.need_model("forecast").forecast(int(steps), exog, draws, seed, column)

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ByRow:
        """The forecast's law, one row a step: ``fit.predictive(8)``."""
        law: ByRow = self.forecast(*args, **kwargs).law
        return law

    def log_scores(self, first: int | None = None, *, draws: int = 100, seed: int = 0) -> np.ndarray:
        """log p(y_t | all values before) from step `first` (half way unless told) to the end, parameters at their estimates."""
        length = len(self.observed)
        start = length // 2 if first is None else int(first)
        if not 1 <= start < length:
            raise ModelError(f"first is a step from 1 to {length - 1}; got {first}.")
        return self.need_model("log_scores").log_scores(start, draws, seed)

    # ------------------------------------------------------------------ showing and keeping

    def plot(self, kind: str = "series") -> Figure:
        """A figure: ``"series"`` (values, level, marked steps), ``"components"`` or ``"precision"``."""
        from robustly.series import plots

        known = {"series": plots.plot_series, "components": plots.plot_components, "precision": plots.plot_precision}
        if kind not in known:
            raise ModelError(f'no plot "{kind}"; there are {names(known)}.{did_you_mean(kind, known)}')
        return known[kind](self)

    def need_model(self, what: str) -> StateSpaceSource:
        """The statsmodels model, or an error that says what it is needed for."""
        if self.behind is None:
            raise FitError(f"{what} needs the statsmodels model of this fit. Read it with rb.load(path, model=...).")
        return self.behind

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        arrays: dict[str, np.ndarray] = {name: getattr(self, name) for name in BY_STEP}
        for name, (mean, sd) in self.smoothed.items():
            arrays[f"component:{name}"] = np.stack([mean, sd])
        marks = None
        if self.behind is not None or self.saved_marks is not None:
            marks = self.marks.accepted
            arrays |= {f"marks:{name}": getattr(self.marks, name) for name in MARKED}
        meta = {name: getattr(self, name) for name in PLAIN}
        meta |= {"mark_draws": len(arrays.get("marks:drawn", ()))}
        meta |= {"steps": [str(one) for one in self.steps], "marks": marks, "components": list(self.smoothed)}
        return meta, arrays


def _steps_listed(probability: np.ndarray, fdr: float | None, level: float | None) -> np.ndarray:
    if fdr is not None and level is not None:
        raise ModelError("give fdr= or level=, not both.")
    return stand_out(1.0 - probability, probability, fdr, level, POSTERIOR)


class SeriesSource(Source):
    """What a fit asks of the steps it was made from."""

    keeps = ("posteriors",)

    def __init__(self, model: FittedSeries, evidence: np.ndarray) -> None:
        self.model, self.by_step = model, evidence

    def evidence(self) -> np.ndarray:
        return self.by_step

    def tail_probabilities(self) -> np.ndarray:
        """How probable it is that a step's value is *not* an outlier, as the rule of series' lists has it."""
        return 1.0 - self.model.outlier_probability

    def posterior(self, site: str | None) -> ByRow:
        if site not in self.model.sites:
            raise ModelError(f"say which of {names(self.model.sites)}; got {site!r}.")
        return self.model.need_model("posterior").precisions(self.model.sites.index(site))

    def has_posterior(self, site: str) -> bool:
        return bool(np.isfinite(self.model.held.get(site, 1.0)))

    def scores(self) -> np.ndarray:
        raise ModelError('steps of a series are not independent rows: its covariance is "information" only.')

    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        refuse_other_models("the evidence by row at other parameters", OTHERS)

    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        refuse_other_models("parameters at other vectors", OTHERS)

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Any:
        refuse_other_models("sample_posterior", OTHERS)


def series_fit(model: FittedSeries, **fields: Any) -> Fit:
    """The fit of a series, from its model and the fields that every fit has."""
    parameters, sites = fields["parameters"], model.sites
    own = {f"{site}.{word}" for site in sites for word in ("dof", "scale")}
    laws = {
        s: {"dof": parameters.get(f"{s}.dof", model.held.get(s, np.inf)), "scale": parameters[f"{s}.scale"]}
        for s in sites
    }
    order = [label for label in fields["labels"] if not label.endswith(".dof") or label not in own]
    return Fit(
        model=model,
        source=SeriesSource(model, fields["evidence_by_row"]),
        hyperparameters=Hyperparameters(laws),
        shared={name: value for name, value in parameters.items() if name not in own},
        vector_labels=[*order, *(label for label in fields["labels"] if label not in order)],
        derived={name: getattr(model, name) for name in TOLD},
        told={"localized": names(sites)},
        outlier_rule=POSTERIOR,
        summed_evidence=fields["objective"],
        **fields,
    )


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Any = None) -> Fit:
    """A series as ``Fit.save`` wrote it; with the statsmodels model it was made from, it can forecast again."""
    marks = None
    if meta["marks"] is not None:
        marks = Marks(**{name: arrays[f"marks:{name}"] for name in MARKED}, accepted=meta["marks"])
    kept: dict[str, Any] = {**{name: meta[name] for name in PLAIN}, **{name: arrays[name] for name in BY_STEP}}
    told = FittedSeries(
        **kept,
        steps=np.array(meta["steps"]),
        smoothed={
            name: (arrays[f"component:{name}"][0], arrays[f"component:{name}"][1]) for name in meta["components"]
        },
        saved_marks=marks,
    )
    fit = series_fit(told, **fields_of(meta, arrays))
    if model is not None:
        if np.shape(model.endog)[0] != len(told.observed):
            raise DataError(
                f"the model given has {np.shape(model.endog)[0]} steps and the saved fit {len(told.observed)}. Give the model "
                "with the series that was fitted."
            )
        told.behind = StateSpaceSource.of(fit, model)
    return fit
