"""A regression from a formula and a data frame, as R's `glm` takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError
from robustly.glm.families import as_family
from robustly.glm.fit import fit_glm
from robustly.glm.formula_frames import as_pandas, refuse_missing, refuse_other_length
from robustly.glm.formula_language import Column, numeric_columns_of
from robustly.glm.formula_parse import parse
from robustly.glm.formula_rows import FormulaRows, column_of, learn_offset, read_left
from robustly.glm.formula_spec import (
    FormulaColumns,
    added_offsets,
    factors_of,
    learn,
    needed,
    refuse_not_computable,
)
from robustly.glm.local import LocalChoice
from robustly.glm.stored import read_stored_formula
from robustly.model.linear import read_design
from robustly.result.fit import Fit
from robustly.rows.anywhere import as_stored


def glm(
    formula: str,
    data: Any,
    family: Any = "poisson",
    *,
    local: LocalChoice = "auto",
    weights: Any = None,
    offset: Any = None,
    exposure: Any = None,
    trials: Any = None,
    alpha: float = 0.0,
    **options: Any,
) -> Fit:
    """Fit a robust (or, with ``local=None``, the classical) generalized linear model by formula.

    Args:
        formula: ``"y ~ x + C(group) + bs(age, df=4) + a:b + offset(log(years))"``, in the language of formulaic;
            ``.`` stands for all columns but the response.
        data: a pandas or polars frame, or ``rb.parquet(path)``, whose columns are then read piece by piece.
        family: ``"normal"``, ``"poisson"``, ``"bernoulli"``, ``"binomial"``, ``"gamma"``, ``"exponential"``,
            ``"negative_binomial"``, or a :class:`~robustly.glm.families.Family`. A yes-or-no response may be in words:
            the second of the sorted classes counts as 1, and a note says so.
        local: what rows have of their own: ``"predictor"``, ``"dispersion"``, ``"label"``, None for the classical
            model, or a class of your own (:class:`~robustly.glm.law.Law`); ``"auto"`` is the dispersion of a normal and the
            predictor of anything else.
        weights, offset, exposure, trials: one value a row, or the name of a column.
        alpha: ridge penalty, the precision of a normal prior on every coefficient but the intercept.
        options: `prior`, `approx`, `solver`, `hyperprior`, `dof`, `spread`, `tol`, `max_iter`, as in ``RobustGLM``;
            `checkpoint`, a folder from which the same call goes on after its process was killed.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"visits": [0, 2, 1, 9, 3, 0, 14, 2], "age": [20, 31, 25, 60, 44, 23, 52, 39]})
        >>> fit = glm("visits ~ age", frame, family="poisson")
        >>> list(fit.coefficients.index)
        ['Intercept', 'age']
    """
    rows = read_formula(
        formula, data, family, weights=weights, offset=offset, exposure=exposure, trials=trials, alpha=alpha
    )
    return fit_glm(rows.design, rows.family, local=local, formula=rows.columns, **options)


def read_formula(
    formula: str,
    data: Any,
    family: Any = "poisson",
    *,
    weights: Any = None,
    offset: Any = None,
    exposure: Any = None,
    trials: Any = None,
    alpha: float = 0.0,
) -> FormulaRows:
    """The rows of a formula and a data frame, ready for :func:`~robustly.glm.fit.fit_glm`; arguments as in :func:`glm`."""
    stored = as_stored(data)
    if stored is not None:
        given = {"weights": weights, "offset": offset, "exposure": exposure, "trials": trials}
        return read_stored_formula(formula, stored, family, given, alpha)
    frame = as_pandas(data)
    there = [str(name) for name in frame.columns]
    core, parsed, added, offset_forms = parse(formula, there)
    sides = [factors_of(form, there) for form in (parsed.lhs, parsed.rhs, *offset_forms)]
    refuse_missing(frame, set().union(*(needed(form, there) for form in (parsed.lhs, parsed.rhs, *offset_forms))))
    refuse_empty(frame, formula)
    # Rows that cannot be used are looked for on all sides at once, before anything is learned from them: here is the one
    # place where they could be dropped, together with their weights, offset, exposure and trials.
    refuse_not_computable([pair for side in sides for pair in side.items()], frame)
    chosen = as_family(family)
    left = learn(parsed.lhs, frame)
    response, classes = read_left(left, frame, formula.split("~")[0].strip(), chosen)
    right = learn(parsed.rhs, frame)
    offsets = tuple(learn_offset(form, frame, text) for form, text in zip(offset_forms, added))
    given = {
        label: name
        for label, name in (("offset", offset), ("exposure", exposure), ("trials", trials))
        if isinstance(name, str)
    }
    columns = FormulaColumns(core, tuple(added), right.side, offsets, classes, given)
    kept = [place for place, name in enumerate(right.side.columns) if name != "Intercept"]
    matrix, within = right.matrix[:, kept], added_offsets(offsets, frame)
    numbers = {
        label: column_of(frame, label, given)
        for label, given in (("weights", weights), ("offset", offset), ("exposure", exposure), ("trials", trials))
    }
    refuse_unequal_rows(len(frame), matrix, response, within, numbers)
    design = read_design(
        matrix,
        response,
        [right.side.columns[place] for place in kept],
        intercept=columns.intercept,
        weight=numbers["weights"],
        offset=within if offset is None else within + np.asarray(numbers["offset"], dtype=float),
        exposure=numbers["exposure"],
        trials=numbers["trials"],
        ridge=alpha,
    )
    if classes:
        design = replace(design, notes=(f'"{classes[1]}" counts as 1 and "{classes[0]}" as 0.', *design.notes))
    return FormulaRows(design, chosen, columns)


def refuse_empty(frame: pd.DataFrame, formula: str) -> None:
    if not len(frame):
        raise DataError(
            f"the data have no rows, so {formula!r} has nothing to fit. Check how they were read or filtered."
        )


def refuse_unequal_rows(
    rows: int, matrix: np.ndarray, response: np.ndarray, within: np.ndarray, numbers: dict[str, Any]
) -> None:
    """Everything that goes along with the rows has as many of them: what is out of line is never cut or repeated."""
    for label, one in (("the columns", matrix), ("the response", response), ("the offsets", within)):
        if one.shape[0] != rows:
            raise DataError(f"{label} of the formula have {one.shape[0]} rows, but the data have {rows}.")
    for label, given in numbers.items():
        refuse_other_length(rows, label, given)


@dataclass(frozen=True)
class Variables:
    """The columns a formula reads, and those of its right-hand side that have to be numbers."""

    reads: frozenset[str]
    plain: frozenset[str]
    """Taken as they are: numbers, or words that become categories."""
    computed: frozenset[str]
    """Put into functions of numbers."""


def variables_of(formula: str, columns: Iterable[str]) -> Variables:
    """What a formula asks of its data."""
    there = list(columns)
    _, parsed, _, offset_forms = parse(formula, there)
    plain: set[str] = set()
    computed = set().union(*(needed(form, there) for form in offset_forms))
    for factor in factors_of(parsed.rhs, there).values():
        if isinstance(factor, Column):
            plain.add(factor.name)
        else:
            computed |= numeric_columns_of(factor)
    reads = needed(parsed.lhs, there) | needed(parsed.rhs, there) | computed
    return Variables(frozenset(reads), frozenset(plain), frozenset(computed))
