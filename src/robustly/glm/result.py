"""A fitted generalized linear model as a :class:`~robustly.result.fit.Fit`: what it adds to one, and how it predicts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from robustly.errors import DataError, ModelError, PersistError
from robustly.fit.problem import Found
from robustly.glm.asked import LocalChoice, law_asked
from robustly.glm.families import Normal
from robustly.glm.local import Classical
from robustly.glm.named import FAMILIES
from robustly.glm.predictive import Fitted, GLMPredictive
from robustly.glm.regression import Plan
from robustly.glm.source import GLMSource, fitted_of, leverage_one_in
from robustly.model.read_design import Given, read_offset
from robustly.result.estimates import Hyperparameters
from robustly.result.fit import Fit
from robustly.rows.labels import RowLabels, refuse_other_length

SHARED = " (shared)"

GLMFit = Fit
"""The name of a regression's result in 0.1."""


@dataclass(frozen=True, eq=False)
class FittedRegression:
    """A generalized linear model with its estimates, robust or classical."""

    fitted: Fitted
    terms: Sequence[str]
    asked: Mapping[str, Any]
    formula: Any = None
    by_formula: bool = False
    needs: tuple[str, ...] = ()
    """Of offset, exposure and trials, those that were given as numbers by row: predictions need those of new rows."""
    response: str | None = None
    """The checksum of the responses, of a fit read from a file."""
    design: Any = field(default=None, repr=False)
    """The rows behind the fit; a fit read from a file has none."""

    kind: ClassVar[str] = "glm"

    @property
    def shown(self) -> dict[str, Any]:
        """What can be read off the fit itself."""
        return {"fitted": self.fitted, "formula": self.formula, "by_formula": self.by_formula}

    @property
    def linear(self) -> bool:
        """Whether the mean is linear in the coefficients, so that tests of few rows are of Student's t."""
        return isinstance(self.fitted.family, Normal)

    @property
    def least_squares(self) -> bool:
        """Whether least squares was asked for, whose errors are exact in samples of any size."""
        return self.linear and isinstance(self.fitted.law, Classical) and self.asked.get("local") is None

    @property
    def edges(self) -> dict[str, float]:
        """Values of shared numbers at which the law that was asked for is the classical one."""
        return law_asked(self.fitted.family, self.asked).at_boundary

    def columns_by_term(self) -> dict[str, list[int]]:
        """Which coefficients belong to each term of the formula; without one, every column is a term."""
        if self.formula is None:
            return {term: [place] for place, term in enumerate(self.terms)}
        side, place = self.formula.side, 0
        found: dict[str, list[int]] = {}
        for _, inside in side.terms:
            parts = [side.parts[one] for one in inside]
            width = int(np.prod([len(part.names) for part in parts])) if parts else 1
            name = ":".join(side.factors[part.factor].text for part in parts) or "Intercept"
            found.setdefault(name, []).extend(range(place, place + width))
            place += width
        return found

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> GLMPredictive:
        return self._predict(*args, **kwargs)

    def _predict(self, X: Any, *, offset: Given = None, exposure: Given = None, trials: Given = None) -> GLMPredictive:
        """New rows: a matrix of columns, or a data frame for a formula.

        Offset, exposure and trials that were named as columns when the formula was fitted are read from the new rows.
        """
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
            for label, given in (("offset", offset), ("exposure", exposure), ("trials", trials)):
                refuse_other_length(len(more), label, given)
            self.refuse_forgotten({"offset": offset, "exposure": exposure, "trials": trials})
            offset = more if offset is None else more + np.asarray(offset, dtype=float)
        else:
            self.refuse_forgotten({"offset": offset, "exposure": exposure, "trials": trials})
        matrix = X.to_numpy(dtype=float) if hasattr(X, "iloc") else X
        matrix = np.asarray(matrix, dtype=float) if not hasattr(matrix, "tocsr") else matrix
        wanted = len(self.terms) - int(self.fitted.intercept)
        if matrix.ndim != 2 or matrix.shape[1] != wanted:
            raise DataError(f"the model was fitted with {wanted} columns; got an array of shape {matrix.shape}.")
        m = self.fitted.predictor(matrix, read_offset(offset, exposure, matrix.shape[0]))
        counted = None if trials is None else np.broadcast_to(np.asarray(trials, dtype=float), m.shape)
        return GLMPredictive(self.fitted, m, counted, matrix)

    def for_marginaleffects(self, fit: Fit, data: Any) -> Any:
        """The fit as the package marginaleffects takes models."""
        from robustly.glm.marginal import for_marginaleffects

        return for_marginaleffects(fit, data)

    def refuse_forgotten(self, given: Mapping[str, Any]) -> None:
        """What stood beside every fitted row has to be said of new ones too, or rates are taken for counts."""
        for label in self.needs:
            if label in given and given[label] is None:
                none = {"offset": "0 adds nothing", "exposure": "1 gives rates", "trials": "1 gives chances"}[label]
                raise DataError(
                    f"the model was fitted with {label} given by row, and the new rows have none. Give {label}=...: one value "
                    f"a row, or one for all ({none})."
                )

    def response_key(self) -> str | None:
        """A checksum of the responses behind a fit: equal where two fits are of the same rows; None where it is not known."""
        if self.design is None:
            return self.response
        y, trials = (np.ascontiguousarray(part, dtype=float) for part in (self.design.y, self.design.trials))
        return hashlib.sha256(y.tobytes() + trials.tobytes()).hexdigest()

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        from robustly.glm.formula_saved import formula_to_json

        known = {made: name for name, made in FAMILIES.items()}
        asked = dict(self.asked)
        if callable(asked["local"]):  # No code is kept: the law is given again to load.
            asked["local"] = type(law_asked(self.fitted.family, asked)).__name__
        about = {
            "family": known.get(type(self.fitted.family)),
            "family_name": repr(self.fitted.family),
            "law": type(self.fitted.law).__name__,
            "asked": asked,
            "intercept": self.fitted.intercept,
            "formula": None if self.formula is None else formula_to_json(self.formula),
            "by_formula": self.by_formula,
            "needs": list(self.needs),
            "response": self.response_key(),
        }
        return about, {"phi": self.fitted.phi, "coefficients": self.fitted.coefficients}

    def fields(self, outcome: str, labels: Sequence[str]) -> dict[str, Any]:
        """What the law says of itself, as fields of a :class:`Fit`."""
        law, shared = self.fitted.law, self.fitted.shared
        wanted = law_asked(self.fitted.family, self.asked)
        numbers: dict[str, Any] = {**dict.fromkeys(("spread", "dof", "scale", "flip")), **law.implied}
        numbers |= {name: value for name, value in shared.items() if name in numbers}
        reached = wanted.at_boundary if outcome == "boundary" else {}
        if outcome == "perfect_fit" and "dof" in wanted.names:
            reached = {"dof": np.inf}
        return {
            "model": self,
            "terms": list(self.terms),
            "asked": dict(self.asked),
            "hyperparameters": Hyperparameters({} if law.local is None else {law.local: shared}),
            "shared": shared,
            "derived": numbers | reached,
            "scales": [
                "real" if place < len(self.terms) else law.scale_of(label.removesuffix(SHARED))
                for place, label in enumerate(labels)
            ],
            "told": {"family": repr(self.fitted.family), "local": wanted.describe().local},
            "information": "expected" if law.kinked else "observed",
            "outlier_rule": law.judged_by,
        }


