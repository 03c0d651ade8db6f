"""What to expect of new rows of known groups, and of rows of new ones?

A known group's effects have the posterior that its rows left, a new group's the fitted law. Either way a row's predictor is a
number with a distribution of its own, and the row's law is averaged over it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from robustly._runtime.random_keys import generator
from robustly.approx.two_centre import two_centres
from robustly.errors import DataError
from robustly.glm.families import Family, Normal
from robustly.glm.grouped.effects import EffectLaw, NormalEffects
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.glm.row_model import approximation, evidence_of
from robustly.model.read_design import Given
from robustly.result.laws import RowLaw, invert_cdf

ROWS_AT_ONCE = 2048
# A mean beyond this comes from points cut off at the largest numbers there are: the law's tails have none.
NO_MEAN = 1e150
# A response that says less than this of its predictor, in standard deviations of a group's effects, needs no points of its own.
MOST_WIDTH = 30.0


@dataclass(frozen=True, eq=False)
class GroupEffects:
    """The law of the groups' effects and what is known of every group: posterior means and covariances."""

    name: str
    terms: tuple[str, ...]
    factor: np.ndarray
    """L of the effects on their own scale."""
    law: EffectLaw
    psi: np.ndarray
    labels: list[Any]
    found: Callable[[], tuple[np.ndarray, np.ndarray]]
    """Gives posterior means (groups, q) and covariances (groups, q, q), when they are asked for."""
    precisions: np.ndarray | None = None
    """Where groups have precisions of their own: degrees of freedom and expected relative precision, by group."""
    inner_name: str = ""
    inner_labels: list[Any] | None = None
    """Of groups within groups, whose posteriors stand after those of the groups."""
    outer: int = 0
    """How many of the effects are the groups' own, where there are groups within them."""
    inner_owner: np.ndarray | None = None
    """The group of every group within."""

    @cached_property
    def _found(self) -> tuple[np.ndarray, np.ndarray]:
        return self.found()

    @property
    def mean(self) -> np.ndarray:
        """Posterior means by group and term."""
        return self._found[0]

    @property
    def covariance(self) -> np.ndarray:
        return self._found[1]

    @property
    def scale_matrix(self) -> np.ndarray:
        """The covariance of normal effects; the scale matrix of others."""
        return self.factor @ self.factor.T

    @property
    def sd(self) -> np.ndarray:
        """Standard deviations of the effects."""
        found = np.sqrt(np.diag(self.scale_matrix))
        return np.where(found > 0, found * self.law.sd_factor(self.psi), 0.0)

    @property
    def sd_by_group(self) -> dict[str, dict[str, float]]:
        """The same by groups and term."""
        each = list(zip(self.terms, self.sd))
        if self.inner_labels is None:
            return {self.name: dict(each)}
        return {self.name: dict(each[: self.outer]), self.inner_name: dict(each[self.outer :])}

    @property
    def correlation(self) -> np.ndarray:
        scale = np.sqrt(np.diag(self.scale_matrix))
        with np.errstate(invalid="ignore", divide="ignore"):
            found = self.scale_matrix / np.outer(scale, scale)
        return np.where(np.eye(len(scale), dtype=bool), 1.0, found)

    def places(self, labels: Any, inner: Any = None) -> np.ndarray:
        """What is known of the group that each label names, or of the one within it; −1 for new ones."""
        found = _places_in(self.labels, labels)
        if inner is None or self.inner_labels is None:
            return found
        within = _places_in(self.inner_labels, inner)
        return np.where((within >= 0) & (found >= 0), len(self.labels) + within, found)

    def group_of(self, places: np.ndarray) -> np.ndarray:
        """The groups that places of known effects are of."""
        if self.inner_labels is None:
            return places
        assert self.inner_owner is not None
        return np.concatenate([np.arange(len(self.labels)), self.inner_owner])[places]


def _places_in(labels: list[Any], asked: Any) -> np.ndarray:
    import pandas as pd

    return pd.Index(labels, dtype=object).get_indexer(pd.Index(np.asarray(asked, dtype=object), dtype=object))


