"""What does a fit say of the rows and groups it was made with? Their density, influence, tails, posteriors; which do not belong."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly.errors import HeavyTailsWarning, ModelError, names
from robustly.result.fitted_numbers import FittedNumbers
from robustly.result.laws import ByRow
from robustly.result.outliers import ByPlace, Judgement, by_partition, by_tails

if TYPE_CHECKING:
    import pandas as pd


class RowQuestions(FittedNumbers):
    """What a :class:`~robustly.result.fit.Fit` says of its rows, and of its groups where a unit is one."""

    # ------------------------------------------------------------------ how well rows are described

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

    # ------------------------------------------------------------------ rows that do not belong, and rows' own values

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
        judged = self.judgement if level is None else by_tails(self.tail_probabilities, self.outlier_rule)
        surprise = self._surprise_by_place
        found = judged.listed(surprise, fdr, level)
        is_brought = isinstance(found, np.ndarray) and not (callable(surprise) or isinstance(surprise, np.ndarray))
        return by_partition(found, surprise) if is_brought else found

    @property
    def _surprise_by_place(self) -> np.ndarray | ByPlace:
        """That of all rows where it is known, or else what gives that of some: few rows are ever compared."""
        source = self.source
        is_known = self.evidence_by_row is not None or "evidence" in vars(self)
        if is_known or source is None or not source.takes_rows:
            return self.surprise
        return lambda places: -source.evidence_of(places)

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

    # ------------------------------------------------------------------ groups

    @cached_property
    def variance_components(self) -> pd.DataFrame:
        """Standard deviations of groups' effects by group and term, with 95 % profile intervals, tests and correlations.

        Estimates are by maximum likelihood, intervals by restricted likelihood, which knows that coefficients were fitted.

        Of effects that are not normal the interval is that of `scale`: `scale low`, `scale high`. `p` is that of the likelihood ratio without
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
