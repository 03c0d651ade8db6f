"""A fitted mixed model as a :class:`~robustly.result.fit.Fit`: what it adds to one, and how it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from robustly.errors import DataError, ModelError, PersistError
from robustly.fit.problem import Found
from robustly.glm.asked import LocalChoice, law_asked
from robustly.glm.formula_frames import as_pandas
from robustly.glm.formula_saved import formula_to_json
from robustly.glm.grouped.design import EffectColumns
from robustly.glm.grouped.linear_source import LinearSource
from robustly.glm.grouped.plan import GroupDesign, GroupPlan
from robustly.glm.grouped.predictive import GroupEffects, GroupPredictive, StudentRows, student_rows
from robustly.glm.grouped.problem import GroupedRegression, LinearGroupedRegression
from robustly.glm.grouped.source import GroupSource
from robustly.glm.named import FAMILIES
from robustly.glm.predictive import Fitted
from robustly.glm.result import SHARED
from robustly.model.read_design import Given, read_offset
from robustly.result.estimates import Hyperparameters
from robustly.result.fit import Fit
from robustly.rows.labels import RowLabels

CHOICES = ("auto", "known", "new")


@dataclass(frozen=True, eq=False)
class FittedMixed:
    """A regression with effects of groups and its estimates."""

    fitted: Fitted
    terms: Sequence[str]
    effects: GroupEffects
    asked: Mapping[str, Any]
    formula: Any = None
    columns: EffectColumns | None = None

    kind: ClassVar[str] = "glm_grouped"

    @property
    def shown(self) -> dict[str, Any]:
        """What can be read off the fit itself."""
        return {"fitted": self.fitted, "formula": self.formula, "by_formula": True, "effects": self.effects}

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> GroupPredictive | StudentRows:
        return self._predict(*args, **kwargs)

    def _predict(
        self, data: Any, *, groups: str = "auto", offset: Given = None, exposure: Given = None, trials: Given = None
    ) -> GroupPredictive | StudentRows:
        """New rows: a data frame. Rows of groups that were fitted have these groups' effects, others are of new groups.

        With ``groups="known"`` a group that was not fitted is refused; with ``groups="new"`` every row is of a new group.
        """
        if groups not in CHOICES:
            raise ModelError(f'groups takes "auto", "known" or "new"; got {groups!r}.')
        if self.formula is None or self.columns is None:
            raise PersistError("this fit was made without a formula that can be kept, so new rows cannot be read.")
        frame = as_pandas(data)
        offset, exposure, trials = (
            self.formula.given_of(frame, label) if given is None else given
            for label, given in (("offset", offset), ("exposure", exposure), ("trials", trials))
        )
        matrix, more = self.formula.matrix_of(frame)
        m = self.fitted.predictor(matrix, more + read_offset(offset, exposure, len(frame)))
        columns = self.columns.matrix_of(frame)
        places = np.full(len(frame), -1)
        if groups != "new":
            labels = self.columns.labels_of(frame)
            places = self.effects.places(
                labels, self.columns.labels_of(frame, inner=True) if self.columns.inner else None
            )
            if groups == "known" and np.any(places < 0):
                row = int(np.flatnonzero(places < 0)[0])
                raise DataError(
                    f'row {row} is of the group "{labels[row]}" of "{self.effects.name}", which was not fitted. Take '
                    'groups="auto" to predict it as a new group.'
                )
        counted = None if trials is None else np.broadcast_to(np.asarray(trials, dtype=float), m.shape)
        if self.effects.precisions is not None:
            return student_rows(self.fitted.shared["scale"], self.effects, m, columns, places)
        return GroupPredictive(self.fitted, self.effects, m, columns, places, counted)

    def with_intercepts(self, matrix: Any, offset: np.ndarray, labels: Any, trials: Any) -> GroupPredictive:
        """New rows of a model whose groups have intercepts: a matrix of columns and labels of groups; None, new groups."""
        m = self.fitted.predictor(matrix, offset)
        places = np.full(len(m), -1) if labels is None else self.effects.places(labels)
        counted = None if trials is None else np.broadcast_to(np.asarray(trials, dtype=float), m.shape)
        return GroupPredictive(self.fitted, self.effects, m, np.ones((len(m), 1)), places, counted)

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        known = {made: name for name, made in FAMILIES.items()}
        effects = self.effects
        plain = lambda labels: [one if isinstance(one, str | int | float | bool) else str(one) for one in labels]
        inner = {} if effects.inner_labels is None else {
            "inner": effects.inner_name,
            "inner_labels": plain(effects.inner_labels),
            "inner_groups": [] if self.columns is None else list(self.columns.inner),
            "outer": effects.outer,
        }  # fmt: skip
        about = {
            "family": known.get(type(self.fitted.family)),
            "family_name": repr(self.fitted.family),
            "law": type(self.fitted.law).__name__,
            "asked": dict(self.asked),
            "intercept": self.fitted.intercept,
            "formula": None if self.formula is None else formula_to_json(self.formula),
            "effects": {
                "name": effects.name,
                "terms": list(effects.terms),
                "law": effects.law.name,
                "labels": plain(effects.labels),
                **inner,
                "groups": [] if self.columns is None else list(self.columns.groups),
                "parts": [] if self.columns is None else [formula_to_json(part) for part in self.columns.parts],
            },
        }
        arrays = {
            "phi": self.fitted.phi,
            "coefficients": self.fitted.coefficients,
            "effects:factor": effects.factor,
            "effects:psi": effects.psi,
            "effects:mean": effects.mean,
            "effects:covariance": effects.covariance,
            **({} if effects.precisions is None else {"effects:precisions": effects.precisions}),
            **({} if effects.inner_owner is None else {"effects:owner": effects.inner_owner.astype(float)}),
        }
        return about, arrays

    def fields(self, outcome: str, labels: Sequence[str]) -> dict[str, Any]:
        """What the model says of itself, as fields of a :class:`Fit`."""
        law, shared, effects = self.fitted.law, self.fitted.shared, self.effects
        wanted = law_asked(self.fitted.family, {"local": self.asked["local"], "prior": "normal"})
        numbers: dict[str, Any] = {**dict.fromkeys(("spread", "dof", "scale", "flip")), **law.implied}
        numbers |= {name: value for name, value in shared.items() if name in numbers}
        if outcome == "boundary" and type(law) is not type(wanted):
            numbers |= wanted.at_boundary
        numbers["group_dof"] = float(np.exp(effects.psi[0])) if effects.law.names else np.inf
        about = effects.sd_by_group
        about[effects.name] |= _law_numbers(effects)
        owners = "; ".join(
            f'every group of "{name}" has its own {", ".join(sds)} ({effects.law.name if name == effects.name else "normal"} law)'
            for name, sds in effects.sd_by_group.items()
        )
        rows = f"; rows: {law.describe().local}" if law.local is not None else ""
        return {
            "model": self,
            "terms": list(self.terms),
            "asked": dict(self.asked),
            "hyperparameters": Hyperparameters(about),
            "shared": shared,
            "derived": numbers
            if self.asked["group_law"] in ("student_t", "precision")
            else _left_out(numbers, "group_dof"),
            "scales": [interval_scale(law, label, place < len(self.terms)) for place, label in enumerate(labels)],
            "told": {
                "family": repr(self.fitted.family),
                "local": f"{owners}{rows}",
                "groups": f"{len(effects.labels)}"
                + ("" if effects.inner_labels is None else f", and {len(effects.inner_labels)} within them"),
            },
            "outlier_rule": "tails",
            "unit": effects.name,
        }


def _within(given: GroupDesign) -> tuple[Any, ...]:
    """What predictions need to know of groups within groups."""
    if given.inner is None:
        return ()
    return given.inner.name, given.inner.labels, given.outer, given.inner.owner


def _names_of(labels: Sequence[Any]) -> np.ndarray:
    """Labels of groups as files keep them: whole numbers or texts."""
    return np.array([one if type(one) is int else str(one) for one in labels], dtype=object)


def _law_numbers(effects: GroupEffects) -> dict[str, float]:
    return {name: float(np.exp(value)) for name, value in zip(effects.law.names, effects.psi)}


def _left_out(numbers: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in numbers.items() if key != name}


def interval_scale(law: Any, label: str, is_term: bool) -> str:
    """The scale on which an interval of a number is symmetric."""
    if is_term:
        return "real"
    if label.startswith("corr("):
        return "correlation"
    return "log" if "(" in label else law.scale_of(label.removesuffix(SHARED))


def mixed_of(fit: Fit) -> FittedMixed:
    """The mixed model behind a fit."""
    if not isinstance(fit.model, FittedMixed):
        raise ModelError(
            'a regression with groups is needed, such as rb.glm("y ~ x + (1 | g)"); got a fit of another model.'
        )
    return fit.model


def grouped_fit(
    found: Found,
    asked: GroupPlan,
    local: LocalChoice,
    group_law: str,
    notes: Sequence[str],
    formula: Any,
    columns: EffectColumns | None,
    of_rows: RowLabels,
) -> Fit:
    """A result from what a search found."""
    problem = found.problem
    assert isinstance(problem, GroupedRegression)
    source = (LinearSource if isinstance(problem, LinearGroupedRegression) else GroupSource)(found, asked)
    design, law, at = problem.design, problem.plan.law, problem.at(found.vector)
    fitted = Fitted(law, np.asarray(at.phi), design.to_coefficients @ at.u, design.intercept)
    given = problem.given
    effects = GroupEffects(
        given.grouping.name, given.terms, at.factor / given.sizes[:, None], problem.plan.effects, at.psi,
        given.grouping.labels, source.known_effects, source.precisions(), *_within(given),
    )  # fmt: skip
    numbers, slopes = source.components_and_slopes(found.vector)
    free = [law.names[i] for i in problem.free]
    size, terms = design.size, len(design.terms)
    jacobian = np.zeros((terms + len(free) + len(numbers), len(found.vector)))
    jacobian[:terms, :size] = design.to_coefficients
    for place, index in enumerate(problem.free):
        jacobian[terms + place, size + place] = law.slope(law.names[index], at.phi[index])
    jacobian[terms + len(free) :] = slopes
    labels = [*design.terms, *(f"{name}{SHARED}" if name in design.terms else name for name in free), *numbers]
    values = [*fitted.coefficients, *(fitted.shared[name] for name in free), *numbers.values()]
    model = FittedMixed(fitted, design.terms, effects, {"local": local, "group_law": group_law}, formula, columns)
    return Fit(
        parameters=dict(zip(labels, values)),
        labels=labels,
        vector=found.optimum.vector,
        jacobian=jacobian,
        curve=found.optimum.curve,
        objective=found.optimum.value,
        evidence_by_row=None,
        summed_evidence=found.log_likelihood,
        weight=np.ones(len(given.grouping)),
        outcome=found.outcome,
        history=found.optimum.history,
        approximation=source.describe(),
        notes=(*notes, *found.notes),
        source=source,
        aliased=design.aliased,
        row_count=len(design),
        row_labels=RowLabels(_names_of(given.grouping.labels), None, of_rows.dropped, of_rows.lacking),
        freedom={} if not problem.entries and not problem.fixed else given.freedom,
        **model.fields(found.outcome.kind, labels),
    )