@dataclass(frozen=True, eq=False)
class StudentRows(RowLaw):
    """Rows of groups with precisions of their own: Student's t by row."""

    centre: np.ndarray
    scale: np.ndarray
    dof: np.ndarray
    family: ClassVar[Family] = Normal()

    def __len__(self) -> int:
        return len(self.centre)

    @property
    def _law(self) -> Any:
        from scipy import stats

        return stats.t(self.dof, self.centre, self.scale)

    @property
    def typical(self) -> np.ndarray:
        """The same as the mean: the response is its predictor and a symmetric error."""
        return self.centre

    @property
    def mean(self) -> np.ndarray:
        return self.centre

    @property
    def sd(self) -> np.ndarray:
        return np.where(self.dof > 2, self.scale * np.sqrt(self.dof / np.maximum(self.dof - 2.0, 1e-300)), np.inf)

    def cdf(self, values: Any) -> np.ndarray:
        return self._law.cdf(np.asarray(values, dtype=float))

    def _quantile_at(self, level: float) -> np.ndarray:
        return self._law.ppf(level)

    def log_prob(self, y: Any) -> np.ndarray:  # type: ignore[override]
        """Log density of observed responses, each row for itself."""
        return self._law.logpdf(np.asarray(y, dtype=float))

    def sample(self, num_samples: int = 1000, *, key: Any) -> np.ndarray:
        """Draws of shape (num_samples, rows), each row for itself."""
        return self._law.rvs((num_samples, len(self)), random_state=generator(key))


def student_rows(
    noise: float, effects: GroupEffects, m: np.ndarray, columns: np.ndarray, places: np.ndarray
) -> StudentRows:
    """Rows of known groups by their posteriors, of new groups by the fitted law."""
    assert effects.precisions is not None
    dof = float(np.exp(effects.psi[-1]))
    known, at = places >= 0, np.where(places >= 0, places, 0)
    freedom, precision = effects.precisions[effects.group_of(at)].T
    spread = lambda matrices: np.einsum("na,nab,nb->n", columns, matrices, columns)
    # Covariances are those of a Student t, and what is added to the noise is its scale.
    inside = spread(effects.covariance[at]) * np.maximum(freedom - 2.0, 1e-3) / freedom
    between = spread(np.broadcast_to(effects.scale_matrix, (len(m), *effects.scale_matrix.shape)))
    square = np.where(known, noise**2 / precision + inside, noise**2 + between)
    centre = m + np.where(known, np.einsum("nq,nq->n", columns, effects.mean[at]), 0.0)
    return StudentRows(centre, np.sqrt(square), np.where(known, freedom, dof))


