"""How do columns that are not in memory become a regression's rows? Piece by piece, each time a pass needs them.

An estimator takes columns of the same rows: the matrix, the response, and what goes along with them. A formula is first learned
from all rows (levels, knots, centres: one scan of the columns they are made of), and then makes the columns of each piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, names
from robustly.glm.family import Family
from robustly.glm.formula_bars import take_bars
from robustly.glm.formula_evaluate import raw_columns, rows_of, words_of
from robustly.glm.formula_frames import refuse_missing, values_of
from robustly.glm.formula_nodes import Category, Column, Expression, Learned, columns_of, walk
from robustly.glm.formula_parse import parse
from robustly.glm.formula_rows import FormulaRows, column_of, learn_offset, read_left
from robustly.glm.formula_spec import FormulaColumns, Side, factors_of, learn, needed
from robustly.glm.grouped.design import effects_form, intercepts_of
from robustly.glm.grouped.plan import GroupDesign
from robustly.glm.grouped.stored import (
    GroupedRecipe,
    stored_effects,
    stored_group_design,
    stored_grouping,
)
from robustly.glm.named import as_family
from robustly.glm.predictive import Fitted, GLMPredictive, of_kind
from robustly.model.linear import Design
from robustly.model.read_design import DATA, design_of, read_offset, read_response
from robustly.rows.anywhere import along, rows_from
from robustly.rows.store import Data, Rows
from robustly.rows.stored import Layout, Stored, column_as_it_is
from robustly.rows.streamed import Recipe, StreamedRows

# Splines and polynomials of more rows are learned from so many evenly spaced quantiles of their column: a number that all
# numbers up to 16 divide, so that quantiles at equal steps are among them and the knots are those of all rows.
QUANTILES = 720_720
# Rows by which terms are laid out, once all is learned.
FEW = 64
LEARN_WHOLE = ("center", "scale", "standardize")


@dataclass(frozen=True)
class DesignRecipe:
    """Matrix, offset, response and trials of a piece, from columns that stand side by side."""

    also: tuple[str, ...] = ()
    """What comes after matrix and response: of weight, offset, exposure and trials, those that were given."""
    classes: tuple[Any, ...] = ()
    """Of a yes-or-no response in other values than 0 and 1: the one counted as 0 and the one counted as 1."""

    def __call__(self, matrix: Any, y: Any, *more: Any) -> tuple[Data, Any]:
        given = dict(zip(self.also, more))
        response = np.asarray(y)
        if self.classes:
            response = (response == self.classes[1]).astype(float)
        return design_data(matrix, response, given)


def design_data(matrix: np.ndarray, y: Any, given: Mapping[str, Any]) -> tuple[Data, Any]:
    """The arrays of a regression's rows and their weights, checked."""
    n = len(matrix)
    response, counted = read_response(y, n, given.get("trials"))
    offset = read_offset(given.get("offset"), given.get("exposure"), n)
    weight = given.get("weight")
    if weight is not None:
        weight = np.asarray(weight, dtype=float)
        bad = np.flatnonzero(~np.isfinite(weight) | (weight < 0))
        if bad.size:
            raise DataError(
                f"weights hold {weight[bad[0]]} in row {bad[0]}; a weight is a finite number of at least 0."
            )
    return (matrix, offset, response, counted), weight


def stored_design(
    X: Stored,
    y: Any,
    given: Mapping[str, Any],
    *,
    intercept: bool,
    ridge: float,
    classes: tuple[Any, ...] = (),
) -> Design:
    """The design of columns that are not in memory; `given` has weight, offset, exposure and trials as far as they are."""
    asked, recipe = _columns_of_design(X, y, given, classes, ())
    some = [place for place, label in enumerate(recipe.also) if label in ("weight", "trials")]
    bare = ResponseRecipe(DesignRecipe(tuple(recipe.also[place] for place in some), classes))
    rows = rows_from(asked, Layout(recipe, DATA, many_passes=True))
    responses = _bare_responses(rows, [asked[1], *(asked[2 + place] for place in some)], bare)
    return _design_from(rows, asked[0], intercept, ridge, responses)


