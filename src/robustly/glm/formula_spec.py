"""How does a formula become columns, again and for other rows? What it learned from its data, kept without code.

formulaic splits a formula into terms and decides which categories lose a level; every factor of a term is read and computed
by :mod:`robustly.glm.formula_language` and :mod:`robustly.glm.formula_evaluate`. What remains is a list of factors with what
they learned (levels, contrasts, knots, centres) and of terms that multiply them: :class:`Side`. Predictions are made from it
alone, in memory and after reading it from a file.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from formulaic import ModelSpec, SimpleFormula
from formulaic.errors import DataMismatchWarning, FormulaicError
from formulaic.materializers import PandasMaterializer
from formulaic.parser.types import Factor
from formulaic.transforms import C, ContrastsRegistry

from robustly.errors import DataError, ModelError, did_you_mean, names
from robustly.glm.formula_evaluate import column_values, columns_learned, plain_rows, raw_columns, rows_of, words_of
from robustly.glm.formula_frames import as_pandas, refuse_missing, refuse_texts, values_of
from robustly.glm.formula_language import read_expression
from robustly.glm.formula_nodes import Category, Column, Expression, Learned, Text, columns_of, walk


@dataclass(frozen=True)
class Part:
    """The columns of one factor as a term uses them."""

    factor: int
    names: list[str]
    picked: list[int] | None = None
    """Of numbers: which of the factor's columns. Of levels: the level that each column marks."""
    coding: np.ndarray | None = field(default=None, compare=False)
    """Of levels under other contrasts: a row a level, a column a contrast."""


@dataclass(frozen=True)
class KeptFactor:
    text: str
    of: Expression
    levels: list[Any] | None = None
    """None for numbers."""
    buckets: int | None = None


@dataclass(frozen=True)
class Side:
    """One side of a formula: factors, the parts of them that terms multiply, and the names of the columns."""

    factors: list[KeptFactor]
    parts: list[Part]
    terms: list[tuple[float, list[int]]]
    columns: list[str]

    @property
    def variables(self) -> set[str]:
        """The columns of the data that are read."""
        return set().union(*(columns_of(factor.of) for factor in self.factors))

    def matrix(self, frame: pd.DataFrame) -> np.ndarray:
        """The columns of these rows, one by one as in `columns`; every one of them finite."""
        rows = len(frame)
        values = [_of_factor(factor, frame) for factor in self.factors]
        blocks = []
        for scale, inside in self.terms:
            block = np.full((rows, 1), scale)
            for place in inside:
                part = self.parts[place]
                encoded = _encoded(part, values[part.factor])
                # The first factor's columns run fastest, as in their names.
                block = (encoded[:, :, None] * block[:, None, :]).reshape(rows, encoded.shape[1] * block.shape[1])
            blocks.append(block)
        found = np.concatenate(blocks, axis=1) if blocks else np.zeros((rows, 0))
        if found.shape != (rows, len(self.columns)):
            raise ModelError(f"the formula gave {found.shape[1]} columns where {len(self.columns)} were fitted.")
        refuse_not_finite(found, self.columns)
        return found


