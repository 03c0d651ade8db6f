"""A regression from a formula and a data frame, as R's `glm` takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from robustly.errors import DataError, ModelError, did_you_mean, names
from robustly.glm.columns import FormulaColumns, as_pandas, evaluate, needed, refuse_missing, refuse_texts
from robustly.glm.families import Binomial, Family, as_family
from robustly.glm.fit import fit_glm
from robustly.result.fit import Fit
from robustly.rows.frames import read_design


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
) -> Fit:
    """Fit a robust (or, with ``local=None``, the classical) generalized linear model by formula.

    Args:
        formula: ``"y ~ x + C(group) + bs(age, df=4) + a:b + offset(log(years))"``, in the language of formulaic;
            ``.`` stands for all columns but the response.
        data: a pandas or polars frame.
        family: ``"normal"``, ``"poisson"``, ``"bernoulli"``, ``"binomial"``, ``"gamma"``, ``"exponential"``,
            ``"negative_binomial"``, or a :class:`~robustly.glm.families.Family`. A yes-or-no response may be in words:
            the second of the sorted classes counts as 1, and a note says so.
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
    frame = as_pandas(data)
    core, parsed, added, offset_forms = parse(formula, map(str, frame.columns))
    needs = needed(parsed.rhs).union(*(needed(form) for form in offset_forms))
    refuse_missing(frame, needs | needed(parsed.lhs))
    chosen = as_family(family)
    response, classes = read_left(evaluate(parsed.lhs, frame), frame, formula.split("~")[0].strip(), chosen)
    right = evaluate(parsed.rhs, frame)
    offsets = tuple(evaluate(form, frame).model_spec for form in offset_forms)
    reads = [name for name in frame.columns if name in needs]
    given = {
        label: name
        for label, name in (("offset", offset), ("exposure", exposure), ("trials", trials))
        if isinstance(name, str)
    }
    columns = FormulaColumns(core, tuple(added), right.model_spec, offsets, frame[reads].head(1), classes, given)
    matrix = (right.drop(columns=["Intercept"]) if columns.intercept else right).to_numpy(dtype=float)
    within = sum((evaluate(spec, frame).to_numpy(float)[:, 0] for spec in offsets), np.zeros(len(frame)))
    numbers = {
        label: _column(frame, label, given)
        for label, given in (("weights", weights), ("offset", offset), ("exposure", exposure), ("trials", trials))
    }
    design = read_design(
        matrix,
        response,
        [str(c) for c in right.columns if c != "Intercept"],
        intercept=columns.intercept,
        weight=numbers["weights"],
        offset=within if offset is None else within + np.asarray(numbers["offset"], dtype=float),
        exposure=numbers["exposure"],
        trials=numbers["trials"],
        ridge=alpha,
    )
    fit = fit_glm(design, chosen, local=local, formula=columns, **options)
    if classes:
        fit.notes = (f'"{classes[1]}" counts as 1 and "{classes[0]}" as 0.', *fit.notes)
    return fit


def read_left(left: Any, frame: pd.DataFrame, text: str, family: Family) -> tuple[np.ndarray, tuple[Any, ...]]:
    """The response as numbers; two words of a yes-or-no response become 0 and 1, in the order of their levels."""
    words = next(
        (state["categories"] for _, state in left.model_spec.encoder_state.values() if "categories" in state), None
    )
    if words is None:
        if left.shape[1] not in (1, 2):
            raise ModelError(f"the response {text!r} has {left.shape[1]} columns. Give one, or successes and failures.")
        response = left.to_numpy(dtype=float)
        return (response[:, 0] if response.shape[1] == 1 else response), ()
    if not isinstance(family, Binomial):
        for name in needed(left.model_spec.formula):
            refuse_texts(frame[name], name, f"the family {family} needs numbers")
        raise ModelError(f"the response {text!r} is made of classes, but the family {family} needs numbers.")
    if len(words) != 2 or left.shape[1] not in (1, 2):
        raise ModelError(
            f"the response {text!r} has {len(words)} classes ({names(map(str, words[:8]))}{' …' if len(words) > 8 else ''}), "
            "but a yes-or-no model needs two. Join or drop some."
        )
    return left.to_numpy(dtype=float)[:, -1], tuple(words)


def _column(frame: pd.DataFrame, label: str, given: Any) -> Any:
    """Numbers by row: as they came, or the column of that name."""
    if not isinstance(given, str):
        return given
    if given not in frame:
        raise DataError(
            f'{label} names a column "{given}", which the data do not have.' + did_you_mean(given, map(str, frame))
        )
    refuse_missing(frame, [given])
    refuse_texts(frame[given], given, f"{label} are numbers")
    return frame[given]


def parse(formula: str, columns: Iterable[str]) -> tuple[str, Any, list[str], list[Any]]:
    """The formula without its offsets, as text and as terms, and its offsets the same way; ``.`` is all other columns."""
    from formulaic import Formula
    from formulaic.errors import FormulaicError

    core, added = take_offsets(formula)
    try:
        parsed = Formula(core, _context={"__formulaic_variables_available__": list(columns)})
        offset_forms = [Formula(f"0 + {text}") for text in added]
    except (FormulaicError, SyntaxError) as error:
        # formulaic colours the place it stumbled over.
        said = " ".join(re.sub(r"\x1b\[[0-9;]*m|[⧛⧚]", "", str(error)).split())
        raise ModelError(f"the formula {formula!r} cannot be read: {said}") from error
    if not hasattr(parsed, "lhs"):
        raise ModelError(f'the formula {formula!r} has no response. Write it as "y ~ x".')
    return core, parsed, added, offset_forms


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
    from formulaic.parser.types import Term

    _, parsed, _, offset_forms = parse(formula, columns)
    plain: set[str] = set()
    computed = set().union(*(needed(form) for form in offset_forms))
    for factor in {factor for term in parsed.rhs for factor in term.factors}:
        if factor.eval_method.value == "lookup":
            plain.add(factor.expr)
        elif not re.search(r"(?<!\w)(C|Q|hashed)\(", factor.expr):
            computed |= needed([Term([factor])])
    reads = needed(parsed.lhs) | needed(parsed.rhs) | computed
    return Variables(frozenset(reads), frozenset(plain), frozenset(computed))


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
    match = re.search(r"(?<![\w.])offset\s*\(", text)
    return match.start() if match else -1
