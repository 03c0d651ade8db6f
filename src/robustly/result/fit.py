"""What did a fit find? One result for every model: estimates, their uncertainty, rows, predictions, and how it ended."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np

from robustly._runtime.keys import jax_key
from robustly.errors import DataError, FitError, HeavyTailsWarning, ModelError, names
from robustly.fit.outcome import Outcome
from robustly.result import estimates as est
from robustly.result import persist
from robustly.result.estimates import Hyperparameters
from robustly.result.hypotheses import TestResult, read_hypotheses, wald
from robustly.result.laws import ByRow
from robustly.result.levels import check_level
from robustly.result.outliers import TAILS, Judgement, by_partition, by_tails
from robustly.result.source import PAIRS, REGRESSIONS, FittedModel, Source, refuse_other_models
from robustly.result.views import view
from robustly.rows.labels import RowLabels

if TYPE_CHECKING:
    import pandas as pd

    from robustly.fit.draws import Draws
    from robustly.result.labelled import StandardErrors
    from robustly.result.summary import Summary

# The standard error of a number over the number, up to which its likelihood is near enough that of a normal on the log scale.
FAR_FROM_LIMIT = 0.1


@final
@dataclass(eq=False)
class Fit:
    """The fitted model.

    Estimates are in `hyperparameters` (by site and argument), `shared` (by name) and `parameters` (all, by name); a
    regression has `coefficients` by term besides. `evidence` holds log p(row) for every row, integrated over the row's
    own value. Other names of the same numbers (`dof`, `scale`, `mean` …) are in `derived` and can be read as attributes, and
    so can what a model of another kind adds, such as `forecast` of a time series (:mod:`robustly.series.result`).
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
    row_labels: RowLabels = field(default_factory=RowLabels, repr=False)
    """What the rows are called in the data they came from."""
    source: Source | None = field(default=None, repr=False)
    """The rows; a fit read from a file has most often none."""
    saved: dict[str, Any] = field(default_factory=dict, repr=False)
    summed_evidence: float | None = None
    """The log likelihood, where it is known before `evidence` is."""
    unit: str = ""
    """What `evidence`, `weight` and everything by row are about, where a unit is a group of rows: the name of the groups."""
    row_count: int | None = None
    """How many rows the groups have."""
    freedom: dict[str, float] = field(default_factory=dict)
    """Degrees of freedom by label, where intervals and tests are those of a Student t: coefficients that differ by group."""

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
                model = vars(self).get("model")
                if name in getattr(model, "adds", ()):
                    return getattr(model, name)
                for home in (vars(self).get("derived", {}), getattr(model, "shown", {})):
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
        rows = self.weight.sum() if self.row_count is None else self.row_count
        return -2.0 * self.log_likelihood + float(np.log(rows)) * len(self.vector)

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

    # ------------------------------------------------------------------ groups

    @cached_property
    def variance_components(self) -> pd.DataFrame:
        """Standard deviations of groups' effects by group and term, with 95 % profile intervals, tests and correlations.

        Estimates are by maximum likelihood, intervals by restricted likelihood, which knows that coefficients were fitted.

        Of effects that are not normal, `scale` is what the interval is about. `p` is that of the likelihood ratio without
        the effect, under the mixture of chi-squares that belongs to the edge (Self & Liang 1987, Stram & Lee 1994).
        """
        return self.need_source("variance_components").variance_components(0.95)

    @cached_property
    def group_effects(self) -> pd.DataFrame:
        """Every group's effects: posterior means and standard deviations by term, rows, weight and tail probability."""
        return self.need_source("group_effects").group_effects()

    @cached_property
    def inner_group_effects(self) -> pd.DataFrame:
        """The effects of groups within groups, ``(1 | a/b)``: posterior means and standard deviations by term, and rows."""
        return self.need_source("inner_group_effects").inner_group_effects()

    @cached_property
    def row_weights(self) -> np.ndarray:
        """How much each row of a group counts, beside a row in the middle of its law: small for rows that do not belong."""
        return self.need_source("row_weights").row_weights()

    # ------------------------------------------------------------------ uncertainty

    @property
    def residual_dof(self) -> float | None:
        """Rows minus coefficients of a linear model, whose tests and intervals are of Student's t; None for others."""
        left = float(self.weight.sum()) - (self.jacobian.shape[1] - len(self.labels) + len(self.terms))
        return left if getattr(self.model, "linear", False) and left > 0 else None

    def covariance(self, kind: str = "information", groups: Any = None) -> np.ndarray:
        """Covariance of the natural values, in the order of `labels`; NaN for terms that columns do not determine.

        Args:
            kind: ``"information"`` inverts the observed information of the evidence (for the coefficients of least squares
                with rows minus coefficients in the denominator, as textbooks have it); ``"sandwich"`` is also right when the
                model is not, as far as the estimates still mean something; ``"cluster"`` besides when the rows of a group
                depend on each other; ``"jackknife"`` too, by leaving out one group of a regression's rows after the other: larger,
                and to be preferred below a hundred groups.
            groups: for ``"cluster"`` and ``"jackknife"``, the group of each row.
        """
        found = self.jacobian @ self.free_covariance(kind, groups) @ self.jacobian.T
        if kind == "information" and self.residual_dof is not None and getattr(self.model, "least_squares", False):
            size = len(self.terms)
            found[:size, :size] *= float(self.weight.sum()) / self.residual_dof
        if self.aliased is not None:
            lost = np.flatnonzero(self.aliased)
            found[lost, :] = found[:, lost] = np.nan
        return found

    def free_covariance(self, kind: str = "information", groups: Any = None) -> np.ndarray:
        """Covariance of the vector, on scales without walls."""
        est.check_kind(kind, groups)
        bread = self._inverse_information
        if kind == "information" or not bread.size:
            return bread
        if kind == "sandwich" and "scored" not in self.saved:
            return bread @ self.need_source("scores").meat(self.weight) @ bread
        if kind == "jackknife":
            return est.jackknife(self.need_source("this covariance").moves_without(self._group_of_rows(groups)))
        scores = self.saved["scored"] if "scored" in self.saved else self.need_source("scores").scores()
        if kind == "cluster":
            return est.by_clusters(bread, scores, self.weight, self._group_of_rows(groups))
        return est.sandwich(bread, scores, self.weight)

    def _group_of_rows(self, groups: Any) -> np.ndarray:
        """A number for the group of every row; groups may be of all rows that came, dropped ones included."""
        came, used = np.asarray(groups), len(self.weight)
        if len(came) == used + len(self.row_labels.dropped):
            came = came[self.row_labels.places(np.arange(used))]
        if came.shape != (used,):
            raise DataError(f"groups have shape {came.shape}, but there are {used} rows. Give the group of each row.")
        import pandas as pd

        if pd.isna(came).any():
            raise DataError(
                f"groups lack a value in row {int(np.flatnonzero(pd.isna(came))[0])}. Name every row's group."
            )
        codes = np.unique(came.astype(str) if came.dtype == object else came, return_inverse=True)[1]
        if codes.max() < 1:
            raise DataError("groups hold one group only; two or more are needed, and some thirty to be relied on.")
        return codes

    @cached_property
    def curve_at_estimate(self) -> np.ndarray:
        """`curve`, which may be that of one negligible step before, looked at again where rows are few and cheap."""
        return self.curve if self.source is None else self.source.curve(self.curve)

    @cached_property
    def _inverse_information(self) -> np.ndarray:
        return est.inverse_information(self.curve_at_estimate, self.vector_labels or self.labels)

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

    def confint(
        self, level: float = 0.95, kind: str = "information", groups: Any = None
    ) -> dict[str, tuple[float, float]]:
        """Intervals for every natural value and its other names, by label.

        Args:
            level: the probability of an interval, such as 0.95.
            kind: ``"information"``, ``"sandwich"``, or with `groups` ``"cluster"`` or ``"jackknife"``, as in :meth:`covariance`;
                ``"profile"`` takes the values whose likelihood, at its best over all else, is not too low: slower, and right
                where likelihoods are skew (a spread near 0, degrees of freedom).
            groups: for ``"cluster"`` and ``"jackknife"``, the group of each row.

        Constrained values (a scale, a probability) get theirs on the unconstrained scale, so they stay inside it. An
        estimate on the edge of what is possible (a rate of 0) gets the values whose likelihood is at least 1 − level of
        the best. A regression's spread, share of wrong labels or degrees of freedom whose standard error is more than a
        tenth of it, or which is at its limit, gets the interval of its profile, which may hold that limit.
        """
        check_level(level)
        limits = getattr(self.model, "edges", {})
        # Where columns reproduce the responses, there is no likelihood to profile.
        known = self.source is not None and self.outcome.kind != "perfect_fit"
        at_limit = [name for name in limits if name not in self.labels] if known else []
        if kind == "profile":
            return {name: self.profile_interval(name, level) for name in [*self.labels, *at_limit]}
        if known and kind == "information" and self.outcome.converged and not self.unit:
            # Far from 0 (from infinity, of degrees of freedom) the likelihood is that of a normal on the log scale. Nearer it
            # is skew, and no interval on that scale holds the limit: the profile's does where it is not ruled out.
            found = dict(zip(self.labels, zip(self.estimates, est.deviations(self.covariance()))))
            at_limit += [
                name for name in limits if name in found and not found[name][1] <= FAR_FROM_LIMIT * found[name][0]
            ]
        return {
            **self.wald_intervals(level, kind, groups),
            **{name: self.profile_interval(name, level) for name in at_limit},
        }

    def wald_intervals(
        self, level: float, kind: str = "information", groups: Any = None
    ) -> dict[str, tuple[float, float]]:
        """:meth:`confint` without what takes fits of its own: numbers that ran to their limit."""
        from scipy.stats import t

        wider = t.ppf(0.5 + level / 2, self.reference_dof(kind, groups)) * [
            self.widening(label, kind) for label in self.labels
        ]
        wide, plain = dict(zip(self.labels, wider)), float(t.ppf(0.5 + level / 2, np.inf))
        errors = est.deviations(self.covariance(kind, groups))
        parts = [*zip(self.labels, self.estimates, errors, self.scales, strict=True)]
        if self.derived_jacobian is not None:
            free, jacobian = self.free_covariance(kind, groups), self.derived_jacobian
            errors = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", jacobian, free, jacobian), 0.0))
            more = zip(est.labels_of(self.derived), est.flat(self.derived), errors, strict=True)
            scale = lambda label: self.derived_scales.get(label.split("[")[0], "log")
            parts += [(label, value, se, scale(label)) for label, value, se in more if label not in self.labels]
        found = {
            label: est.interval(float(value), float(wide.get(label, plain)) * float(se), scale)
            for label, value, se, scale in parts
        }
        for name in self.edges:
            found[name] = self.need_source("this interval").edge_interval(name, level)
        return found

    def widening(self, label: str, kind: str = "information") -> float:
        """By how much a coefficient's standard error is too small in few rows: maximum likelihood divides by their number.

        By groups less coefficients where it differs by group. Of measurements with a fitted scale and tails by rows less all
        fitted numbers: 30 rows of 4 degrees of freedom cover .92 to .95 so, .89 to .93 without.
        """
        if label in self.freedom:
            return float(np.sqrt(len(self.weight) / self.freedom[label]))
        exact = getattr(self.model, "least_squares", False) or kind in est.BY_GROUP
        if self.residual_dof is None or exact or label not in self.terms:
            return 1.0
        rows = float(self.weight.sum())
        return float(np.sqrt(rows / max(rows - self.jacobian.shape[1], 1.0)))

    def reference_dof(self, kind: str = "information", groups: Any = None) -> np.ndarray:
        """Degrees of freedom of the t laws that the estimates are held against, in the order of `labels`: infinite is a normal."""
        found = np.full(len(self.labels), np.inf)
        if kind in est.BY_GROUP:
            found[: len(self.terms)] = float(self._group_of_rows(groups).max())
        elif self.freedom:
            found[:] = [self.freedom.get(label, np.inf) for label in self.labels]
        elif self.residual_dof is not None:
            found[: len(self.terms)] = self.residual_dof
        return found

    def profile_interval(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """The values of an estimate at which the log likelihood, at its best over all else, is less than ½ χ² below its top."""
        check_level(level)
        return self.need_source("a profile interval").profile_interval(name, level)

    # ------------------------------------------------------------------ tests, and names from elsewhere

    def test(self, hypothesis: Any, kind: str = "information", groups: Any = None) -> TestResult:
        """Test linear hypotheses about the estimates, by name: ``fit.test("x1 = x2")``, ``fit.test(["x1 = 0", "x2 = 0"])``.

        Args:
            hypothesis: a text or several (tested together), or a matrix R with a column an estimate for R·estimates = 0; a
                pair (R, r) for R·estimates = r. ``"spread = 0"``, ``"flip = 0"`` and ``"dof = inf"`` ask whether rows differ
                at all: the hypothesis lies on the edge, so it is tested by likelihood ratio.
            kind, groups: as in :meth:`covariance`.

        A Wald test: F for linear models, chi-squared for others.
        """
        edge = re.fullmatch(r"\s*(\w+)\s*==?\s*(0|0\.0|inf)\s*", hypothesis) if isinstance(hypothesis, str) else None
        limits = getattr(self.model, "edges", {})
        if edge is not None and edge[1] in limits and float(edge[2]) == limits[edge[1]]:
            return self.need_source("this test").edge_test(hypothesis.strip())
        restrictions, right, shown = read_hypotheses(hypothesis, self.labels)
        wider = np.array([self.widening(label, kind) for label in self.labels])
        covariance = np.nan_to_num(self.covariance(kind, groups), nan=0.0) * np.outer(wider, wider)
        if self.aliased is not None and restrictions[:, : len(self.terms)][:, self.aliased].any():
            raise ModelError(f"{shown} names terms that the columns do not determine. Drop a column, or set alpha.")
        involved = self.reference_dof(kind, groups)[restrictions.any(axis=0)]
        dof = float(involved.min()) if np.isfinite(involved).all() else None
        return wald(shown, restrictions @ self.estimates - right, restrictions @ covariance @ restrictions.T, dof)

    def test_terms(self, kind: str = "information", groups: Any = None) -> pd.DataFrame:
        """A Wald test of each term of a regression: that all of its columns have coefficient 0."""
        import pandas as pd

        self._of_regressions("test_terms")
        lines = {}
        for term, columns in self.model.columns_by_term().items():  # type: ignore[attr-defined]
            if self.aliased is not None and self.aliased[columns].any():
                continue
            found = self.test(np.eye(len(self.labels))[columns], kind, groups)
            lines[term] = [found.statistic, found.df, found.pvalue]
        name = "F" if np.isfinite(self.reference_dof(kind, groups)).any() else "chi2"
        return pd.DataFrame.from_dict(lines, orient="index", columns=[name, "df", "p"]).rename_axis("term")

    @property
    def params(self) -> pd.Series:
        """Estimates by label, under statsmodels' name: a regression's coefficients, or all numbers."""
        import pandas as pd

        return self.coefficients if self.terms else pd.Series(self.estimates, index=self.labels)

    @property
    def bse(self) -> pd.Series:
        """`standard_errors`, under statsmodels' name."""
        import pandas as pd

        return pd.Series(self.standard_errors.to_numpy(), index=self.params.index)

    @property
    def tvalues(self) -> pd.Series:
        """Estimates in standard errors."""
        return self.params / self.bse

    @property
    def pvalues(self) -> pd.Series:
        """Two-sided p-values of each being 0: by Student's t for linear models, else by the normal law."""
        import pandas as pd
        from scipy.stats import t

        away = np.abs(self.tvalues)
        return pd.Series(2.0 * t.sf(away, self.reference_dof()[: len(away)]), index=away.index)

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """`confint` as statsmodels gives it: lower and upper ends in columns 0 and 1, for coverage 1 − `alpha`."""
        import pandas as pd

        check_level(alpha)
        ends = self.wald_intervals(1.0 - alpha)
        return pd.DataFrame([ends[label] for label in self.params.index], index=self.params.index)

    @property
    def fittedvalues(self) -> np.ndarray:
        """The expected response of every fitted row."""
        return self.need_source("fittedvalues").fitted_mean()

    def residuals(self, kind: str = "quantile", *, seed: int = 0) -> np.ndarray:
        """How far each fitted row is from what was expected of it.

        Args:
            kind: ``"quantile"`` (Dunn & Smyth 1996), normal if the model holds, whatever the family; ``"response"``;
                ``"pearson"``, in standard deviations of the row's predictive law; ``"deviance"``, of the family at the mean.
            seed: counts have no single quantile: one is drawn between those before and at the count.
        """
        return self.need_source("residuals").residuals(kind, seed)

    def sample_posterior(self, num_samples: int, key: Any, *, num_warmup: int = 100, num_chains: int = 1) -> Draws:
        """Draws of hyperparameters and shared values from their posterior, every row's own value integrated out.

        A Metropolis chain with independent proposals around the estimate, in a fraction of NUTS's time, where the
        posterior is close enough to normal for it; NUTS, with `num_warmup` steps to find its stride, where it is not.
        Of a fit that ended at its boundary the classical model is drawn from: a number at its limit is not among the draws.

        Args:
            num_samples: draws in each chain.
            key: a seed, or a JAX key.
            num_warmup: steps by which NUTS adapts; the Metropolis chain needs none.
            num_chains: independent chains, for r̂ and ArviZ.
        """
        source = self.need_source("sample_posterior")
        return source.sample_posterior(num_samples, jax_key(key), num_warmup, num_chains)

    # ------------------------------------------------------------------ rows

    @property
    def surprise(self) -> np.ndarray:
        """Minus the log predictive density of every row: large for rows that do not belong."""
        return -self.evidence

    def outliers(self, fdr: float | None = None, level: float | str | None = None) -> np.ndarray:
        """Rows that do not belong, most surprising first: their labels where the data had an index, else their places.

        ``data.loc[fit.outliers()]`` shows them. Of rows on a Dask cluster this is a Dask array, in the order of the rows. Of a regression with groups, these are the labels of groups, and with
        ``level="row"`` the places of rows.

        Args:
            fdr: the share of rows on the list that may be there by chance; 0.05 unless told.
            level: instead of `fdr`, list every row whose tail probability is below this; or ``"row"``, ``"group"``.

        Among the rows returned, about a share `fdr` (0.05 unless told) belongs in truth: to the *core* law that most rows
        follow. The core and a wide part for rows that strayed are fitted beside the law of this fit, from starts that
        outliers do not move, and weighed by their evidence; see `judgement` for which law judged, and
        :mod:`robustly.result.outliers` for the rule. A :class:`~robustly.errors.HeavyTailsWarning` says where a core with heavy
        tails would explain the rows listed about as well. With `level` instead, each row is judged alone by its
        `tail_probabilities`.
        """
        places = self.outlier_places(fdr, level)
        if level is None and len(places) and self.judgement.doubt:
            warnings.warn(self.judgement.doubt, HeavyTailsWarning, stacklevel=2)
        return places if self.unit and level == "row" else self.row_labels.of(places)

    def outlier_places(self, fdr: float | None = None, level: float | str | None = None) -> np.ndarray:
        """As :meth:`outliers`, counted from 0 in the rows that were fitted, whatever they are called."""
        if isinstance(level, str):
            if level not in ("row", "group"):
                raise ModelError(f'level takes a probability, "row" or "group"; got {level!r}.')
            if level == "row" and self.unit:
                judged = self.need_source("outliers of rows").judge_rows()
                return judged.listed(-judged.belonging, fdr)
            if level == "group" and not self.unit:
                raise ModelError('this model has no groups; outliers(level="row") are its rows.')
            level = None
        if level is not None:
            found = by_tails(self.tail_probabilities, self.outlier_rule).listed(self.surprise, fdr, level)
        else:
            found = self.judgement.listed(self.surprise, fdr)
        is_brought = isinstance(found, np.ndarray) and not isinstance(self.surprise, np.ndarray)
        return by_partition(found, self.surprise) if is_brought else found

    @property
    def outlier_probability(self) -> np.ndarray:
        """For every row, the probability that it does not belong: that it comes from a wide part and not from the core."""
        found = self.judgement.probability
        if found is None:
            raise ModelError(
                "this model has no law for rows that do not belong, so there is no such probability by row. "
                "outliers() judges its rows by their tail_probabilities."
            )
        return found

    @cached_property
    def judgement(self) -> Judgement:
        """Which law judged the rows, what it says of each, and how sure the choice of the law is."""
        if "judgement" in self.saved:
            return self.saved["judgement"]
        found = None if self.source is None else self.source.judge()
        return by_tails(self.tail_probabilities, self.outlier_rule) if found is None else found

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
        found = self.model.predictive(args, kwargs)
        of_fit = getattr(found, "of_fit", None)
        return found if of_fit is None else of_fit(self)

    def need_source(self, what: str) -> Source:
        """The rows, or an error that says what they are needed for."""
        if self.source is None:
            raise FitError(
                f"{what} needs the rows this fit was made with, and its file does not keep them. Fit them again, or keep "
                "the fit in memory."
            )
        return self.source

    # ------------------------------------------------------------------ telling

    def summary(self, kind: str = "information", groups: Any = None) -> Summary:
        """A table of estimates with standard errors and intervals, and how the fit ended; prints as text or HTML.

        `kind` and `groups` are those of :meth:`covariance`.
        """
        from robustly.result.summary import summarize

        return summarize(self, kind, groups)

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

    def plot_effects(self, fdr: float = 0.05) -> Any:
        """Groups' effects in order, with 95 % posterior intervals; groups that do not belong are marked. Returns the figure."""
        return view("plot_effects")(self, fdr)

    def plot_rows(self, fdr: float = 0.05) -> Any:
        """How improbable every row is, with the rows that do not belong marked. Returns the figure."""
        self._of_regressions("plot_rows")
        return view("plot_rows")(self, self.outlier_places(fdr=fdr))

    def plot_prior(self) -> Any:
        """The fitted law of the rows' own values, and where the rows were found. Returns the figure."""
        self._of_regressions("plot_prior")
        return view("plot_prior")(self)

    def plot_pit(self) -> Any:
        """The histogram of the probability integral transform, flat where predictions are calibrated. Returns the figure."""
        self._of_regressions("plot_pit")
        return view("plot_pit")({self._kind: self})

    def report(
        self, path: str | os.PathLike[str], *, title: str = "A robust regression", data: Any = None
    ) -> os.PathLike[str] | None:
        """Write one self-contained HTML page: this fit beside the classical one, rows that do not belong, checks.

        `data` is a frame whose columns are shown beside the rows. A time series has a page of its own.
        """
        own = getattr(self.model, "page", None)
        if own is not None:
            return view(own)(self, path)  # type: ignore[no-any-return]
        self._of_regressions("a report")
        self.need_source("a report")
        if self.unit:
            view("group_report")(self, path, title=title)
            return None
        view("report")(self, path, title=title, data=data)
        return None

    def to_arviz(
        self, draws: Mapping[str, Any] | None = None, *, num_samples: int = 500, num_chains: int = 4, seed: int = 0
    ) -> Any:
        """Posterior draws for ArviZ, the integrated log likelihood of every row at each of them, and what was observed.

        An ``InferenceData``, or with ArviZ 1 and later the ``DataTree`` that took its place: ``az.loo``, ``az.summary`` and
        ``az.compare`` take it. Regressions have replicated responses besides, for ``az.plot_ppc`` (in
        ArviZ 1 ``az.plot_ppc_dist``) and ``az.plot_loo_pit``.

        Args:
            draws: what :meth:`sample_posterior` gave; None draws here.
            num_samples, num_chains, seed: draws in each chain, how many chains, and where they begin.
        """
        from robustly.result.arviz import to_inference_data

        return to_inference_data(self, draws, num_samples, num_chains, seed)

    def to_marginaleffects(self, data: Any) -> Any:
        """This regression as the package ``marginaleffects`` takes models: for its predictions, comparisons and slopes.

        Args:
            data: the frame it was fitted to.

        ``marginaleffects.avg_slopes(fit.to_marginaleffects(data))``. All estimates are passed on, the spread included, so
        that standard errors of a robust mean are whole.
        """
        self._of_regressions("to_marginaleffects")
        return self.model.for_marginaleffects(self, data)  # type: ignore[attr-defined]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers of the fit to one file; read it with ``rb.load``."""
        from robustly.result.saved import to_saved

        persist.write(path, self.model.kind, *to_saved(self))