@dataclass(frozen=True, eq=False)
class FormulaColumns:
    """How the right-hand side of a formula becomes columns, learned from the data it was fitted to."""

    text: str
    """The formula without its offsets, to show."""
    offset_texts: tuple[str, ...]
    side: Side = field(repr=False)
    offsets: tuple[Side, ...] = field(repr=False)
    classes: tuple[Any, ...] = ()
    """Of a response in words: the class counted as 0 and that counted as 1."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Columns that an offset, exposure or trials were taken from, by name."""

    @property
    def intercept(self) -> bool:
        return "Intercept" in self.side.columns

    @property
    def variables(self) -> list[str]:
        """The columns of the data that the right-hand side needs."""
        return sorted(self.side.variables.union(*(side.variables for side in self.offsets)))

    def matrix_of(self, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """Columns (without the intercept) and offsets of new rows."""
        frame = as_pandas(data)
        refuse_missing(frame, self.variables)
        factors = [factor for side in (self.side, *self.offsets) for factor in side.factors]
        numeric = [one for one in factors if one.levels is None or not isinstance(one.of, Column)]
        refuse_not_computable([(factor.text, factor.of) for factor in numeric], frame)
        matrix = self.side.matrix(frame)
        kept = [place for place, name in enumerate(self.side.columns) if name != "Intercept"]
        return matrix[:, kept], added_offsets(self.offsets, frame)

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


def added_offsets(sides: Sequence[Side], frame: pd.DataFrame) -> np.ndarray:
    """The sum of ``offset(...)`` terms, by row."""
    # No memory for a constant where there are none.
    return sum((side.matrix(frame)[:, 0] for side in sides), np.broadcast_to(0.0, len(frame)))


# ---------------------------------------------------------------------- reading terms


def factors_of(form: Any, columns: Sequence[str]) -> dict[str, Expression | Category]:
    """Every factor of one side, read and checked; nothing is computed before this has passed."""
    if not isinstance(form, SimpleFormula):
        raise ModelError(
            "the formula has a | or a second ~ in it. Write one response, one ~, and terms joined by +; effects of groups are (1 | g)."
        )
    found: dict[str, Expression | Category] = {}
    for factor in (factor for term in form for factor in term.factors):
        if factor.eval_method.value == "lookup":
            found[factor.expr] = Column(factor.expr)
        elif factor.eval_method.value == "python":
            read = read_expression(factor.expr, columns)
            if isinstance(read, Text):
                raise ModelError(f"the formula has the word {factor.expr} where a column has to stand.")
            found[factor.expr] = read
        elif not re.fullmatch(r"\d+(\.\d*)?|\.\d+", factor.expr):
            raise ModelError(f"the formula has {factor.expr!r} where a column or a number has to stand.")
    return found


def needed(form: Any, columns: Sequence[str] = ()) -> set[str]:
    """The columns of the data that a side of a formula reads."""
    return set().union(*(columns_of(one) for one in factors_of(form, columns).values()))


# ---------------------------------------------------------------------- learning from rows


@dataclass(frozen=True)
class Learnt:
    """The columns of the rows a formula was learned from, and what was learned."""

    matrix: np.ndarray
    side: Side

    @property
    def levels(self) -> list[Any] | None:
        """Those of the first factor made of words."""
        return next((factor.levels for factor in self.side.factors if factor.levels is not None), None)


def learn(
    form: Any,
    frame: pd.DataFrame,
    states: Mapping[str, dict[Any, Any]] | None = None,
    levels: Mapping[str, list[Any]] | None = None,
) -> Learnt:
    """The columns of one side; `states` and `levels` are what earlier rows taught, by the text of calls and of factors."""
    factors = factors_of(form, [str(name) for name in frame.columns])
    for node in (inner for factor in factors.values() for inner in walk(factor)):
        if isinstance(node, Learned) and states and node.text in states:
            node.state.update(states[node.text])
    maker = _Maker(frame, context={})
    maker.factors = factors
    maker.parts = {}
    known = {text: (Factor.Kind.CATEGORICAL, {"categories": list(one)}) for text, one in (levels or {}).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataMismatchWarning)
        try:
            made = maker.get_model_matrix(ModelSpec(formula=form, na_action="ignore", encoder_state=known))
        except (DataMismatchWarning, FormulaicError, ValueError, TypeError, KeyError, IndexError) as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, DataError | ModelError):
                    raise cause from None
                cause = cause.__cause__
            raise ModelError(f"the formula cannot be evaluated: {error}") from None
    side = maker.side(made.model_spec)
    matrix = made.to_numpy(dtype=float)
    if matrix.shape != (len(frame), len(side.columns)):
        raise ModelError(
            f"the formula gave {matrix.shape[0]} rows and {matrix.shape[1]} columns for {len(frame)} rows and "
            f"{len(side.columns)} names: two of its terms have one name. Write each term once."
        )
    refuse_not_finite(matrix, side.columns)
    return Learnt(matrix, side)