@dataclass(frozen=True)
class ResponseRecipe:
    """As a design's recipe, of rows whose columns are not read."""

    design: DesignRecipe

    def __call__(self, y: Any, *more: Any) -> tuple[Data, Any]:
        return self.design(np.empty((len(y), 0)), y, *more)


def _bare_responses(rows: Rows, asked: Sequence[Stored], recipe: Recipe) -> Rows | None:
    """A store of nothing but the responses of rows; on a cluster, where all is in memory, nothing is spared by it."""
    return rows_from(asked, Layout(recipe, DATA)) if isinstance(rows, StreamedRows) else None


def stored_design_in_groups(
    X: Stored, y: Any, given: Mapping[str, Any], groups: Any, family: Family, *, intercept: bool, ridge: float
) -> GroupDesign:
    """The same of rows in groups, which are sorted by a column of labels and have an intercept each."""
    labels = along(X, groups, "groups")
    asked, recipe = _columns_of_design(X, y, given, (), (labels,))
    rows = rows_from(asked, Layout(GroupedRecipe(recipe, family), DATA, as_cut=True))
    effects = intercepts_of(stored_grouping(labels))
    return stored_group_design(rows, effects, lambda found: _design_from(found, asked[0], intercept, ridge))


def _columns_of_design(
    X: Stored, y: Any, given: Mapping[str, Any], classes: tuple[Any, ...], taken: Sequence[Stored]
) -> tuple[list[Stored], DesignRecipe]:
    """Columns of the matrix, the response and what goes along, and what makes rows of them; `taken` are no columns of the matrix."""
    response = along(X, y, "y")
    beside = {label: along(X, one, label) for label, one in given.items() if one is not None}
    matrix = X.matrix_beside([response, *beside.values(), *taken])
    return [matrix, response, *beside.values()], DesignRecipe(tuple(beside), classes)


def _design_from(
    rows: Rows, matrix: Stored, intercept: bool, ridge: float, without_columns: Rows | None = None
) -> Design:
    return _with_weight(
        design_of(rows, matrix.listed, intercept=intercept, ridge=ridge, without_columns=without_columns)
    )


def _with_weight(design: Design) -> Design:
    if not design.rows.total_weight > 0:
        raise DataError("all weights are zero, so no row counts. Give at least one row a positive weight.")
    return design


def classes_in(X: Stored, y: Any) -> np.ndarray:
    """The two classes of a response, in ascending order."""
    response = along(X, y, "y")
    rows = rows_from([response], Layout(column_as_it_is, ("y",)))
    found = sorted({one for part in rows.each_piece(_distinct) for one in part})
    if len(found) != 2:
        listed = names([str(one) for one in found[:6]])
        raise DataError(f"y holds {listed}; two classes are needed to tell them apart, and no more.")
    return np.array(found)


def _distinct(data: Data) -> list[Any]:
    return np.unique(data[0]).tolist()


# ---------------------------------------------------------------------- formulas


@dataclass(frozen=True, eq=False)
class FormulaRecipe:
    """Matrix, offset, response and trials of a piece, by a formula that has been learned."""

    columns: FormulaColumns
    left: Side
    given: Mapping[str, str]
    response_only: bool = False
    """Whether only the response is made, with what goes along but no offset."""

    def __call__(self, frame: pd.DataFrame) -> tuple[Data, Any]:
        frame = frame.reset_index(drop=True)
        none = np.empty((len(frame), 0)), np.broadcast_to(0.0, len(frame))
        matrix, within = none if self.response_only else self.columns.matrix_of(frame)
        refuse_missing(frame, self.left.variables)
        response = self.left.matrix(frame)
        if self.columns.classes:
            response = response[:, -1]
        elif response.shape[1] == 1:
            response = response[:, 0]
        numbers = {label: column_of(frame, label, name) for label, name in self.given.items()}
        offset = numbers.get("offset")
        numbers["offset"] = within if offset is None else within + np.asarray(offset, dtype=float)
        return design_data(matrix, response, numbers)


