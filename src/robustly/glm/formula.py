"""A regression from a formula and a data frame, as R's `glm` takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError, names
from robustly.glm.asked import LocalChoice
from robustly.glm.fit import fit_glm
from robustly.glm.formula_bars import take_bars
from robustly.glm.formula_frames import as_pandas, refuse_missing
from robustly.glm.formula_nodes import Column, numeric_columns_of
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
from robustly.glm.grouped.design import read_groups_of
from robustly.glm.grouped.fit import fit_grouped
from robustly.glm.multinomial import categories_by_formula
from robustly.glm.named import as_family
from robustly.glm.stored import read_stored_formula
from robustly.model.read_design import Given, read_design
from robustly.result.fit import Fit
from robustly.rows.anywhere import as_stored
from robustly.rows.labels import (
    check_na_action,
    labels_of_rows,
    missing_by_row,
    refuse_other_length,
    taken,
    used_rows,
)

# What regressions are told unless told otherwise, where groups have nothing to choose.
# So many numbers (400 MB) of which at most this share is not 0 are kept as a sparse matrix.
LARGE, NEARLY_ZERO = 50_000_000, 0.05
WITHOUT_GROUPS = {
    "prior": "normal",
    "approx": "quadrature",
    "solver": "newton",
    "hyperprior": "auto",
    "spread": None,
    "dof": "auto",
    "x_weights": None,
}


def glm(
    formula: str,
    data: Any,
    family: Any = "poisson",
    *,
    local: LocalChoice = "auto",
    prior: str = "normal",
    approx: Any = "quadrature",
    solver: str = "newton",
    hyperprior: Any = "auto",
    dof: float | str | None = "auto",
    spread: float | None = None,
    tol: float = 1e-8,
    max_iter: int = 100,
    x_weights: Any = None,
    weights: Given = None,
    offset: Given = None,
    exposure: Given = None,
    trials: Given = None,
    alpha: float = 0.0,
    na_action: str = "raise",
    group_law: str = "normal",
    group_dof: float | None = None,
    checkpoint: Any = None,
) -> Fit:
    """Fit a robust (or, with ``local=None``, the classical) generalized linear model by formula.

    Args:
        formula: ``"y ~ x + C(group) + bs(age, df=4) + a:b + offset(log(years))"``, in the language of formulaic;
            ``.`` stands for all columns but the response. ``(1 | g)``, ``(1 + x | g)`` and ``(x || g)`` are effects of the
            groups told apart by the column ``g``, ``(1 | a/b)`` of groups ``a`` and groups ``b`` within them: a mixed model,
            integrated exactly over the groups' effects.
        data: a pandas or polars frame, or ``rb.parquet(path)``, whose columns are then read piece by piece.
        family: ``"normal"``, ``"poisson"``, ``"bernoulli"``, ``"binomial"``, ``"gamma"``, ``"exponential"``,
            ``"negative_binomial"``, ``"zero_inflated_poisson"``, ``"zero_inflated_negative_binomial"``,
            ``"hurdle_poisson"``, ``"hurdle_negative_binomial"``, ``"tweedie"``, ``"multinomial"`` (categories without an order), or a
            :class:`~robustly.glm.families.Family`. A yes-or-no response may be in words:
            the second of the sorted classes counts as 1, and a note says so. Counts of successes are
            ``"cbind(successes, failures) ~ x"``, or a column with `trials`.
        local: what rows have of their own: ``"predictor"``, ``"dispersion"``, ``"label"``, None for the classical
            model, or a class of your own (:class:`~robustly.glm.law.Law`); ``"auto"`` is the dispersion of a normal and the
            predictor of anything else.
        prior, approx, solver, hyperprior, dof, spread, tol, max_iter: as in :class:`~robustly.glm.estimators.RobustGLM`.
        weights, offset, exposure, trials: one value a row, or the name of a column. Offsets, exposures and trials that are
            columns are read from new rows; those given as numbers are asked for when predicting.
        alpha: ridge penalty, the precision of a normal prior on every coefficient but the intercept.
        x_weights: as in :class:`~robustly.glm.estimators.RobustLinearRegression`.
        checkpoint: a folder from which the same call goes on after its process was killed.
        na_action: ``"raise"`` refuses rows with missing values by name, ``"drop"`` leaves them out, and the summary says which.
        group_law, group_dof: of a formula with groups, how effects are spread: ``"normal"``, ``"student_t"`` (with degrees of
            freedom held at `group_dof`, or fitted) or ``"laplace"``; `local` is then what rows have of their own within their
            groups, nothing unless told.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"visits": [0, 2, 1, 9, 3, 0, 14, 2], "age": [20, 31, 25, 60, 44, 23, 52, 39]})
        >>> fit = glm("visits ~ age", frame, family="poisson")
        >>> list(fit.coefficients.index)
        ['Intercept', 'age']
    """
    if isinstance(family, str) and family == "multinomial":
        asked = {
            "prior": prior,
            "approx": approx,
            "solver": solver,
            "hyperprior": hyperprior,
            "spread": spread,
            "dof": dof,
        }
        beside = {
            "offset": offset,
            "exposure": exposure,
            "trials": trials,
            "x_weights": x_weights,
            "checkpoint": checkpoint,
        }
        told = [name for name, value in asked.items() if value != WITHOUT_GROUPS[name]]
        told += [name for name, value in beside.items() if value is not None]
        if told:
            raise ModelError(f'family="multinomial" has nothing to choose for {names(told)}. Leave that out.')
        return categories_by_formula(
            formula,
            data,
            read=read_formula,
            local=local,
            tol=tol,
            max_iter=max_iter,
            weights=weights,
            alpha=alpha,
            na_action=na_action,
        )
    rows = read_formula(
        formula,
        data,
        family,
        weights=weights,
        offset=offset,
        exposure=exposure,
        trials=trials,
        alpha=alpha,
        na_action=na_action,
    )
    if rows.groups is not None:
        asked = {
            "prior": prior,
            "approx": approx,
            "solver": solver,
            "hyperprior": hyperprior,
            "spread": spread,
            "dof": dof,
            "x_weights": None if x_weights is None else "by row",
        }
        return fit_grouped(
            rows.groups,
            rows.family,
            local=local,
            group_law=group_law,
            group_dof=group_dof,
            tol=tol,
            max_iter=max_iter,
            formula=rows.columns,
            effects=rows.effects,
            labels=rows.labels,
            checkpoint=checkpoint,
            **{name: value for name, value in asked.items() if value != WITHOUT_GROUPS[name]},
        )
    if (group_law, group_dof) != ("normal", None):
        raise ModelError(f'group_law and group_dof are of a formula with groups, "y ~ x + (1 | g)"; got {formula!r}.')
    return fit_glm(
        rows.design,
        rows.family,
        local=local,
        prior=prior,
        approx=approx,
        solver=solver,
        hyperprior=hyperprior,
        dof=dof,
        spread=spread,
        tol=tol,
        max_iter=max_iter,
        x_weights=x_weights,
        checkpoint=checkpoint,
        **rows.told,
    )


def read_formula(
    formula: str,
    data: Any,
    family: Any = "poisson",
    *,
    weights: Given = None,
    offset: Given = None,
    exposure: Given = None,
    trials: Given = None,
    alpha: float = 0.0,
    na_action: str = "raise",
) -> FormulaRows:
    """The rows of a formula and a data frame, ready for :func:`~robustly.glm.fit.fit_glm`; arguments as in :func:`glm`."""
    stored = as_stored(data)
    if stored is not None:
        if na_action != "raise":
            raise ModelError(
                f'rows in {stored.where} are used as they are, so na_action is "raise"; got {na_action!r}.'
            )
        along = {"weights": weights, "offset": offset, "exposure": exposure, "trials": trials}
        return read_stored_formula(formula, stored, family, along, alpha)
    frame, labels = as_pandas(data), labels_of_rows(data)
    there = [str(name) for name in frame.columns]
    beside = {"weights": weights, "offset": offset, "exposure": exposure, "trials": trials}
    plain, bars = take_bars(formula)
    told_apart = {name for bar in bars for name in bar.groups}
    core, parsed, added, offset_forms = parse(plain, [name for name in there if name not in told_apart])
    sides = [factors_of(form, there) for form in (parsed.lhs, parsed.rhs, *offset_forms)]
    read = set().union(*(needed(form, there) for form in (parsed.lhs, parsed.rhs, *offset_forms)))
    refuse_empty(frame, formula)
    check_na_action(na_action)
    if na_action == "drop":
        # Rows are looked at on all sides at once, before anything is learned from them.
        asked = sorted(read | (told_apart & set(there)) | {name for name in beside.values() if isinstance(name, str)})
        refuse_missing(frame, asked, rows=False)
        gone = missing_by_row({name: frame[name] for name in asked} | beside, len(frame))
        used = used_rows(gone, len(frame))
        frame, labels = frame.iloc[np.flatnonzero(used)], labels.only(used, gone)
        beside = {label: taken(given, used) for label, given in beside.items()}
    refuse_missing(frame, read)
    refuse_not_computable([pair for side in sides for pair in side.items()], frame)
    chosen = as_family(family)
    left = learn(parsed.lhs, frame)
    response, classes = read_left(left, frame, formula.split("~")[0].strip(), chosen)
    right = learn(parsed.rhs, frame)
    offsets = tuple(learn_offset(form, frame, text) for form, text in zip(offset_forms, added))
    given = {label: name for label, name in beside.items() if label != "weights" and isinstance(name, str)}
    needs = tuple(
        label for label in ("offset", "exposure", "trials") if beside[label] is not None and label not in given
    )
    columns = FormulaColumns(core, tuple(added), right.side, offsets, classes, given)
    kept = [place for place, name in enumerate(right.side.columns) if name != "Intercept"]
    matrix = right.matrix[:, kept] if bars else without_zeros(right.matrix, kept)
    within = added_offsets(offsets, frame)
    del left, right  # the widest arrays there are: one of them is enough
    numbers = {label: column_of(frame, label, one) for label, one in beside.items()}
    refuse_unequal_rows(len(frame), matrix, response, within, numbers)
    design = read_design(
        matrix,
        response,
        [columns.side.columns[place] for place in kept],
        intercept=columns.intercept,
        weight=numbers["weights"],
        offset=within if offset is None else within + np.asarray(numbers["offset"], dtype=float),
        exposure=numbers["exposure"],
        trials=numbers["trials"],
        ridge=alpha,
    )
    if classes:
        design = design.noted(f'"{classes[1]}" counts as 1 and "{classes[0]}" as 0.', *design.notes)
    if not bars:
        return FormulaRows(design, chosen, columns, needs=needs, labels=labels)
    return FormulaRows(design, chosen, columns, *read_groups_of(bars, frame, design, plain), needs=needs, labels=labels)


def without_zeros(matrix: np.ndarray, kept: list[int]) -> Any:
    """Some of the columns: as they are, or of a large matrix that is nearly all zeros (days, towns) as a sparse one."""
    if matrix.size < LARGE or np.count_nonzero(matrix) > NEARLY_ZERO * matrix.size:
        return matrix[:, kept]
    from scipy import sparse

    return sparse.csr_array(matrix)[:, kept]


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
    core, bars = take_bars(formula)
    told_apart = {name for bar in bars for name in bar.groups}
    _, parsed, _, offset_forms = parse(core, [name for name in there if name not in told_apart])
    plain: set[str] = set()
    computed = set().union(*(needed(form, there) for form in offset_forms))
    for factor in factors_of(parsed.rhs, there).values():
        if isinstance(factor, Column):
            plain.add(factor.name)
        else:
            computed |= numeric_columns_of(factor)
    reads = needed(parsed.lhs, there) | needed(parsed.rhs, there) | computed | told_apart
    for bar in bars:
        reads |= needed(parse(f"{core.split('~')[0]} ~ {bar.effects}", there)[1].rhs, there)
    return Variables(frozenset(reads), frozenset(plain), frozenset(computed))