class _Maker(PandasMaterializer):  # type: ignore[misc]
    """formulaic's, with every factor computed by us; it writes down which columns of which factor it used."""

    factors: dict[str, Expression | Category]
    parts: dict[tuple[str, bool], list[str]]

    @PandasMaterializer.override  # type: ignore[untyped-decorator]
    def _lookup(self, name: str) -> Any:
        return column_values(self.data, name), set()

    @PandasMaterializer.override  # type: ignore[untyped-decorator]
    def _evaluate(self, expr: str, metadata: Any, spec: Any) -> Any:
        factor = self.factors[expr]
        if isinstance(factor, Learned):
            return raw_columns(factor, np.array(rows_of(factor.of, self.data), dtype=float)), set()
        if not isinstance(factor, Category):
            return plain_rows(factor, self.data), set()
        values, levels = words_of(factor, self.data), factor.levels
        if factor.buckets is not None:
            levels = list(range(factor.buckets))
        positional, named = factor.arguments
        try:
            contrast = getattr(ContrastsRegistry, factor.contrast)(*positional, **named)
        except (TypeError, ValueError) as error:
            raise ModelError(f"the contrasts of {expr!r} cannot be made: {error}") from None
        return C(values, contrast, levels=levels, spans_intercept=factor.spans_intercept), set()

    @PandasMaterializer.override  # type: ignore[untyped-decorator]
    def _encode_evaled_factor(self, factor: Any, spec: Any, drop_rows: Any, reduced_rank: bool = False) -> Any:
        found = super()._encode_evaled_factor(factor, spec, drop_rows, reduced_rank)
        self.parts[(factor.expr, reduced_rank)] = [str(name) for name in found]
        return found

    def side(self, spec: Any) -> Side:
        """What has to be kept of all this."""
        kept: dict[str, int] = {}
        factors: list[KeptFactor] = []
        parts: dict[tuple[str, bool], int] = {}
        made: list[Part] = []
        terms, columns = [], []
        for entry in spec.structure:
            for scoped in entry.scoped_terms:
                inside = []
                for used in scoped.factors:
                    text, reduced = used.factor.expr, bool(used.reduced)
                    if text not in kept:
                        kept[text] = len(factors)
                        factors.append(self._kept(text, spec))
                    if (text, reduced) not in parts:
                        parts[text, reduced] = len(made)
                        made.append(self._part(kept[text], factors[kept[text]], reduced, spec))
                    inside.append(parts[text, reduced])
                terms.append((float(scoped.scale), inside))
                called = [""]
                for place in inside:
                    called = [f"{old}:{new}" if old else new for new in made[place].names for old in called]
                columns += called if inside else ["Intercept"]
        doubled = (
            sorted({name for name in columns if columns.count(name) > 1}) if len(set(columns)) < len(columns) else []
        )
        if doubled:
            raise ModelError(
                f'the formula gives two columns called "{doubled[0]}". Rename the column of the data, or write the term once.'
            )
        return Side(factors, made, terms, columns)

    def _kept(self, text: str, spec: Any) -> KeptFactor:
        factor = self.factors[text]
        of = factor.of if isinstance(factor, Category) else factor
        if self.factor_cache[text].metadata.kind is not Factor.Kind.CATEGORICAL:
            return KeptFactor(text, of)
        levels = [
            one.item() if isinstance(one, np.generic) else one for one in spec.encoder_state[text][1]["categories"]
        ]
        return KeptFactor(text, of, levels, factor.buckets if isinstance(factor, Category) else None)

    def _part(self, place: int, factor: KeptFactor, reduced: bool, spec: Any) -> Part:
        called = self.parts[factor.text, reduced]
        if factor.levels is None:
            evaluated = self.factor_cache[factor.text]
            values, told = evaluated.values, evaluated.metadata
            fields = list(values) if isinstance(values.__wrapped__, dict) else list(range(len(called)))
            drop = reduced and told.spans_intercept and told.drop_field in fields
            return Part(place, called, [i for i, one in enumerate(fields) if not (drop and one == told.drop_field)])
        if not called:
            return Part(place, called, [])
        coding = spec.encoder_state[factor.text][1]["contrasts"].get_coding_matrix(reduced_rank=reduced, sparse=True)
        coding = coding.tocsc()
        coding.eliminate_zeros()
        if (np.diff(coding.indptr) == 1).all() and (coding.data == 1).all():
            return Part(place, called, coding.indices.tolist())
        return Part(place, called, None, np.asarray(coding.todense(), dtype=float))


