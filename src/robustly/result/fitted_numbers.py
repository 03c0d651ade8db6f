"""What numbers does every fit have? Estimates by name, how well they describe the rows, and what else is kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly.errors import FitError
from robustly.fit.outcome import Outcome
from robustly.model.wide_curvature import Curve
from robustly.result import estimates as est
from robustly.result.estimates import Hyperparameters
from robustly.result.outliers import TAILS
from robustly.result.source import PAIRS, REGRESSIONS, FittedModel, Source, refuse_other_models
from robustly.rows.labels import RowLabels

if TYPE_CHECKING:
    import pandas as pd


@dataclass(eq=False, repr=False)
class FittedNumbers:
    """The fields of a :class:`~robustly.result.fit.Fit`, and what is read off them without asking the rows again."""

    parameters: dict[str, Any]
    labels: list[str]
    vector: np.ndarray
    jacobian: Any
    """d natural values / d vector: an array, or a sparse one."""
    curve: Curve
    """Second derivative of the objective in the vector; where columns are many and sparse, ``numpy.asarray(curve)`` writes it out."""
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
        return self.coefficients / self.attenuated_by

    @property
    def attenuated_by(self) -> float:
        """How many times smaller coefficients show in marginal log odds."""
        return float(np.sqrt(1.0 + ((self.spread or 0.0) / 1.7) ** 2))

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

    # ------------------------------------------------------------------ how well the rows are described

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

    # ------------------------------------------------------------------ who can answer

    def need_source(self, what: str) -> Source:
        """The rows, or an error that says what they are needed for."""
        if self.source is None:
            raise FitError(
                f"{what} needs the rows this fit was made with, and its file does not keep them. Fit them again, or keep "
                "the fit in memory."
            )
        return self.source

    def _of_regressions(self, what: str) -> None:
        if not self.terms:
            refuse_other_models(what, REGRESSIONS)
