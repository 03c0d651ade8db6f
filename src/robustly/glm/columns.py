"""How does a formula become columns, again and for other rows? What it learned from its data, kept without code.

Categories, spline knots and centres are found once, when the model is fitted, and used for all later rows. On disk they are
numbers and texts beside the formula; a formula that is read back may call formulaic's transforms and NumPy's element-wise
functions on its own columns and nothing else, so a file from elsewhere cannot run code.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError, PersistError, did_you_mean, names

ALLOWED = (
    ast.Expression, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Constant, ast.Attribute, ast.List, ast.Tuple, ast.Dict,
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class FormulaColumns:
    """How the right-hand side of a formula becomes columns, learned from the data it was fitted to."""

    text: str
    """The formula without its offsets."""
    offset_texts: tuple[str, ...]
    spec: Any = field(repr=False)
    offsets: tuple[Any, ...] = field(repr=False)
    first: pd.DataFrame = field(repr=False)
    """The columns the formula reads, with one row of the data: what kind of values they hold."""
    classes: tuple[Any, ...] = ()
    """Of a response in words: the class counted as 0 and that counted as 1."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Columns that an offset, exposure or trials were taken from, by name."""

    @property
    def intercept(self) -> bool:
        return "Intercept" in self.spec.column_names

    @property
    def variables(self) -> list[str]:
        """The columns of the data that the right-hand side needs."""
        return [str(name) for name in self.first.columns]

    def matrix_of(self, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """Columns (without the intercept) and offsets of new rows."""
        frame = as_pandas(data)
        refuse_missing(frame, self.variables)
        self._refuse_other_kinds(frame)
        matrix = evaluate(self.spec, frame)
        offset = sum((evaluate(spec, frame).to_numpy(float)[:, 0] for spec in self.offsets), np.zeros(len(frame)))
        columns = matrix.drop(columns=["Intercept"]) if self.intercept else matrix
        return columns.to_numpy(dtype=float), offset

    def given_of(self, data: Any, label: str) -> Any:
        """The offset, exposure or trials of new rows, from the column they had when the model was fitted."""
        if label not in self.given:
            return None
        frame, name = as_pandas(data), self.given[label]
        if name not in frame.columns:
            raise DataError(
                f'the model was fitted with the column "{name}" as {label}, and the new data have no such column. Add it, or '
                f"give {label}=... itself." + did_you_mean(name, map(str, frame.columns))
            )
        refuse_missing(frame, [name])
        refuse_texts(frame[name], name, f"it is the {label}, a number")
        return frame[name]

    def _refuse_other_kinds(self, frame: pd.DataFrame) -> None:
        """Texts where the fit saw numbers, and levels that it never saw, by column and row."""
        for name in self.variables:
            if pd.api.types.is_numeric_dtype(self.first[name]):
                refuse_texts(frame[name], name)
        for factor, (_, state) in self.spec.encoder_state.items():
            inside = re.match(r"C\((.*?)[,)]", factor)
            name = inside[1].strip("` ") if inside else factor
            if name not in self.variables or "categories" not in state:
                continue
            bad = np.flatnonzero(~frame[name].isin(state["categories"]).to_numpy())
            if bad.size:
                value = frame[name].iloc[bad[0]]
                known = names(map(str, state["categories"][:8])) + (" …" if len(state["categories"]) > 8 else "")
                raise DataError(
                    f'column "{name}" holds "{value}" in row {bad[0]}, a level that was not there when the model was '
                    f"fitted (there were {known}). Drop the rows, or fit again with them."
                )

    # ------------------------------------------------------------------ keeping

    def to_saved(self) -> dict[str, Any] | None:
        """Everything as JSON values; None for a formula that could not be read back safely."""
        try:
            for spec in (self.spec, *self.offsets):
                refuse_code(spec.formula, self.variables)
            return {
                "text": self.text,
                "offset_texts": list(self.offset_texts),
                "states": [_state_of(spec) for spec in (self.spec, *self.offsets)],
                "first": {str(name): _plain(self.first[name].iloc[0]) for name in self.first},
                "terms": list(self.spec.column_names),
                "classes": [_plain(one) for one in self.classes],
                "given": dict(self.given),
            }
        except (PersistError, TypeError):
            return None


def from_saved(meta: Mapping[str, Any]) -> FormulaColumns:
    """What :meth:`FormulaColumns.to_saved` gave, after a look at every expression in it."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    try:
        first = pd.DataFrame({name: [value] for name, value in meta["first"].items()}, index=[0])
        there = {"__formulaic_variables_available__": list(first)}
        forms = [Formula(meta["text"], _context=there).rhs, *(Formula(f"0 + {text}") for text in meta["offset_texts"])]
        for form in forms:
            refuse_code(form, list(first))
        specs = [_spec_of(form, state, first) for form, state in zip(forms, meta["states"], strict=True)]
        classes, given = tuple(meta["classes"]), {str(label): str(name) for label, name in meta["given"].items()}
    except PersistError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, SyntaxError, FormulaicError) as error:
        raise PersistError(f"the formula kept in this file is damaged: {error}. Save the fit again.") from error
    if list(specs[0].column_names) != meta["terms"]:
        raise PersistError("the formula kept in this file gives other columns than the fit had. Save the fit again.")
    return FormulaColumns(meta["text"], tuple(meta["offset_texts"]), specs[0], tuple(specs[1:]), first, classes, given)


def needed(form: Any) -> set[str]:
    """The columns that a side of a formula reads. (formulaic's own answer cuts names at their first dot.)"""
    from formulaic.transforms import TRANSFORMS
    from formulaic.utils.code import sanitize_variable_names

    found = set()
    for factor in {factor for term in form for factor in term.factors}:
        if factor.eval_method.value == "lookup":
            found.add(factor.expr)
        elif factor.eval_method.value == "python":
            aliases: dict[str, str] = {}
            tree = ast.parse(sanitize_variable_names(factor.expr, {}, aliases), mode="eval")
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and (node.id in aliases or node.id not in TRANSFORMS):
                    found.add(aliases.get(node.id, node.id))
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Q":
                    found |= {str(one.value) for one in node.args[:1] if isinstance(one, ast.Constant)}
    return found


def refuse_code(form: Any, columns: Sequence[str]) -> None:
    """Refuse expressions that do more than compute with columns; formulaic evaluates whatever Python it is given."""
    from formulaic.transforms import TRANSFORMS
    from formulaic.utils.code import sanitize_variable_names

    for expression in {factor.expr for term in form for factor in term.factors if factor.eval_method.value == "python"}:
        aliases: dict[str, str] = {}
        tree = ast.parse(sanitize_variable_names(expression, {}, aliases), mode="eval")
        known = {*columns, *aliases, *TRANSFORMS}
        called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            fine = isinstance(node, ALLOWED)
            if isinstance(node, ast.Name):
                fine = node.id in known and (id(node) not in called or (node.id in TRANSFORMS and node.id != "np"))
            elif isinstance(node, ast.Attribute):
                fine = _harmless(node)
            elif isinstance(node, ast.Call):
                fine = isinstance(node.func, ast.Name | ast.Attribute)
            if not fine:
                raise PersistError(f"the formula holds {expression!r}, which is more than functions of columns.")


def _harmless(node: ast.Attribute) -> bool:
    """Contrasts, and NumPy's element-wise functions; not those that read and write files."""
    if not isinstance(node.value, ast.Name) or node.attr.startswith("_"):
        return False
    found = getattr(np, node.attr, None)
    return node.value.id == "contr" or (
        node.value.id == "np" and (isinstance(found, np.ufunc | float) or node.attr in ("where", "clip", "round"))
    )


def _state_of(spec: Any) -> dict[str, Any]:
    encoders = {
        # formulaic keeps the contrasts for show only; they are written in the formula.
        factor: [kind.value, {name: value for name, value in state.items() if name != "contrasts"}]
        for factor, (kind, state) in spec.encoder_state.items()
    }
    return {"transforms": _plain(dict(spec.transform_state)), "encoders": _plain(encoders)}


def _spec_of(form: Any, state: Mapping[str, Any], first: pd.DataFrame) -> Any:
    from formulaic import ModelSpec
    from formulaic.parser.types import Factor

    encoders = {factor: (Factor.Kind(kind), inner) for factor, (kind, inner) in _rebuilt(state["encoders"]).items()}
    spec = ModelSpec(formula=form, transform_state=_rebuilt(state["transforms"]), encoder_state=encoders)
    return evaluate(spec, first).model_spec


def _plain(value: Any) -> Any:
    """As JSON values. Dictionaries become lists of pairs, for their keys may be numbers."""
    if isinstance(value, dict):
        return {"map": [[_plain(key), _plain(inner)] for key, inner in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": value.astype(float).tolist()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} cannot be kept in a file")


def _rebuilt(value: Any) -> Any:
    if isinstance(value, list):
        return [_rebuilt(inner) for inner in value]
    if isinstance(value, dict):
        if "array" in value:
            return np.asarray(value["array"], dtype=float)
        return {_rebuilt(key): _rebuilt(inner) for key, inner in value["map"]}
    return value


# ---------------------------------------------------------------------- reading frames


def as_pandas(data: Any) -> pd.DataFrame:
    """A pandas frame from any that narwhals knows, or a dictionary of columns."""
    if isinstance(data, pd.DataFrame):
        return data
    if isinstance(data, dict):
        return pd.DataFrame(data)
    try:
        import narwhals as nw

        frame = nw.from_native(data, eager_only=True)
    except (TypeError, ImportError):
        raise DataError(
            f"data is a pandas or polars frame, or a dictionary of columns; got {type(data).__name__}."
        ) from None
    return pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})


def refuse_missing(frame: pd.DataFrame, wanted: Sequence[str] | set[str]) -> None:
    """Columns that are not there, and rows without a value."""
    for name in sorted(str(one) for one in wanted):
        if name not in frame.columns:
            there = [str(one) for one in frame.columns]
            listed = names(there[:20]) + (f" and {len(there) - 20} more" if len(there) > 20 else "")
            raise DataError(
                f'the formula speaks of "{name}", which is not in the data; there are {listed}.'
                + did_you_mean(name, there)
            )
        gone = np.flatnonzero(frame[name].isna().to_numpy())
        if gone.size:
            more = f" and {gone.size - 1} more" if gone.size > 1 else ""
            raise DataError(f'column "{name}" holds a missing value in row {gone[0]}{more}. Drop or fill these rows.')


def refuse_texts(column: pd.Series, name: str, what: str = "numbers are needed") -> None:
    """The first value of a column that is no number."""
    if pd.api.types.is_numeric_dtype(column):
        return
    bad = np.flatnonzero(pd.to_numeric(column, errors="coerce").isna().to_numpy() & ~column.isna().to_numpy())
    place = f'"{str(column.iloc[bad[0]])[:60]}" in row {bad[0]}' if bad.size else f"values of type {column.dtype}"
    more = f" (and in {bad.size - 1} more rows)" if bad.size > 1 else ""
    raise DataError(f'column "{name}" holds {place}{more}, but {what}. Correct or drop these rows.')


def evaluate(spec: Any, frame: pd.DataFrame) -> Any:
    """The columns of a formula, or an error in words."""
    from formulaic.errors import DataMismatchWarning, FormulaicError

    with warnings.catch_warnings():
        warnings.simplefilter("error", DataMismatchWarning)
        try:
            return spec.get_model_matrix(frame, context={})
        except DataMismatchWarning as error:
            unseen = str(error).rpartition(": ")[2].split(".")[0]
            raise DataError(
                f"the new data hold levels that were not there when the model was fitted: {unseen}. Drop the rows, or "
                "fit again with them."
            ) from None
        except FormulaicError as error:
            if isinstance(error.__cause__, DataMismatchWarning) or "outside of the nominated levels" in str(error):
                raise DataError(f"the new data hold levels unknown to the fit: {error}") from None
            raise ModelError(f"the formula cannot be evaluated: {error}") from None