# ---------------------------------------------------------------------- the same columns of other rows


def _of_factor(factor: KeptFactor, frame: pd.DataFrame) -> np.ndarray:
    """Of numbers (n, columns), of words the place of each row's level (n,)."""
    if factor.levels is None:
        if isinstance(factor.of, Learned):
            return np.column_stack(list(columns_learned(factor.of, frame).values()))
        return np.asarray(rows_of(factor.of, frame), dtype=float)[:, None]
    values = words_of(Category(factor.of, buckets=factor.buckets), frame)
    places = pd.Index(factor.levels, dtype=object).get_indexer(pd.Index(np.asarray(values, dtype=object), dtype=object))
    unseen = np.flatnonzero(places < 0)
    if unseen.size:
        what = f'column "{factor.of.name}"' if isinstance(factor.of, Column) else f"the term {factor.text}"
        known = names(map(str, factor.levels[:8])) + (" …" if len(factor.levels) > 8 else "")
        raise DataError(
            f'{what} holds "{np.asarray(values, dtype=object)[unseen[0]]}" in row {unseen[0]}, a level that was not there when '
            f"the model was fitted (there were {known}). Drop the rows, or fit again with them."
        )
    return places


def _encoded(part: Part, values: np.ndarray) -> np.ndarray:
    if part.coding is not None:
        return part.coding[values]
    picked = np.asarray(part.picked, dtype=int)
    return values[:, picked] if values.ndim == 2 else (values[:, None] == picked).astype(float)


# ---------------------------------------------------------------------- rows that cannot be computed


def not_computable(factors: Sequence[tuple[str, Expression | Category]], frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Rows where a function of columns is no finite number, by the text of its factor; nothing is learned here."""
    found: dict[str, np.ndarray] = {}
    for text, factor in factors:
        node: Any = factor
        while isinstance(node, Learned | Category):
            node = node.of
        if isinstance(factor, Category) and isinstance(node, Column):
            continue
        if isinstance(node, Column) and not pd.api.types.is_numeric_dtype(values_of(frame, node.name)):
            continue  # Words, which become categories; where numbers are needed the evaluation says so.
        if any(isinstance(inner, Learned) for inner in walk(node)):
            continue
        bad = np.flatnonzero(~np.isfinite(np.asarray(rows_of(node, frame), dtype=float)))
        if bad.size:
            found[text] = bad
    return found


def refuse_not_computable(factors: Sequence[tuple[str, Expression | Category]], frame: pd.DataFrame) -> None:
    """The first such row, with its term and the values that were put into it."""
    for text, bad in not_computable(factors, frame).items():
        row = int(bad[0])
        read = sorted(columns_of(dict(factors)[text]))
        values = " and ".join(f"{name} = {frame[name].iloc[row]}" for name in read[:3])
        more = f" (and in {bad.size - 1} more rows)" if bad.size > 1 else ""
        if read == [text]:
            raise DataError(
                f'column "{text}" holds {frame[text].iloc[row]} in row {row}{more}. Correct or drop these rows.'
            )
        raise DataError(
            f"the term {text} is not a finite number in row {row}{more}, where {values}. Correct or drop these rows, or "
            "write another function of them."
        )


def refuse_not_finite(matrix: np.ndarray, columns: Sequence[str]) -> None:
    """A column of the design that is NaN or infinite somewhere, by name and row."""
    if np.isfinite(matrix).all():
        return
    row, place = np.argwhere(~np.isfinite(matrix))[0]
    raise DataError(
        f"the formula's column {columns[place]} is {matrix[row, place]} in row {row}. A constant column cannot be scaled, and "
        "powers of large numbers overflow: correct the row, or write another function of it."
    )