def regression_of(fit: Fit) -> FittedRegression:
    """The regression behind a fit."""
    if fit.unit:
        raise ModelError(
            f'this is a fit with groups ("{fit.unit}"), which predicts rows in memory: give arrays, and groups=.'
        )
    if not isinstance(fit.model, FittedRegression):
        raise ModelError("a fitted regression is needed; got a fit of another model.")
    return fit.model


def regression_fit(
    found: Found,
    asked: Plan,
    local: LocalChoice,
    prior: str,
    notes: Sequence[str] = (),
    formula: Any = None,
    needs: Sequence[str] = (),
    row_labels: RowLabels | None = None,
) -> Fit:
    """A result from what a search found."""
    source = GLMSource(found, asked)
    problem, design = source.problem, source.design
    law, phi = problem.plan.law, problem.split(found.vector)[1]
    fitted = fitted_of(found)
    free = [law.names[i] for i in problem.linear.free]
    slopes = [law.slope(law.names[index], phi[index]) for index in problem.linear.free]
    leverage_one = leverage_one_in(found)
    values = [*fitted.coefficients, *(fitted.shared[name] for name in free)]
    labels = [*design.terms, *(f"{name}{SHARED}" if name in design.terms else name for name in free)]
    how = {"local": local, "prior": prior}
    model = FittedRegression(fitted, design.terms, how, formula, formula is not None, tuple(needs), None, design)
    return Fit(
        parameters=dict(zip(labels, values)),
        labels=labels,
        vector=found.optimum.vector,
        jacobian=design.jacobian_with(slopes),
        curve=found.optimum.bent,
        objective=found.optimum.value,
        evidence_by_row=None,
        summed_evidence=found.log_likelihood,
        weight=design.rows.weight,
        outcome=found.outcome,
        history=found.optimum.history,
        approximation=problem.kernel.approx.describe(),
        notes=(*design.notes, *notes, *found.notes, *_leverage_note(design, leverage_one)),
        source=source,
        row_labels=row_labels or RowLabels(),
        aliased=design.aliased,
        leverage_one=leverage_one,
        **model.fields(found.outcome.kind, labels),
    )


def _leverage_note(design: Any, leverage_one: np.ndarray) -> tuple[str, ...]:
    if not len(leverage_one):
        return ()
    shown = ", ".join(f"{row} ({' and '.join(design.determined_by(int(row))[:2])})" for row in leverage_one[:5])
    more = f" and {len(leverage_one) - 5} more" if len(leverage_one) > 5 else ""
    return (
        f"these rows have leverage one: {shown}{more}. Without them a coefficient is not determined, so no other row "
        "predicts them: LOO counts them at their density in the fit.",
    )
