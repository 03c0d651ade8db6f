"""What did a generalized linear model find? Coefficients by name, their uncertainty, rows that do not belong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError, PersistError
from robustly.glm.climb import Found, Plan, attenuation
from robustly.glm.evidence import HALF_LINE
from robustly.glm.local import LocalLabel, LocalPredictor, Noiseless, Shifted, law_of
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.glm.source import LEVELS, GLMSource, alone_in, fitted_of
from robustly.result import persist
from robustly.result.fit import Fit, RowPosterior
from robustly.result.outliers import benjamini_hochberg


@dataclass(eq=False)
class GLMFit(Fit):
    """A fitted generalized linear model, robust or classical.

    `coefficients` and `standard_errors` are by term, the intercept first; `spread`, `dof`, `scale` and `flip` hold what
    the rows' own values are distributed by, and None where the model has no such number.
    """

    fitted: Fitted = field(default=None, repr=False)  # type: ignore[assignment]
    terms: list[str] = field(default_factory=list)
    asked: dict[str, Any] = field(default_factory=dict)
    """What the user asked for: local, prior; at a boundary the fitted law is the classical one instead."""
    aliased: Any = field(default=None, repr=False)
    alone: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=int), repr=False)
    """Rows that hold a coefficient alone: nothing is left to predict them by, so LOO has them as they are in the fit."""
    formula: Any = field(default=None, repr=False)
    by_formula: bool = False

    # ------------------------------------------------------------------ estimates

    @cached_property
    def coefficients(self) -> pd.Series:
        """Intercept and slopes by term."""
        return pd.Series(self.fitted.coefficients, index=self.terms, name="coefficient")

    @cached_property
    def standard_errors(self) -> pd.Series:  # type: ignore[override]
        """Standard errors of the coefficients, from the observed information of the integrated likelihood."""
        return self._errors("information")

    def _errors(self, kind: str) -> pd.Series:
        variance = np.diag(self.covariance(kind))[: len(self.terms)]
        return pd.Series(np.sqrt(np.maximum(variance, 0.0)), index=self.terms, name="standard error")

    @property
    def shared(self) -> dict[str, float]:  # type: ignore[override]
        """What all rows have in common besides coefficients: spread, scale, dof, shape …"""
        return self.fitted.shared

    @property
    def hyperparameters(self) -> dict[str, dict[str, Any]]:  # type: ignore[override]
        local = self.fitted.law.local
        return {} if local is None else {local: self.shared}

    @property
    def spread(self) -> float | None:
        """Scale of the rows' own values; 0 when the classical model was the answer."""
        if self.outcome.kind == "boundary" and "spread" in self._asked_names:
            return 0.0
        return self.shared.get("spread")

    @property
    def dof(self) -> float | None:
        """Degrees of freedom of a Student-t law; infinite when the normal was the answer."""
        if self.outcome.kind in ("boundary", "perfect_fit") and "dof" in self._asked_names:
            return np.inf
        return self.shared.get("dof")

    @property
    def scale(self) -> float | None:
        """Scale of the noise of measured responses; 0 when rows' own predictors take up all of it."""
        if isinstance(self.fitted.law, Noiseless):
            return 0.0
        return self.shared.get("scale")

    @property
    def flip(self) -> float | None:
        """The share of wrong labels."""
        if self.outcome.kind == "boundary" and "flip" in self._asked_names:
            return 0.0
        return self.shared.get("flip")

    @property
    def _asked_names(self) -> tuple[str, ...]:
        return law_of(self.fitted.family, self.asked.get("local"), self.asked.get("prior", "normal")).names

    @property
    def attenuated_coefficients(self) -> pd.Series:
        r"""Coefficients as they show in marginal log odds: :math:`w / \sqrt{1 + (\mathrm{spread}/1.7)^2}`."""
        return self.coefficients / (attenuation(np.log(self.spread))[0] if self.spread else 1.0)

    # ------------------------------------------------------------------ uncertainty

    def covariance(self, kind: str = "information") -> np.ndarray:
        """Covariance of coefficients and shared numbers, in the order of `labels`; NaN where columns are not unique.

        ``"information"`` inverts the observed information of the integrated likelihood; ``"sandwich"`` stays right when
        the model is not, as far as the estimates still mean something.
        """
        found = super().covariance(kind)
        if self.aliased is not None and self.aliased.any():
            lost = np.flatnonzero(self.aliased)
            found[lost, :] = np.nan
            found[:, lost] = np.nan
        return found

    def confint(self, level: float = 0.95, kind: str = "information") -> dict[str, tuple[float, float]]:
        """Intervals by label; shared numbers get theirs on the scale on which they are free, so they stay in their range."""
        from scipy.stats import norm

        reach = norm.ppf(0.5 + level / 2)
        error = np.sqrt(np.maximum(np.diag(self.covariance(kind)), 0.0))
        found = {}
        for place, (label, value) in enumerate(zip(self.labels, self._values)):
            half = reach * error[place]
            if place < len(self.terms) or value <= 0:
                found[label] = (float(value - half), float(value + half))
            else:
                name, law = label.removesuffix(" (shared)"), self.fitted.law
                centre = law.free(name, value)
                wide = min(half / law.slope(name, centre), 700.0 - abs(centre))
                found[label] = (float(law.natural(name, centre - wide)), float(law.natural(name, centre + wide)))
        return found

    @property
    def _values(self) -> np.ndarray:
        return np.array([float(v) for v in self.parameters.values()])

    # ------------------------------------------------------------------ rows

    @cached_property
    def loo(self) -> float:
        """Expected log predictive density of a new row, times the rows: each row predicted by all others.

        One Newton step from the fit to that without the row (for the 30 heaviest rows all steps), and the row's
        integrated likelihood there, never the conditional one, which knows the row's own value. Rows in `alone` cannot
        be predicted by the others and count at their density in the fit.
        """
        return float(self.weight @ self.loo_by_row)

    @cached_property
    def loo_by_row(self) -> np.ndarray:
        return self.saved["loo_by_row"] if "loo_by_row" in self.saved else self._need("loo").loo()  # type: ignore[attr-defined]

    @cached_property
    def influence(self) -> np.ndarray:
        """How far each row moves the coefficients, in units of their covariance (Cook's distance, one Newton step)."""
        return self._need("influence").influence()  # type: ignore[attr-defined]

    @property
    def pit(self) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y ≤ y) of every row: the probability integral transform, an interval where responses are counts.

        If the model holds, values drawn evenly between the two are uniform over the rows.
        """
        return self._need("pit").cumulative  # type: ignore[attr-defined]

    def outliers(self, fdr: float | None = None, level: float | None = None) -> np.ndarray:
        """Rows that do not belong, most surprising first.

        Rows with predictors of their own are judged by their integrated predictive distribution. Rows with precisions
        of their own (Student-t) are judged by the *core*, a normal with the fitted scale: under the heavy-tailed law
        itself hardly anything is surprising, which is what made the fit robust. With wrong labels the rows are those
        that were flipped with probability 1 − `fdr` or more.
        """
        tail = self.tail_probabilities
        if level is not None:
            chosen = np.flatnonzero(tail < level)
        elif isinstance(self.fitted.law, LocalLabel):
            chosen = np.flatnonzero(tail <= (0.05 if fdr is None else fdr))
        else:
            chosen = benjamini_hochberg(tail, 0.05 if fdr is None else fdr)
        return chosen[np.lexsort((-self.surprise[chosen], tail[chosen]))]

    def posterior(self, site: str | None = None) -> Any:
        """What is believed of each row's own value: ``mean``, ``sd``, ``quantile(level)``, arrays by row."""
        if isinstance(self.fitted.law, Noiseless):
            y = np.asarray(self._need("posterior").design.y)  # type: ignore[attr-defined]
            return RowPosterior(y, np.zeros(len(y)), LEVELS, np.repeat(y[:, None], len(LEVELS), axis=1))
        if self.fitted.law.closed:
            raise ModelError("this fit has no own value by row that was integrated by points; see shared and surprise.")
        return self._need("posterior").posterior("")

    @property
    def shifts(self) -> np.ndarray:
        """With ``solver="map"``: by how much each row is shifted, most of them by exactly nothing."""
        if not isinstance(self.fitted.law, Shifted):
            raise ModelError('shifts exist only after solver="map" with prior="laplace".')
        return self._need("shifts").shifts()  # type: ignore[attr-defined]

    def profile_spread(self, values: Sequence[float] = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)) -> pd.DataFrame:
        """The best log likelihood at given spreads: flat where the data say nothing about it."""
        return self._need("a profile").profile(values)  # type: ignore[attr-defined]

    # ------------------------------------------------------------------ predicting and telling

    def predictive(self, X: Any, *, offset: Any = None, exposure: Any = None, trials: Any = None) -> GLMPredictive:  # type: ignore[override]
        """The integrated predictive distribution of new rows: a matrix of columns, or a data frame for a formula.

        Offset, exposure and trials that were named as columns when the formula was fitted are read from the new rows.
        """
        from robustly.rows.frames import read_offset

        if self.formula is None and self.by_formula:
            raise PersistError(
                "the formula of this fit holds code or values that are not kept in files, so columns of new rows cannot be "
                "made. Fit it again from the formula, or write it with functions of columns only."
            )
        if self.formula is not None:
            offset, exposure, trials = (
                self.formula.given_of(X, label) if given is None else given
                for label, given in (("offset", offset), ("exposure", exposure), ("trials", trials))
            )
            X, more = self.formula.matrix_of(X)
            offset = more if offset is None else more + np.asarray(offset, dtype=float)
        matrix = X if not isinstance(X, pd.DataFrame) else X.to_numpy(dtype=float)
        matrix = np.asarray(matrix, dtype=float) if not hasattr(matrix, "tocsr") else matrix
        wanted = len(self.terms) - int(self.fitted.intercept)
        if matrix.ndim != 2 or matrix.shape[1] != wanted:
            raise DataError(f"the model was fitted with {wanted} columns; an array of shape {matrix.shape} came.")
        m = self.fitted.predictor(matrix, read_offset(offset, exposure, matrix.shape[0]))
        counted = None if trials is None else np.broadcast_to(np.asarray(trials, dtype=float), m.shape)
        return GLMPredictive(self.fitted, m, counted)

    def plot_coefficients(self, **others: Any) -> Any:
        """Coefficients with 95 % intervals, beside those of `others` fitted to the same rows. Returns the figure."""
        from robustly.report.plots import plot_coefficients

        own = "classical" if self.asked.get("local") is None else "robust"
        return plot_coefficients({own: self, **{name: getattr(fit, "result_", fit) for name, fit in others.items()}})

    def plot_rows(self, fdr: float = 0.05) -> Any:
        """How improbable every row is, with the rows that do not belong marked. Returns the figure."""
        from robustly.report.plots import plot_rows

        return plot_rows(self, self.outliers(fdr=fdr))

    def plot_prior(self) -> Any:
        """The fitted law of the rows' own values, and where the rows were found. Returns the figure."""
        from robustly.report.plots import plot_prior

        return plot_prior(self)

    def plot_pit(self) -> Any:
        """The histogram of the probability integral transform, flat where predictions are calibrated. Returns the figure."""
        from robustly.report.plots import plot_pit

        return plot_pit({"classical" if self.asked.get("local") is None else "robust": self})

    def report(self, path: str | os.PathLike[str], *, title: str = "A robust regression", data: Any = None) -> None:
        """Write one self-contained HTML page: this fit beside the classical one, rows that do not belong, checks.

        `data` is a frame whose columns are shown beside the rows.
        """
        from robustly.glm.columns import as_pandas
        from robustly.glm.fit import fit_glm
        from robustly.report.findings import Findings
        from robustly.report.regression import regression_page, write_page

        source: Any = self._need("a report")
        classical = self
        if self.asked.get("local") is not None:
            classical = fit_glm(source.design, self.fitted.family, local=None, formula=self.formula)
        found = Findings(self, classical, frame=None if data is None else as_pandas(data))
        write_page(path, regression_page(found, title=title, formula=getattr(self.formula, "text", "")))

    def summary(self, kind: str = "information") -> Any:
        """Estimates with standard errors, z, p and 95 % intervals; text, HTML, and ``.frame`` is the data."""
        from robustly.glm.summary import summarize_glm

        return summarize_glm(self, kind)

    def __repr__(self) -> str:
        what = self.asked.get("local") or "classical"
        return (
            f"<GLMFit {self.fitted.family}, {what}, {len(self.weight)} rows, "
            f"log likelihood {self.log_likelihood:.4f}, {self.outcome.kind}>"
        )

    # ------------------------------------------------------------------ keeping

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers of the fit to one file; read it with ``rb.load``."""
        from robustly.glm.keeping import to_saved

        persist.write(path, "glm", *to_saved(self))


def make_fit(
    found: Found, asked: Plan, local: str | None, prior: str, notes: Sequence[str] = (), formula: Any = None
) -> GLMFit:
    """A result from what a search found."""
    design, law = found.design, found.plan.law
    fitted = fitted_of(found)
    source = GLMSource(found, asked)
    free = [law.names[i] for i in source.climb.free]
    size = len(fitted.coefficients)
    jacobian = np.zeros((size + len(free), design.size + len(free)))
    jacobian[:size, : design.size] = design.to_coefficients
    for place, index in enumerate(source.climb.free):
        jacobian[size + place, design.size + place] = law.slope(law.names[index], found.phi[index])
    if law.closed:
        how = "closed form"
    else:
        how = "Laplace's approximation" if found.nodes == 0 else f"quadrature with {found.nodes} points a row"
        if isinstance(law, LocalPredictor) and law.prior != "normal" and found.nodes:
            how = f"quadrature with {4 * max(HALF_LINE, found.nodes)} points a row"
    alone = alone_in(found)
    values = [*fitted.coefficients, *(fitted.shared[name] for name in free)]
    labels = [*design.terms, *(f"{name} (shared)" if name in design.terms else name for name in free)]
    return GLMFit(
        parameters=dict(zip(labels, values)),
        labels=labels,
        vector=found.optimum.vector,
        jacobian=jacobian,
        curve=found.optimum.curve,
        objective=found.optimum.value,
        evidence_by_row=None,
        summed_evidence=found.log_likelihood,
        weight=design.rows.weight,
        outcome=found.outcome,
        history=found.optimum.history,
        approximation=how,
        notes=(*design.notes, *notes, *found.notes, *_alone_note(design, alone)),
        source=source,  # type: ignore[arg-type]
        fitted=fitted,
        terms=design.terms,
        asked={"local": local, "prior": prior},
        aliased=design.aliased,
        alone=alone,
        formula=formula,
        by_formula=formula is not None,
    )


def _alone_note(design: Any, alone: np.ndarray) -> tuple[str, ...]:
    if not len(alone):
        return ()
    shown = ", ".join(f"{row} ({' and '.join(design.held_by(int(row))[:2])})" for row in alone[:5])
    more = f" and {len(alone) - 5} more" if len(alone) > 5 else ""
    return (
        f"these rows hold a coefficient alone: {shown}{more}. Without them it is not determined, so no other row predicts "
        "them: LOO counts them at their density in the fit.",
    )
