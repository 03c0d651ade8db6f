"""What did a generalized linear model find? Coefficients by name, their uncertainty, rows that do not belong."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from robustly import persist
from robustly.diagnose import benjamini_hochberg
from robustly.errors import DataError, FitError, ModelError, PersistError
from robustly.fit.outcome import Outcome
from robustly.fit.result import Fit, RowPosterior
from robustly.glm.evidence import kernel, pairs, start_state
from robustly.glm.families import FAMILIES, Family, as_family
from robustly.glm.local import Classical, LocalLabel, LocalPrecision, LocalPredictor, Shifted, law_of
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.glm.search import Climb, Found, Plan, by_row, search
from robustly.precision import double_precision
from robustly.rows.arrays import pad
from robustly.rows.frames import DesignRows

# Rows that lose more than so many nats by being left out are fitted without; one Newton step is too short for them.
HEAVY = 0.3
REFITS = 30
LEVELS = np.array([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999])


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
    formula: Any = field(default=None, repr=False)

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
        """Scale of the noise of measured responses."""
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
        from robustly.glm.search import attenuation

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
        """Intervals by label; positive numbers get theirs on the log scale, so they stay positive."""
        from scipy.stats import norm

        reach = norm.ppf(0.5 + level / 2)
        error = np.sqrt(np.maximum(np.diag(self.covariance(kind)), 0.0))
        found = {}
        for place, (label, value) in enumerate(zip(self.labels, self._values)):
            half = reach * error[place]
            if place < len(self.terms) or value <= 0:
                found[label] = (float(value - half), float(value + half))
            else:
                stretch = float(np.exp(np.minimum(half / value, 700.0)))
                found[label] = (float(value / stretch), float(value * stretch))
        return found

    @property
    def _values(self) -> np.ndarray:
        return np.array([float(v) for v in self.parameters.values()])

    # ------------------------------------------------------------------ rows

    @cached_property
    def loo(self) -> float:
        """Expected log predictive density of a new row, times the rows: each row predicted by all others.

        One Newton step from the fit to that without the row (for the 30 heaviest rows all steps), and the row's
        integrated likelihood there, never the conditional one, which knows the row's own value.
        """
        return float(self.weight @ self.loo_by_row)

    @cached_property
    def loo_by_row(self) -> np.ndarray:
        return self.saved["loo_by_row"] if "loo_by_row" in self.saved else self._need("loo").loo()  # type: ignore[attr-defined]

    @cached_property
    def influence(self) -> np.ndarray:
        """How far each row moves the coefficients, in units of their covariance (Cook's distance, one Newton step)."""
        return self._need("influence").influence()  # type: ignore[attr-defined]

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
        """The integrated predictive distribution of new rows: a matrix of columns, or a data frame for a formula."""
        from robustly.rows.frames import read_offset

        if self.formula is not None:
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

    def summary(self, kind: str = "information") -> Any:
        """Estimates with standard errors, z, p and 95 % intervals; text, HTML, and ``.frame`` is the data."""
        from robustly.glm.summary import summarize_glm

        return summarize_glm(self, kind)

    def __repr__(self) -> str:
        what = self.asked.get("local") or "classical"
        return (
            f"<GLMFit {self.fitted.family}, {what}, {len(self.evidence)} rows, "
            f"log likelihood {self.log_likelihood:.4f}, {self.outcome.kind}>"
        )

    # ------------------------------------------------------------------ keeping

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Meta data and arrays, for :mod:`robustly.persist`."""
        family = type(self.fitted.family)
        known = {made: name for name, made in FAMILIES.items()}
        meta = {
            "labels": self.labels,
            "terms": self.terms,
            "parameters": list(self.parameters),
            "family": known.get(family),
            "family_name": repr(self.fitted.family),
            "law": type(self.fitted.law).__name__,
            "asked": self.asked,
            "intercept": self.fitted.intercept,
            "objective": self.objective,
            "outcome": [self.outcome.kind, self.outcome.text, self.outcome.steps],
            "history": self.history,
            "approximation": self.approximation,
            "notes": list(self.notes),
        }
        arrays = {
            "vector": self.vector,
            "jacobian": self.jacobian,
            "curve": self.curve,
            "evidence": self.evidence,
            "weight": self.weight,
            "phi": self.fitted.phi,
            "coefficients": self.fitted.coefficients,
            "aliased": self.aliased,
            "values": self._values,
        }
        if self.source is not None:
            arrays |= {"scored": self.source.scores(), "loo_by_row": self.loo_by_row}
            with contextlib.suppress(ModelError):  # A user's own family may have no distribution function.
                arrays["tail_probabilities"] = self.tail_probabilities
        else:
            arrays |= {n: a for n, a in (("scored", self.scored), *self.saved.items()) if isinstance(a, np.ndarray)}
        return meta, arrays

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all numbers of the fit to one file; read it with ``rb.load``."""
        persist.write(path, "glm", *self.to_saved())


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], family: Family | None = None) -> GLMFit:
    """A fit as :meth:`GLMFit.save` wrote it; a user's own family has to be given again."""
    if meta["family"] is None and family is None:
        raise PersistError(
            f"this fit was made with the family {meta['family_name']}, and no code is stored. Give it again: "
            "rb.load(path, family=...)."
        )
    chosen = as_family(meta["family"] if family is None else family)
    asked = meta["asked"]
    laws = {"Classical": lambda: Classical(chosen), "Shifted": lambda: Shifted(chosen)}
    law = laws.get(meta["law"], lambda: law_of(chosen, asked["local"], asked["prior"]))()
    return GLMFit(
        parameters=dict(zip(meta["parameters"], arrays["values"])),
        labels=list(meta["labels"]),
        vector=arrays["vector"],
        jacobian=arrays["jacobian"],
        curve=arrays["curve"],
        objective=meta["objective"],
        evidence=arrays["evidence"],
        weight=arrays["weight"],
        outcome=Outcome(*meta["outcome"]),
        history=meta["history"],
        approximation=meta["approximation"],
        notes=tuple(meta["notes"]),
        scored=arrays.get("scored"),
        saved={name: arrays[name] for name in ("tail_probabilities", "loo_by_row") if name in arrays},
        fitted=Fitted(law, arrays["phi"], arrays["coefficients"], meta["intercept"]),
        terms=list(meta["terms"]),
        asked=asked,
        aliased=arrays["aliased"],
    )


