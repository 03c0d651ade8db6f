"""How sure are the estimates? Covariances, intervals, tests, profiles, draws, and statsmodels' names for them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly._runtime.random_keys import jax_key
from robustly.errors import DataError, ModelError
from robustly.result import estimates as est
from robustly.result.fitted_numbers import FittedNumbers
from robustly.result.hypotheses import TestResult, read_hypotheses, wald
from robustly.result.levels import check_level

if TYPE_CHECKING:
    import pandas as pd

    from robustly.fit.draws import Draws
    from robustly.result.labelled import StandardErrors

# The standard error of a number over the number, up to which its likelihood is near enough that of a normal on the log scale.
FAR_FROM_LIMIT = 0.1


class InferenceQuestions(FittedNumbers):
    """What a :class:`~robustly.result.fit.Fit` says of the uncertainty of its estimates."""

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
        return np.asarray(self.curve if self.source is None else self.source.curve(self.curve))

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
        # What was held at another value has no interval.
        ended = lambda name: name not in self.labels and self.derived.get(name) in (None, limits[name])
        at_limit = [name for name in limits if ended(name)] if known else []
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
        from scipy.special import stdtrit

        wider = stdtrit(self.reference_dof(kind, groups), 0.5 + level / 2) * [
            self.widening(label, kind) for label in self.labels
        ]
        wide, plain = dict(zip(self.labels, wider)), float(stdtrit(np.inf, 0.5 + level / 2))
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
        """The values of an estimate at which the log likelihood, at its best over all else, is less than ½ χ² below its top.

        Of a number near its limit (a spread near 0) twice the log likelihood ratio follows a mixture of 0 and a χ² law (χ̄²), whose
        quantile takes the place of the χ² one's: the interval holds the limit where the likelihood-ratio test does not refuse it.
        """
        check_level(level)
        return self.need_source("a profile interval").profile_interval(name, level)

    def profile_spread(self, values: Sequence[float] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)) -> pd.DataFrame:
        """The best log likelihood at given spreads: flat where the data say nothing about it."""
        return self.need_source("a profile").profile(values)

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
        from scipy.special import stdtr

        away = np.abs(self.tvalues)
        return pd.Series(2.0 * stdtr(self.reference_dof()[: len(away)], -away), index=away.index)

    def conf_int(self, alpha: float = 0.05) -> pd.DataFrame:
        """`confint` as statsmodels gives it: lower and upper ends in columns 0 and 1, for coverage 1 − `alpha`."""
        import pandas as pd

        check_level(alpha)
        ends = self.wald_intervals(1.0 - alpha)
        return pd.DataFrame([ends[label] for label in self.params.index], index=self.params.index)

    # ------------------------------------------------------------------ draws

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
