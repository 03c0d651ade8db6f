"""A regression from a formula and a data frame, as R's `glm` takes them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError, did_you_mean, names
from robustly.glm.families import as_family
from robustly.glm.fit import fit_glm
from robustly.glm.result import GLMFit
from robustly.rows.frames import read_design


@dataclass(frozen=True, eq=False)
class FormulaColumns:
    """How the right-hand side of a formula becomes columns, learned from the data it was fitted to."""

    spec: Any
    offsets: tuple[Any, ...]
    intercept: bool

    def matrix_of(self, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """Columns (without the intercept) and offsets of new rows."""
        frame = as_pandas(data)
        wanted = set(self.spec.required_variables).union(*(spec.required_variables for spec in self.offsets))
        _refuse_missing(frame, wanted)
        matrix = _evaluate(self.spec, frame)
        offset = sum((_evaluate(spec, frame).to_numpy(float)[:, 0] for spec in self.offsets), np.zeros(len(frame)))
        columns = matrix.drop(columns=["Intercept"]) if self.intercept else matrix
        return columns.to_numpy(dtype=float), offset


def glm(
    formula: str,
    data: Any,
    family: Any = "poisson",
    *,
    local: str | None = "auto",
    weights: Any = None,
    offset: Any = None,
    exposure: Any = None,
    trials: Any = None,
    alpha: float = 0.0,
    **options: Any,
) -> GLMFit:
    """Fit a robust (or, with ``local=None``, the classical) generalized linear model by formula.

    Args:
        formula: ``"y ~ x + C(group) + bs(age, df=4) + a:b + offset(log(years))"``, in the language of formulaic.
        data: a pandas or polars frame.
        family: ``"normal"``, ``"poisson"``, ``"bernoulli"``, ``"binomial"``, ``"gamma"``, ``"exponential"``,
            ``"negative_binomial"``, or a :class:`~robustly.glm.families.Family`.
        local: what rows have of their own: ``"predictor"``, ``"dispersion"``, ``"label"``, None for the classical
            model; ``"auto"`` is the dispersion of a normal and the predictor of anything else.
        weights, offset, exposure, trials: one value a row, or the name of a column.
        alpha: ridge penalty, the precision of a normal prior on every coefficient but the intercept.
        options: `prior`, `approx`, `solver`, `hyperprior`, `dof`, `spread`, `tol`, `max_iter`, as in ``RobustGLM``.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"visits": [0, 2, 1, 9, 3, 0, 14, 2], "age": [20, 31, 25, 60, 44, 23, 52, 39]})
        >>> fit = glm("visits ~ age", frame, family="poisson")
        >>> list(fit.coefficients.index)
        ['Intercept', 'age']
    """
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    frame = as_pandas(data)
    core, added = take_offsets(formula)
    try:
        parsed = Formula(core)
        offset_forms = [Formula(f"0 + {text}") for text in added]
    except FormulaicError as error:
        raise ModelError(f"the formula {formula!r} cannot be read: {error}") from error
    if not hasattr(parsed, "lhs"):
        raise ModelError(f'the formula {formula!r} has no response. Write it as "y ~ x".')
    wanted = set(parsed.required_variables).union(*(form.required_variables for form in offset_forms))
    _refuse_missing(frame, wanted)
    left = _evaluate(parsed.lhs, frame)
    right = _evaluate(parsed.rhs, frame)
    offsets = tuple(_evaluate(form, frame).model_spec for form in offset_forms)
    intercept = "Intercept" in right.columns
    columns = FormulaColumns(right.model_spec, offsets, intercept)
    if left.shape[1] not in (1, 2):
        raise ModelError(
            f"the response {formula.split('~')[0].strip()!r} has {left.shape[1]} columns. Code yes or no as 1 and 0."
        )
    response = left.to_numpy(dtype=float)
    matrix, within = columns.matrix_of(frame)
    column = lambda given: frame[given] if isinstance(given, str) else given
    for label, given in (("weights", weights), ("offset", offset), ("exposure", exposure), ("trials", trials)):
        if isinstance(given, str) and given not in frame:
            raise DataError(
                f'{label} names a column "{given}", which the data do not have.' + did_you_mean(given, frame)
            )
    design = read_design(
        matrix,
        response[:, 0] if response.shape[1] == 1 else response,
        [str(c) for c in right.columns if c != "Intercept"],
        intercept=intercept,
        weight=column(weights),
        offset=within if offset is None else within + np.asarray(column(offset), dtype=float),
        exposure=column(exposure),
        trials=column(trials),
        ridge=alpha,
    )
    return fit_glm(design, as_family(family), local=local, formula=columns, **options)


def take_offsets(formula: str) -> tuple[str, list[str]]:
    """Split ``offset(...)`` terms off a formula."""
    core, found = formula, []
    while (at := _find_offset(core)) >= 0:
        depth, end = 0, at
        for end in range(core.index("(", at), len(core)):
            depth += {"(": 1, ")": -1}.get(core[end], 0)
            if depth == 0:
                break
        if depth:
            raise ModelError(f"the formula {formula!r} has an offset( without its closing bracket.")
        found.append(core[core.index("(", at) + 1 : end])
        before, after = core[:at].rstrip(), core[end + 1 :]
        if before.endswith("+"):
            before = before[:-1]
        elif after.lstrip().startswith("+"):
            after = after.lstrip()[1:]
        core = before + after
        if core.rstrip().endswith("~"):
            core += " 1"
    return core, found


def _find_offset(text: str) -> int:
    import re

    match = re.search(r"(?<![\w.])offset\s*\(", text)
    return match.start() if match else -1


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
            f"data is a pandas or polars frame, or a dictionary of columns; {type(data).__name__} came."
        ) from None
    return pd.DataFrame({name: frame[name].to_numpy() for name in frame.columns})


def _refuse_missing(frame: pd.DataFrame, wanted: set[str]) -> None:
    for name in sorted(str(one) for one in wanted):
        if name not in frame.columns:
            raise DataError(
                f'the formula speaks of "{name}", which is not in the data; there are {names(map(str, frame.columns))}.'
                + did_you_mean(name, map(str, frame.columns))
            )
        gone = np.flatnonzero(frame[name].isna().to_numpy())
        if gone.size:
            more = f" and {gone.size - 1} more" if gone.size > 1 else ""
            raise DataError(f'column "{name}" holds a missing value in row {gone[0]}{more}. Drop or fill these rows.')


def _evaluate(spec: Any, frame: pd.DataFrame) -> Any:
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