class GLMSource:
    """What can still be asked of the rows behind a fit."""

    def __init__(self, found: Found, asked: Plan) -> None:
        self.found = found
        self.asked = asked
        self.design = found.design
        self.climb = Climb(found.design, found.plan, found.nodes)

    @cached_property
    def predictor(self) -> np.ndarray:
        return self.design.predictor(self.found.u)

    @cached_property
    def _curves(self) -> tuple[np.ndarray, np.ndarray]:
        return by_row(self.found)

    def _directions(self) -> np.ndarray:
        """Rows in the coordinates of the search."""
        design = self.design
        matrix = design.shifted(design.matrix)
        turn = design.to_shifted
        return turn[0] + matrix @ turn[1:] if design.intercept else np.asarray(matrix @ turn)

    def scores(self) -> np.ndarray:
        """Slope of every row's evidence in the vector."""
        slope = self._curves[0]
        return np.concatenate([self._directions() * slope[:, :1], slope[:, 1 + self.climb.free]], axis=1)

    def _removed(self) -> tuple[np.ndarray, np.ndarray]:
        """How far each row's predictor and shared numbers move when the row is left out, and their variances."""
        slope, curve = self._curves
        used = np.concatenate([[0], 1 + self.climb.free])
        k, size, weight = len(used), self.design.size, self.design.rows.weight
        covariance = np.linalg.pinv(-self.found.optimum.curve)
        z = self._directions()
        spread = np.zeros((len(z), k, k))
        spread[:, 0, 0] = np.einsum("ni,ij,nj->n", z, covariance[:size, :size], z)
        spread[:, 0, 1:] = z @ covariance[:size, size:]
        spread[:, 1:, 0] = spread[:, 0, 1:]
        spread[:, 1:, 1:] = covariance[size:, size:]
        bend = np.zeros((len(z), k, k))
        for column, (i, j) in zip(curve.T, pairs(slope.shape[1])):
            if i in used and j in used:
                a, b = int(np.flatnonzero(used == i)[0]), int(np.flatnonzero(used == j)[0])
                bend[:, a, b] = bend[:, b, a] = column
        matrix = np.eye(k) + weight[:, None, None] * (bend @ spread)
        pull = np.linalg.solve(matrix, slope[:, used, None] * weight[:, None, None])
        return -(spread @ pull)[..., 0], spread

    def loo(self) -> np.ndarray:
        move, _ = self._removed()
        law, free = self.found.plan.law, self.climb.free
        phi = np.tile(self.found.phi, (len(move), 1))
        # A step as long as this comes from a row that holds a coefficient alone; its own prediction is then no number.
        phi[:, free] += np.clip(move[:, 1:], -5.0, 5.0)
        m = self.predictor + np.clip(move[:, 0], -1e3, 1e3)
        found = self._evidence(m, phi) + law.family.log_base(self.design.y, self.design.trials)
        lost = self.found.evidence - found
        heavy = np.argsort(-lost, kind="stable")[:REFITS]
        for row in heavy[(lost[heavy] > HEAVY) & (self.design.rows.weight[heavy] > 0)]:
            found[row] = self._without(int(row))
        return found

    def _without(self, row: int) -> float:
        """The evidence of a row under the fit to all others, climbed from the fit to all."""
        weight = self.design.rows.weight.copy()
        weight[row] = 0.0
        climb = Climb(self.design.weighed(weight), self.found.plan, self.found.nodes)
        climb.state = None if self.found.state is None else self.found.state.copy()
        return float(climb.climb(self.found.u, self.found.phi).evidence[row])

    def _evidence(self, m: np.ndarray, phi: np.ndarray) -> np.ndarray:
        law = self.found.plan.law
        passes = kernel(law, self.found.nodes)
        state = self.found.state
        state = start_state(law, self.design.y, self.design.trials, self.found.phi) if state is None else state
        rows = DesignRows((m, self.design.y, self.design.trials, phi), self.design.rows.weight)
        parts = []
        for place, (m_, y, trials, phi_), weight in rows.chunks():
            with double_precision(), np.errstate(all="ignore"):
                here = pad(state[place], len(weight))
                parts.append(
                    np.asarray(passes.values(m_, tuple(phi_.T), (y, trials), here))[: place.stop - place.start]
                )
        return np.concatenate(parts)

    def influence(self) -> np.ndarray:
        move, spread = self._removed()
        slope = self._curves[0][:, 0] * self.design.rows.weight
        shrunk = np.where(np.abs(slope) > 0, move[:, 0] / np.where(spread[:, 0, 0] > 0, spread[:, 0, 0], 1.0), 0.0)
        return shrunk**2 * spread[:, 0, 0] / self.design.size

    def tail_probabilities(self) -> np.ndarray:
        """Two-sided: twice the smaller of P(Y ≤ y) and P(Y ≥ y), by row."""
        design, found = self.design, self.found
        law, y = found.plan.law, design.y
        if isinstance(law, LocalPrecision):
            from scipy.special import ndtr

            return 2.0 * ndtr(-np.abs(y - self.predictor) / np.exp(found.phi[0]))
        fitted = fitted_of(found)
        if isinstance(law, LocalLabel):
            from scipy.special import expit

            flip, right = fitted.shared["flip"], expit((2.0 * y - 1.0) * self.predictor)
            return (1.0 - flip) * right / ((1.0 - flip) * right + flip * (1.0 - right))
        predictive = GLMPredictive(fitted, self.predictor, design.trials)
        below = predictive.cdf(y)
        strictly = predictive.cdf(np.ceil(y) - 1.0) if law.family.discrete else below
        return np.minimum(1.0, 2.0 * np.minimum(below, 1.0 - strictly))

    def posterior(self, site: str) -> RowPosterior:
        passes = kernel(self.found.plan.law, self.found.nodes)
        assert self.found.state is not None
        rows = DesignRows((self.predictor, self.design.y, self.design.trials), self.design.rows.weight)
        parts = []
        for place, (m, y, trials), weight in rows.chunks():
            with double_precision():
                state = pad(self.found.state[place], len(weight))
                each = passes.posterior(m, tuple(self.found.phi), (y, trials), state, LEVELS)
                parts.append([np.asarray(a)[: place.stop - place.start] for a in each])
        mean, sd, quantile = (np.concatenate(each) for each in zip(*parts))
        return RowPosterior(mean, sd, LEVELS, quantile)

    def shifts(self) -> np.ndarray:
        passes = kernel(self.found.plan.law, self.found.nodes)
        with double_precision():
            found = passes.shifts(self.predictor, tuple(self.found.phi), (self.design.y, self.design.trials))
            return np.asarray(found)

    def profile(self, values: Sequence[float]) -> pd.DataFrame:
        law = self.asked.law
        if "spread" not in law.names:
            raise ModelError("this model has no spread to profile.")
        lines = []
        for value in values:
            held = Plan(law, self.asked.nodes, {**self.asked.held, "spread": value}, None, self.asked.stop)
            plain = Plan(Classical(law.family), stop=self.asked.stop)
            found = search(self.design, held if value > 0 else plain)
            coefficients = self.design.to_coefficients @ found.u
            lines.append([value, float(self.design.rows.weight @ found.evidence), *coefficients])
        return pd.DataFrame(lines, columns=["spread", "log likelihood", *self.design.terms])

    def integration_error(self) -> float:
        """Change of the log likelihood with twice the points a row."""
        if self.found.plan.law.closed:
            return 0.0
        finer = Climb(self.design, self.found.plan, 2 * self.found.nodes if self.found.nodes else 81)
        optimum = self.found.optimum
        return abs(float(self.design.rows.weight @ (finer.found(optimum).evidence - self.found.evidence)))

    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        """Evidence of every row at other vectors: (vector, row)."""
        found = []
        for vector in vectors:
            self.climb.curves(vector)
            assert self.climb.seen is not None
            found.append(self.climb.seen[1] + self.found.plan.law.family.log_base(self.design.y, self.design.trials))
        return np.stack(found)

    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Coefficients and shared numbers at many vectors (chain, draw, entry)."""
        size, law = self.design.size, self.found.plan.law
        coefficients = vectors[..., :size] @ self.design.to_coefficients.T
        found = {term: coefficients[..., i] for i, term in enumerate(self.design.terms)}
        for place, index in enumerate(self.climb.free):
            name = law.names[index]
            found[name] = law.natural(name, vectors[..., size + place])
        return found

    def natural(self, vector: np.ndarray) -> np.ndarray:
        return np.concatenate([np.reshape(v, -1) for v in self.natural_by_name(vector).values()])

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise FitError("ask the fit: fit.predictive(X).")

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Any:
        raise ModelError(
            "posterior draws of a regression: write it as a NumPyro program and use rb.localize(...).fit(...)."
        )

    def has_posterior(self, site: str) -> bool:
        return not self.found.plan.law.closed

    def describe(self) -> dict[str, Any]:
        return {}


def fitted_of(found: Found) -> Fitted:
    """What predictions need."""
    return Fitted(found.plan.law, found.phi, found.design.to_coefficients @ found.u, found.design.intercept)


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
            how = f"quadrature with {4 * max(32, found.nodes)} points a row"
    values = [*fitted.coefficients, *(fitted.shared[name] for name in free)]
    labels = [*design.terms, *(f"{name} (shared)" if name in design.terms else name for name in free)]
    return GLMFit(
        parameters=dict(zip(labels, values)),
        labels=labels,
        vector=found.optimum.vector,
        jacobian=jacobian,
        curve=found.optimum.curve,
        objective=found.optimum.value,
        evidence=found.evidence,
        weight=design.rows.weight,
        outcome=found.outcome,
        history=found.optimum.history,
        approximation=how,
        notes=(*design.notes, *notes, *found.notes),
        source=source,  # type: ignore[arg-type]
        fitted=fitted,
        terms=design.terms,
        asked={"local": local, "prior": prior},
        aliased=design.aliased,
        formula=formula,
    )
