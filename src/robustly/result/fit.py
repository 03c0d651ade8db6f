"""What did a fit find? One result for every model: estimates, their uncertainty, rows, predictions, and how it ended."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from robustly._runtime.keys import jax_key
from robustly.errors import FitError, ModelError, names
from robustly.fit.outcome import Outcome
from robustly.result import estimates as est
from robustly.result import persist
from robustly.result.estimates import Hyperparameters
from robustly.result.laws import ByRow
from robustly.result.levels import check_level
from robustly.result.outliers import TAILS, stand_out
from robustly.result.source import PAIRS, REGRESSIONS, FittedModel, Source, refuse_other_models
from robustly.result.views import view

if TYPE_CHECKING:
    import pandas as pd

    from robustly.fit.draws import Draws
    from robustly.result.labelled import StandardErrors
    from robustly.result.summary import Summary


@final
@dataclass(eq=False)
class Fit:
    """The fitted model.

    Estimates are in `hyperparameters` (by site and argument), `shared` (by name) and `parameters` (all, by name); a
    regression has `coefficients` by term besides. `evidence` holds log p(row) for every row, integrated over the row's
    own value. Other names of the same numbers (`dof`, `scale`, `mean` …) are in `derived` and can be read as attributes.
    """

    parameters: dict[str, Any]
    labels: list[str]
    vector: np.ndarray
    jacobian: np.ndarray
    """d natural values / d vector."""
    curve: np.ndarray
    """Second derivative of the objective in the vector."""
    objective: float
    evidence_by_row: np.ndarray | None = field(repr=False)
    """What `evidence` holds; None until asked for, as a search that is sure of its last step does not look there."""
    weight: np.ndarray
    outcome: Outcome
    history: list[dict[str, Any]] = field(repr=False)
    model: FittedModel = field(repr=False)
    """The model with its estimates: it predicts."""
    hyperparameters: Hyperparameters
    """Fitted arguments of every localized site's prior; limits where the rows do not differ."""
    shared: dict[str, Any]
    """Point estimates of what all rows have in common; in regressions, besides the coefficients."""
    approximation: str = "Exact()"
    is_bound: bool = False
    information: str = "observed"
    """Which information `curve` is: ``observed`` or ``expected``."""
    notes: tuple[str, ...] = ()
    limits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sites in which all rows turned out to be alike: what their priors' arguments tend to."""
    scales: list[str] = field(default_factory=list)
    """On which scale intervals are symmetric, for each of `labels`: see :func:`robustly.result.estimates.interval`."""
    vector_labels: list[str] = field(default_factory=list, repr=False)
    """Names for the entries of the vector, where they are not `labels`."""
    derived: dict[str, Any] = field(default_factory=dict)
    """Other names of fitted numbers; None for a number this kind of model may have and this one has not."""
    derived_jacobian: np.ndarray | None = field(default=None, repr=False)
    """d derived / d vector, where derived numbers get intervals of their own."""
    derived_scales: dict[str, str] = field(default_factory=dict, repr=False)
    edges: tuple[str, ...] = ()
    """Estimates on the edge of what is possible, such as a rate of 0: their intervals come from the likelihood."""
    terms: list[str] = field(default_factory=list)
    """A regression's terms, the intercept first."""
    aliased: np.ndarray | None = field(default=None, repr=False)
    """Which terms the columns do not determine."""
    leverage_one: np.ndarray | None = field(default=None, repr=False)
    """Rows without which a coefficient is not determined: nothing is left to predict them by, so LOO has them as they are in the fit."""
    asked: dict[str, Any] = field(default_factory=dict)
    """What the user of a regression asked for: local, prior; at a boundary the fitted law is the classical one instead."""
    told: dict[str, str] = field(default_factory=dict, repr=False)
    """What the model says of itself at the head of a summary."""
    outlier_rule: str = TAILS
    source: Source | None = field(default=None, repr=False)
    """The rows; a fit read from a file has most often none."""
    saved: dict[str, Any] = field(default_factory=dict, repr=False)
    summed_evidence: float | None = None
    """The log likelihood, where it is known before `evidence` is."""

    # ------------------------------------------------------------------ estimates

    @property
    def alone(self) -> np.ndarray | None:
        """The name of `leverage_one` in 0.1."""
        return self.leverage_one

    @property
    def estimates(self) -> np.ndarray:
        """All natural values end to end, in the order of `labels`."""
        return est.flat(self.parameters)

    @cached_property
    def coefficients(self) -> pd.Series:
        """A regression's intercept and slopes by term."""
        import pandas as pd

        self._of_regressions("coefficients")
        return pd.Series(self.estimates[: len(self.terms)], index=self.terms, name="coefficient")

    @property
    def spread(self) -> float | None:
        """Scale of the rows' own values; 0 when the classical model was the answer."""
        return self._named("spread")

    @property
    def dof(self) -> float | None:
        """Degrees of freedom of a Student-t law; infinite when the normal was the answer."""
        return self._named("dof")

    @property
    def scale(self) -> Any:
        """Scale of the noise of measured responses; 0 when rows' own predictors take up all of it."""
        return self._named("scale")

    @property
    def flip(self) -> float | None:
        """The share of wrong labels."""
        return self._named("flip")

    @property
    def attenuated_coefficients(self) -> pd.Series:
        r"""Coefficients as they show in marginal log odds: :math:`w / \sqrt{1 + (\mathrm{spread}/1.7)^2}`."""
        return self.coefficients / np.sqrt(1.0 + ((self.spread or 0.0) / 1.7) ** 2)

    def _named(self, name: str) -> Any:
        if name not in self.derived:
            refuse_other_models(name, f"{REGRESSIONS} and some {PAIRS}")
        return self.derived[name]

    if not TYPE_CHECKING:  # a checker still finds names that are nowhere

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                for home in (vars(self).get("derived", {}), getattr(vars(self).get("model"), "shown", {})):
                    if name in home:
                        return home[name]
            raise AttributeError(f"'Fit' has no attribute '{name}'")

    # ------------------------------------------------------------------ how well rows are described

    @cached_property
    def evidence(self) -> np.ndarray:
        """log p(row) for every row, integrated over the row's own value."""
        return self.need_source("evidence").evidence() if self.evidence_by_row is None else self.evidence_by_row

    @property
    def log_likelihood(self) -> float:
        """The sum of the rows' evidences."""
        return float(self.weight @ self.evidence) if self.summed_evidence is None else self.summed_evidence

    @property
    def aic(self) -> float:
        return -2.0 * self.log_likelihood + 2.0 * len(self.vector)

    @property
    def bic(self) -> float:
        return -2.0 * self.log_likelihood + float(np.log(self.weight.sum())) * len(self.vector)

    @cached_property
    def loo(self) -> float:
        """Expected log predictive density of a new row, times the rows: each row predicted by all others.

        One Newton step from the fit to that without the row (for the 30 heaviest rows all steps), and the row's
        integrated likelihood there, never the conditional one, which knows the row's own value. Rows in
        `leverage_one` cannot be predicted by the others and count at their density in the fit.
        """
        return float(self.weight @ self.loo_by_row)

    @cached_property
    def loo_by_row(self) -> np.ndarray:
        return self.saved["loo_by_row"] if "loo_by_row" in self.saved else self.need_source("loo").loo()

    @cached_property
    def influence(self) -> np.ndarray:
        """How far each row moves the coefficients, in units of their covariance (Cook's distance, one Newton step)."""
        return self.need_source("influence").influence()

    @property
    def pit(self) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y ≤ y) of every row: the probability integral transform, an interval where responses are counts.

        If the model holds, values drawn evenly between the two are uniform over the rows.
        """
        return self.need_source("pit").pit()

    def integration_error(self) -> float:
        """How much the log likelihood changes when every row is integrated with twice the points, in nats."""
        return self.need_source("integration_error").integration_error()

    def profile_spread(self, values: Sequence[float] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)) -> pd.DataFrame:
        """The best log likelihood at given spreads: flat where the data say nothing about it."""
        return self.need_source("a profile").profile(values)

    # ------------------------------------------------------------------ uncertainty

    def covariance(self, kind: str = "information") -> np.ndarray:
        """Covariance of the natural values, in the order of `labels`; NaN for terms that columns do not determine.

        ``"information"`` inverts the observed information of the evidence; ``"sandwich"`` is also right when the model
        is not, as far as the estimates still mean something.
        """
        found = self.jacobian @ self.free_covariance(kind) @ self.jacobian.T
        if self.aliased is not None:
            lost = np.flatnonzero(self.aliased)
            found[lost, :] = found[:, lost] = np.nan
        return found

    def free_covariance(self, kind: str = "information") -> np.ndarray:
        """Covariance of the vector, on scales without walls."""
        est.check_kind(kind)
        bread = self._inverse_information
        if kind == "information" or not bread.size:
            return bread
        if "scored" in self.saved:
            scores = self.saved["scored"]
            return bread @ ((scores * self.weight[:, None]).T @ scores) @ bread
        return bread @ self.need_source("scores").meat(self.weight) @ bread

    @cached_property
    def _inverse_information(self) -> np.ndarray:
        return est.inverse_information(self.curve, self.vector_labels or self.labels)

    @cached_property
    def standard_errors(self) -> StandardErrors:
        """Standard errors from the observed information: a Series by label, of a regression's terms or of all numbers.

        ``["w"]`` gives those of all entries of `w`, ``["site"]`` those of a localized site by argument.
        """
        from robustly.result.labelled import StandardErrors

        errors = est.deviations(self.covariance())
        named = est.by_name(errors, self.parameters)
        size = len(self.terms) or len(self.labels)
        return StandardErrors.of(errors[:size], self.labels[:size], {**named, **est.nested(named)})

    def confint(self, level: float = 0.95, kind: str = "information") -> dict[str, tuple[float, float]]:
        """Intervals for every natural value and its other names, by label.

        Constrained values (a scale, a probability) get theirs on the unconstrained scale, so they stay inside it. An
        estimate on the edge of what is possible (a rate of 0) gets the values whose likelihood is at least 1 − level of
        the best.
        """
        from scipy.stats import norm

        check_level(level)
        half_width = float(norm.ppf(0.5 + level / 2))
        parts = [*zip(self.labels, self.estimates, est.deviations(self.covariance(kind)), self.scales, strict=True)]
        if self.derived_jacobian is not None:
            free, jacobian = self.free_covariance(kind), self.derived_jacobian
            errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", jacobian, free, jacobian), 0.0))
            more = zip(est.labels_of(self.derived), est.flat(self.derived), errors, strict=True)
            scale = lambda label: self.derived_scales.get(label.split("[")[0], "log")
            parts += [(label, value, se, scale(label)) for label, value, se in more if label not in self.labels]
        found = {label: est.interval(float(value), half_width * float(se), scale) for label, value, se, scale in parts}
        for name in self.edges:
            found[name] = self.need_source("this interval").edge_interval(name, level)
        return found

    def sample_posterior(self, num_samples: int, key: Any, *, num_warmup: int = 100, num_chains: int = 1) -> Draws:
        """Draws of hyperparameters and shared values from their posterior, every row's own value integrated out.

        A Metropolis chain with independent proposals around the estimate, in a fraction of NUTS's time, where the
        posterior is close enough to normal for it; NUTS, with `num_warmup` steps to find its stride, where it is not.
        """
        source = self.need_source("sample_posterior")
        return source.sample_posterior(num_samples, jax_key(key), num_warmup, num_chains)

    # ------------------------------------------------------------------ rows

    @property
    def surprise(self) -> np.ndarray:
        """Minus the log predictive density of every row: large for rows that do not belong."""
        return -self.evidence

    def outliers(self, fdr: float | None = None, level: float | None = None) -> np.ndarray:
        """Rows that do not belong, most surprising first.

        Each row's two-sided tail probability under its own integrated predictive is compared with all others
        (Benjamini & Hochberg 1995): among the rows returned, about a share `fdr` (0.05 unless told) is there by chance
        if the fitted model holds for the rest. With `level` instead, each row is judged alone.

        Regressions whose rows have precisions of their own (Student-t) judge by the *core*, a normal with the fitted
        scale: under the heavy-tailed law itself hardly anything is surprising, which is what made the fit robust. With
        wrong labels the rows are those that were flipped with probability 1 − `fdr` or more.
        """
        return stand_out(self.tail_probabilities, self.surprise, fdr, level, self.outlier_rule)

    @cached_property
    def tail_probabilities(self) -> np.ndarray:
        """For every row, how probable a value at least as far out in its predictive distribution is."""
        if "tail_probabilities" in self.saved:
            return self.saved["tail_probabilities"]
        return self.need_source("outliers").tail_probabilities()

    def posterior(self, *rows: Any, **named: Any) -> ByRow:
        """What is believed of each row's own value: ``mean``, ``sd``, ``quantile(level)``, arrays by row.

        Of the fitted rows; where several sites are local, name one: ``posterior("site")``. A conjugate pair also takes
        new rows, in the order its `fit` does. The fitted prior is plugged in as if it were known, which makes intervals
        too short when there are few rows; see :meth:`integrated_posterior`.
        """
        named = dict(named)
        site = named.pop("site", None) if not rows else rows[0] if isinstance(rows[0], str) else None
        if named or (rows and site is None):
            return self.need_source("posterior").posterior_of(rows, named)
        sites = list(self.hyperparameters.by_site)
        if site is None and len(sites) > 1:
            raise ModelError(f"this fit has {names(sites)} localized; say which: posterior(site).")
        site = sites[0] if site is None and sites else site
        if site in self.saved.get("posteriors", {}):
            return self.saved["posteriors"][site]
        if site in self.limits:
            raise ModelError(
                f'the rows show no heterogeneity in "{site}": all share the value {self.shared.get(site)}. '
                "It stands in fit.shared; there is no posterior by row."
            )
        return self.need_source("posterior").posterior(site)

    def integrated_posterior(self, *rows: Any, **named: Any) -> ByRow:
        """Each row's posterior averaged over what the data leave open about the prior of a conjugate pair.

        A hyperprior that is flat in the variance of the locals is integrated on a grid, and the other hyperparameters
        by Laplace's method, so that it also works where the best spread is 0. Its intervals are the honest ones.
        """
        return self.need_source("integrated_posterior").integrated(rows, named)

    def row_intervals(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Empirical-Bayes intervals for the rows' own values that account for the uncertainty of the prior."""
        return self.integrated_posterior().interval(level)

    @cached_property
    def shrinkage(self) -> pd.DataFrame:
        """Every row's raw estimate, and its posterior mean and standard deviation."""
        return self.need_source("shrinkage").shrinkage()

    @property
    def shifts(self) -> np.ndarray:
        """With ``solver="map"``: by how much each row is shifted, most of them by exactly nothing."""
        return self.need_source("shifts").shifts()

    def predictive(self, *args: Any, **kwargs: Any) -> Any:
        """The integrated predictive distribution of new rows.

        Call it like the model, without the observations: a localized program with its arguments; a regression with a
        matrix of columns, or a data frame for a formula, and ``offset=``, ``exposure=``, ``trials=``; a conjugate pair
        with what stands beside an observation (exposure, trials, variances, design).
        """
        return self.model.predictive(args, kwargs)

    def need_source(self, what: str) -> Source:
        """The rows, or an error that says what they are needed for."""
        if self.source is None:
            raise FitError(
                f"{what} needs the rows this fit was made with, and its file does not keep them. Fit them again, or keep "
                "the fit in memory."
            )
        return self.source

    # ------------------------------------------------------------------ telling

    def summary(self, kind: str = "information") -> Summary:
        """A table of estimates with standard errors and intervals, and how the fit ended; prints as text or HTML."""
        from robustly.result.summary import summarize

        return summarize(self, kind)

    def __repr__(self) -> str:
        what = " ".join(["Fit", *self.told.values()])
        return f"<{what}, {len(self.weight)} rows, log likelihood {self.log_likelihood:.4f}, {self.outcome.kind}>"

    def _of_regressions(self, what: str) -> None:
        if not self.terms:
            refuse_other_models(what, REGRESSIONS)

    @property
    def _kind(self) -> str:
        return "classical" if self.asked.get("local") is None else "robust"

    def plot_coefficients(self, **others: Any) -> Any:
        """Coefficients with 95 % intervals, beside those of `others` fitted to the same rows. Returns the figure."""
        self._of_regressions("plot_coefficients")
        fits = {self._kind: self, **{name: getattr(fit, "result_", fit) for name, fit in others.items()}}
        return view("plot_coefficients")(fits)

    def plot_rows(self, fdr: float = 0.05) -> Any:
        """How improbable every row is, with the rows that do not belong marked. Returns the figure."""
        self._of_regressions("plot_rows")
        return view("plot_rows")(self, self.outliers(fdr=fdr))

    def plot_prior(self) -> Any:
        """The fitted law of the rows' own values, and where the rows were found. Returns the figure."""
        self._of_regressions("plot_prior")
        return view("plot_prior")(self)

    def plot_pit(self) -> Any:
        """The histogram of the probability integral transform, flat where predictions are calibrated. Returns the figure."""
        self._of_regressions("plot_pit")
        return view("plot_pit")({self._kind: self})

    def report(self, path: str | os.PathLike[str], *, title: str = "A robust regression", data: Any = None) -> None:
        """Write one self-contained HTML page: this fit beside the classical one, rows that do not belong, checks.

        `data` is a frame whose columns are shown beside the rows.
        """
        self._of_regressions("a report")
        self.need_source("a report")
        view("report")(self, path, title=title, data=data)

    def to_arviz(self, draws: Mapping[str, Any] | None = None, *, num_samples: int = 500, seed: int = 0) -> Any:
        """An ArviZ ``InferenceData``: posterior draws and the integrated log likelihood of every row at each of them.

        An ``InferenceData``, or with ArviZ 1 and later the ``DataTree`` that took its place. Pass what ``sample_posterior``
        gave; without it, draws come from the normal approximation at the estimate.
        """
        from robustly.result.arviz import to_inference_data

        return to_inference_data(self, draws, num_samples, seed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers of the fit to one file; read it with ``rb.load``."""
        from robustly.result.saved import to_saved

        persist.write(path, self.model.kind, *to_saved(self))
