"""What can still be asked of a fit? The model answers about new rows, the source about those it was fitted to.

A fit read from a file always has its model, as far as files keep it, and most often no source. A source answers what its
model knows and inherits a refusal that says who does know for the rest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from robustly.errors import FitError, ModelError

if TYPE_CHECKING:
    import pandas as pd

    from robustly.fit.draws import Draws
    from robustly.model.wide_curvature import Curve
    from robustly.result.hypotheses import TestResult
    from robustly.result.laws import ByRow
    from robustly.result.outliers import Judgement

REGRESSIONS = "regressions (rb.glm and its estimators)"
MIXED_MODELS = 'regressions with groups (rb.glm("y ~ x + (1 | g)"))'
PAIRS = "conjugate pairs (robustly.conjugate)"


def refuse_other_models(what: str, who: str) -> NoReturn:
    """Say which models have what was asked for."""
    raise ModelError(f"{what} is known of {who}; this fit is of another model.")


class FittedModel(Protocol):
    """The model with its estimates, without rows: it predicts, and says what a file has to keep of it."""

    @property
    def kind(self) -> str:
        """Which reader of :mod:`robustly.result.persist` brings it back."""

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ByRow: ...

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]: ...


@dataclass(frozen=True, eq=False)
class ModelOnFile:
    """What a file says of a model that is not there: enough to save it again."""

    kind: str
    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ByRow:
        raise FitError(
            "predictive needs the model this fit was made with. Read it with rb.load(path, model=...), "
            "or keep the fit in memory."
        )

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return dict(self.meta), dict(self.arrays)


class Source(ABC):
    """The rows behind a fit, and what the model can say of them."""

    keeps: tuple[str, ...] = ("scored", "posteriors", "tail_probabilities")
    """What a file keeps of it by row; nothing where the rows themselves are kept."""

    # ------------------------------------------------------------------ every model

    @abstractmethod
    def evidence(self) -> np.ndarray:
        """log p(row) for every row."""

    @property
    def takes_rows(self) -> bool:
        """Whether :meth:`evidence_of` looks at the rows it is asked for alone."""
        return False

    def evidence_of(self, places: np.ndarray) -> np.ndarray:
        """log p(row) for some rows, named by their places."""
        return np.asarray(self.evidence())[places]

    def curve(self, seen: Curve) -> Curve:
        """Second derivative of the objective at the estimate; `seen` is what the search saw last."""
        return seen

    @abstractmethod
    def scores(self) -> np.ndarray:
        """Slope of every row's evidence in the vector."""

    def meat(self, weight: np.ndarray) -> np.ndarray:
        """The rows' scores times themselves, added up: what a sandwich holds."""
        scores = self.scores()
        return (scores * weight[:, None]).T @ scores

    def moves_without(self, groups: np.ndarray) -> np.ndarray:
        """How far the vector moves when a group of rows is left out, by group."""
        raise ModelError(
            'the covariance "jackknife" is of regressions. Ask for "sandwich", or "cluster" with groups=....'
        )

    @abstractmethod
    def tail_probabilities(self) -> np.ndarray:
        """How probable a value at least as far out is, by row."""

    def judge(self) -> Judgement | None:
        """What is believed of rows that may not belong; None where the model has no law for them."""
        return None

    @abstractmethod
    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        """Evidence of every row at other vectors: (vector, row)."""

    @abstractmethod
    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Natural values at many vectors (chain, draw, entry)."""

    @abstractmethod
    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        """Draws of the parameters, every row's own value integrated out."""

    @abstractmethod
    def posterior(self, site: str | None) -> ByRow:
        """What is believed of the fitted rows' own values."""

    def has_posterior(self, site: str) -> bool:
        """Whether there is something to ask :meth:`posterior` for."""
        return True

    def has_closed_tails(self) -> bool:
        """Whether tail probabilities come from a distribution function, without simulation."""
        return True

    def integration_error(self) -> float:
        """Change of the log likelihood with twice the points a row."""
        return 0.0

    def observed(self) -> dict[str, np.ndarray]:
        """What was observed, by name, one entry a row; nothing where the model does not tell."""
        return {}

    def replicates(self, vectors: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """New responses of the same rows, one set for each vector; nothing where the model does not tell."""
        return {}

    # ------------------------------------------------------------------ some models

    def posterior_of(self, data: Sequence[Any], named: Mapping[str, Any]) -> ByRow:
        """What is believed of new rows' own values, with their observations given."""
        refuse_other_models("a posterior of new rows", PAIRS)

    def integrated(self, data: Sequence[Any], named: Mapping[str, Any]) -> ByRow:
        """The posterior averaged over what the data leave open about the prior."""
        refuse_other_models("integrated_posterior", PAIRS)

    def shrinkage(self) -> pd.DataFrame:
        """Every row's raw estimate, and its posterior mean and standard deviation."""
        refuse_other_models("shrinkage", PAIRS)

    def edge_interval(self, name: str, level: float) -> tuple[float, float]:
        """Values of an estimate on its edge whose likelihood is at least 1 − level of the best."""
        refuse_other_models("an interval of an estimate on its edge", PAIRS)

    def loo(self) -> np.ndarray:
        """Log predictive density of every row given all others."""
        refuse_other_models("loo", REGRESSIONS)

    def influence(self) -> np.ndarray:
        """How far each row moves the coefficients, in units of their covariance."""
        refuse_other_models("influence", REGRESSIONS)

    def pit(self) -> tuple[np.ndarray, np.ndarray]:
        """P(Y < y) and P(Y ≤ y) of every row."""
        refuse_other_models("pit", REGRESSIONS)

    def shifts(self) -> np.ndarray:
        """By how much each row is shifted."""
        refuse_other_models("shifts", REGRESSIONS)

    def variance_components(self, level: float, restricted: bool = True) -> pd.DataFrame:
        """Standard deviations of groups' effects with profile intervals."""
        refuse_other_models("variance_components", MIXED_MODELS)

    def judge_rows(self) -> Judgement:
        """What is believed of every row, where units are groups."""
        refuse_other_models('outliers(level="row")', MIXED_MODELS)

    def group_effects(self) -> pd.DataFrame:
        """Effects, weights and tails by group."""
        refuse_other_models("group_effects", MIXED_MODELS)

    def inner_group_effects(self) -> pd.DataFrame:
        """Effects by group within a group."""
        refuse_other_models("inner_group_effects", MIXED_MODELS)

    def row_weights(self) -> np.ndarray:
        """How much each row counts, beside a row in the middle of its law."""
        refuse_other_models("row_weights", MIXED_MODELS)

    def fitted_mean(self) -> np.ndarray:
        """The expected response of every row."""
        refuse_other_models("fittedvalues", REGRESSIONS)

    def residuals(self, kind: str, seed: int) -> np.ndarray:
        """How far each row is from what was expected of it."""
        refuse_other_models("residuals", REGRESSIONS)

    def profile_interval(self, name: str, level: float) -> tuple[float, float]:
        """Values of an estimate at which the profile of the likelihood is high enough."""
        refuse_other_models("a profile interval", REGRESSIONS)

    def edge_test(self, hypothesis: str) -> TestResult:
        """Whether rows differ at all, by likelihood ratio."""
        refuse_other_models("a test of no difference between rows", REGRESSIONS)

    def profile(self, values: Sequence[float]) -> pd.DataFrame:
        """The best log likelihood at given spreads."""
        refuse_other_models("profile_spread", REGRESSIONS)