def read_stored_formula(
    formula: str, data: Stored, family: Any, given: Mapping[str, Any], alpha: float = 0.0
) -> FormulaRows:
    """As :func:`robustly.glm.formula.read_formula`, of rows that are not in memory."""
    there = list(data.there)
    for label, name in given.items():
        if name is not None and not isinstance(name, str):
            raise DataError(f"{label} is an array, but the rows are in {data.where}. Give the name of a column.")
    named = {label: name for label, name in given.items() if name is not None}
    plain, bars = take_bars(formula)
    told_apart = {name for bar in bars for name in bar.groups}
    core, parsed, added, offset_forms = parse(plain, [name for name in there if name not in told_apart])
    forms = (parsed.lhs, parsed.rhs, *offset_forms, *(effects_form(bar, plain, there)[1] for bar in bars))
    for name in sorted(told_apart.union(*(needed(form, there) for form in forms))):
        data.pick(name)  # says so if it is not there
    reads = sorted(told_apart.union(named.values(), *(needed(form, there) for form in forms)))
    frame = data.pick(tuple(reads), framed=True)
    factors = [pair for form in forms for pair in factors_of(form, there).items()]
    states, levels, first = _learned(frame, factors)
    chosen = as_family(family)
    left = learn(parsed.lhs, first, states, levels)
    _, classes = read_left(left, first, plain.split("~")[0].strip(), chosen)
    right = learn(parsed.rhs, first, states, levels)
    offsets = tuple(learn_offset(form, first, text, states) for form, text in zip(offset_forms, added))
    kept = {label: name for label, name in named.items() if label != "weights"}
    columns = FormulaColumns(core, tuple(added), right.side, offsets, classes, kept)
    labels = {"weight" if label == "weights" else label: name for label, name in named.items()}
    recipe: Recipe = FormulaRecipe(columns, left.side, labels)
    terms = [name for name in right.side.columns if name != "Intercept"]
    told = (f'"{classes[1]}" counts as 1 and "{classes[0]}" as 0.',) if classes else ()

    def designed(rows: Rows, without_columns: Rows | None = None) -> Design:
        found = design_of(rows, terms, intercept=columns.intercept, ridge=alpha, without_columns=without_columns)
        return _with_weight(found.noted(*told, *found.notes))

    if not bars:
        beside = {label: name for label, name in labels.items() if label in ("weight", "trials")}
        some = frame.pick(tuple(sorted(left.side.variables.union(beside.values()))), framed=True)
        bare = FormulaRecipe(columns, left.side, beside, response_only=True)
        rows = rows_from([frame], Layout(recipe, DATA, many_passes=True))
        design = designed(rows, _bare_responses(rows, [some], bare))
        return FormulaRows(design, chosen, columns)
    effects = stored_effects(bars, frame, plain, there, lambda form: learn(form, first, states, levels))
    rows = rows_from([frame], Layout(GroupedRecipe(recipe, chosen, effects.columns), DATA, as_cut=True))
    groups = stored_group_design(rows, effects, designed)
    return FormulaRows(groups.design, chosen, columns, groups, effects.columns)


def _as_frame(frame: pd.DataFrame) -> tuple[Data, None]:
    return (frame.reset_index(drop=True),), None


def _learned(
    data: Stored, factors: Sequence[tuple[str, Expression | Category]]
) -> tuple[dict[str, dict[Any, Any]], dict[str, list[Any]], pd.DataFrame]:
    """What a formula learns from all rows: states of calls by their text, levels of factors made of words; and a few rows."""
    calls = {node.text: node for _, one in factors for node in walk(one) if isinstance(node, Learned)}
    wanted = tuple(sorted(set().union(*(columns_of(node) for node in calls.values())))) if calls else ()
    scan = FormulaScan(wanted, tuple(factors))
    parts = rows_from([data], Layout(_as_frame, ("frame",))).each_piece(scan)
    levels: dict[str, list[Any]] = {}
    for text, _ in factors:
        seen = [part[1][text] for part in parts if text in part[1]]
        if seen:
            found = list(dict.fromkeys(level for one, _ in seen for level in one))
            levels[text] = found if all(ordered for _, ordered in seen) else sorted(found)
    frame = pd.DataFrame({name: np.concatenate([part[0][name] for part in parts]) for name in wanted})
    for node in calls.values():
        if node.state:
            continue
        x = np.array(rows_of(node.of, frame), dtype=float)
        if len(x) > QUANTILES + 1 and node.name not in LEARN_WHOLE:
            x = np.quantile(x, np.linspace(0.0, 1.0, QUANTILES + 1))
        raw_columns(node, x)
    return {text: node.state for text, node in calls.items()}, levels, parts[0][2]