class GroupPredictive(RowLaw):
    """The predictive distribution of rows in groups; every answer is an array by row."""

    def __init__(
        self,
        fitted: Fitted,
        effects: GroupEffects,
        m: np.ndarray,
        columns: np.ndarray,
        places: np.ndarray,
        trials: Given = None,
    ) -> None:
        self.fitted, self.effects, self.m = fitted, effects, m
        known = places >= 0
        at = np.where(known, places, 0)
        own = np.einsum("nq,nq->n", columns, effects.mean[at])
        self.centre = m + np.where(known, own, 0.0)
        inside = np.einsum("na,nab,nb->n", columns, effects.covariance[at], columns)
        between = np.einsum("na,ab,nb->n", columns, effects.scale_matrix, columns)
        self.width = np.sqrt(np.maximum(np.where(known, inside, between), 0.0))
        self.known = known
        self.trials = np.ones(len(m)) if trials is None else np.asarray(trials, dtype=float)

    def __len__(self) -> int:
        return len(self.centre)

    @property
    def family(self) -> Family:
        return self.fitted.family

    @property
    def typical(self) -> np.ndarray:
        """Expected value with the group's effects at their centre: those of a known group, none of a new one."""
        return self.fitted.typical(self.centre, self.trials)

    @property
    def mean(self) -> np.ndarray:
        return self._moments[0]

    @property
    def sd(self) -> np.ndarray:
        return np.sqrt(self._moments[1])

    @cached_property
    def _points(self) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
        """Standardised points with their shares: of known groups, whose posterior is taken as normal, and of new ones."""
        return NormalEffects().spread_points(np.zeros(0)), self.effects.law.spread_points(self.effects.psi)

    def _points_near(self, y: np.ndarray, part: np.ndarray, is_known: bool) -> tuple[np.ndarray, np.ndarray]:
        """The same by row (rows, k), dense also where a response of `y` turns from likely to unlikely as its predictor grows.

        A count of 20 000 says where its log rate is to within .007, and no rule made for the groups' effects alone sees that.
        """
        law, psi = (NormalEffects(), np.zeros(0)) if is_known else (self.effects.law, self.effects.psi)
        turn = self.family.turn(y, self.trials[part], self.fitted.law.nuisance(self.fitted.phi))
        unit = self.width[part]
        if turn is None or not np.all(unit > 0):
            return self._points[0 if is_known else 1]
        far = law.furthest(psi)
        place, width = (turn[0] - self.centre[part]) / unit, np.clip(turn[1] / unit, 1e-12, MOST_WIDTH)
        t, weight = two_centres(np.zeros(len(part)), 1.0, place, width, far, far)
        density = law.log_density(t[..., None], psi)[0]
        share = weight * np.exp(density - density.max(axis=1, keepdims=True))
        return t, share / share.sum(axis=1, keepdims=True)

    def _averaged(self, of: Any, y: np.ndarray | None = None) -> np.ndarray:
        """A quantity of rows at every point of their predictors, averaged; ``of(law at points, rows, points)``.

        With `y` it is one of that response, such as its probability.
        """
        found: np.ndarray | None = None
        for is_known, even in zip((True, False), self._points):
            rows = np.flatnonzero(self.known == is_known)
            for start in range(0, len(rows), ROWS_AT_ONCE):
                part = rows[start : start + ROWS_AT_ONCE]
                t, share = even if y is None else self._points_near(y[part], part, is_known)
                count = t.shape[-1]
                predictor = self.centre[part, None] + self.width[part, None] * t
                inside = GLMPredictive(self.fitted, predictor.reshape(-1), np.repeat(self.trials[part], count))
                value = np.asarray(of(inside, part, count))
                value = value.reshape(*value.shape[:-1], len(part), count)
                # A point without a share has no say, even where the response it stands for is infinite.
                mean = np.sum(np.where(share > 1e-300, value, 0.0) * share, axis=-1)
                found = np.zeros((*mean.shape[:-1], len(self))) if found is None else found
                found[..., part] = mean
        assert found is not None
        return found

    @cached_property
    def _moments(self) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            first, second = self._averaged(
                lambda inside, part, k: np.stack([inside.mean, inside.sd**2 + inside.mean**2])
            )
            endless = first > NO_MEAN
            return np.where(endless, np.inf, first), np.where(endless, np.inf, np.maximum(second - first**2, 0.0))

    def cdf(self, values: Any) -> np.ndarray:
        """P(Y ≤ value), one value a row."""
        y = np.broadcast_to(np.asarray(values, dtype=float), (len(self),))
        below = self._averaged(lambda inside, part, k: inside.cdf(np.repeat(y[part], k)), y)
        return np.clip(below, 0.0, 1.0)

    def _quantile_at(self, level: float) -> np.ndarray:
        inside = GLMPredictive(self.fitted, self.centre, self.trials)
        middle = inside.quantile(0.5)
        if self.fitted.family.discrete:
            counted = bool(np.any(self.trials != 1)) or self.fitted.family.yes_or_no
            high = self.trials if counted else np.maximum(np.ceil(middle), 1.0)
            low = np.full(len(self), -1.0)
            return invert_cdf(self.cdf, level, low, high, open_ends=(False, not counted), whole=True)
        apart = np.maximum(inside.quantile(0.75) - inside.quantile(0.25), 1e-12) + self.width
        return invert_cdf(self.cdf, level, middle - apart, middle + apart)

    def log_prob(self, y: Any) -> np.ndarray:  # type: ignore[override]
        """Log density of observed responses, averaged over the group's effects; each row for itself."""
        response = np.asarray(y, dtype=float)
        if response.shape != (len(self),):
            raise DataError(f"y has shape {response.shape}, but there are {len(self)} rows. Give one response a row.")
        self.fitted.family.check_response(response, self.trials)
        law, phi = self.fitted.law, self.fitted.phi
        density = lambda inside, part, k: np.exp(
            evidence_of(law, approximation(law, None), (inside.m, *phi), np.repeat(response[part], k), inside.trials)
        )
        with np.errstate(divide="ignore"):
            return np.log(self._averaged(density, response))

    def sample(self, num_samples: int = 1000, *, key: Any) -> np.ndarray:
        """Draws of shape (num_samples, rows), each row for itself; `key` is a seed, a NumPy generator or a JAX key."""
        rng = generator(key)
        shape = (num_samples, len(self))
        new = self.effects.law.draw(rng, (*shape, 1), self.effects.psi)[..., 0]
        predictor = self.centre + self.width * np.where(self.known, rng.standard_normal(shape), new)
        inside = GLMPredictive(self.fitted, predictor.reshape(-1), np.tile(self.trials, num_samples))
        return inside.sample(1, key=rng)[0].reshape(shape)