@dataclass(frozen=True, eq=False)
class FormulaScan:
    """What one piece teaches a formula: the columns that calls learn from, and the levels of words."""

    wanted: tuple[str, ...]
    factors: tuple[tuple[str, Expression | Category], ...]

    def __call__(self, data: Data) -> tuple[dict[str, np.ndarray], dict[str, tuple[list[Any], bool]], pd.DataFrame]:
        frame = data[0]
        refuse_missing(frame, {name for _, one in self.factors for name in columns_of(one)})
        levels = {}
        for text, factor in self.factors:
            found = _levels_in(factor, frame)
            if found is not None:
                levels[text] = found
        return {name: np.asarray(frame[name], dtype=float) for name in self.wanted}, levels, frame.head(FEW)


def _levels_in(factor: Expression | Category, frame: pd.DataFrame) -> tuple[list[Any], bool] | None:
    """The levels of a factor made of words, and whether their order is the data's own; None for numbers."""
    if isinstance(factor, Category):
        if factor.levels is not None or factor.buckets is not None:
            return None
        values = words_of(factor, frame)
    elif isinstance(factor, Column):
        values = values_of(frame, factor.name)
        if pd.api.types.is_numeric_dtype(values):
            return None
    else:
        return None
    if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        return list(values.cat.categories), True
    distinct = pd.unique(np.asarray(values, dtype=object))
    return [one.item() if isinstance(one, np.generic) else one for one in distinct], False


# ---------------------------------------------------------------------- predictions


@dataclass(frozen=True, eq=False)
class PredictorPass:
    """A pass that gives the predictors of new rows, or their means of a kind; theta is nothing."""

    fitted: Fitted
    kind: str | None = None

    def __call__(
        self, theta: Any, data: Data, weight: np.ndarray, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any], None]:
        found = self.fitted.predictor(data[0], data[1])
        if self.kind is not None:
            found = of_kind(self.kind, GLMPredictive(self.fitted, found, None))
        return {}, {"found": found}, None


@dataclass(frozen=True)
class PredictorRecipe:
    """Matrix and offset of a piece."""

    also: tuple[str, ...] = ()

    def __call__(self, matrix: Any, *more: Any) -> tuple[Data, None]:
        given = dict(zip(self.also, more))
        return (matrix, read_offset(given.get("offset"), given.get("exposure"), len(matrix))), None


def stored_predictor(
    X: Stored, terms: Sequence[str], fitted: Fitted, offset: Any, exposure: Any, kind: str | None = None
) -> Any:
    """Predictors of new rows that are not in memory, or their means of a kind."""
    given = {"offset": offset, "exposure": exposure}
    beside = {label: along(X, one, label) for label, one in given.items() if one is not None}
    matrix = X.pick(tuple(terms)) if terms and X.columns is None else X.matrix_beside(list(beside.values()))
    if terms and set(matrix.listed) == set(terms):
        matrix = matrix.pick(tuple(terms))
    wanted = len(fitted.coefficients) - int(fitted.intercept)
    if len(matrix.listed) != wanted:
        raise DataError(f"the model was fitted with {wanted} columns; {X.where} gives {len(matrix.listed)}.")
    layout = Layout(PredictorRecipe(tuple(beside)), ("X", "offset"))
    return rows_from([matrix, *beside.values()], layout).map(PredictorPass(fitted, kind), None).by_unit["found"]
