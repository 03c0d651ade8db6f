"""How is a fitted pair read from its file? By the pair's name and options, the rows, and where the search had ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import robustly.conjugate as home
from robustly._runtime.precision import in_double_precision
from robustly.conjugate.fitting import ConjugatePair
from robustly.conjugate.problem import PairProblem, Penalty, model_of
from robustly.conjugate.result import boundary_fit, interior_fit
from robustly.conjugate.source import PairSource
from robustly.errors import PersistError
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome
from robustly.result.fit import Fit
from robustly.rows.distinct import Table, make_table


def from_saved(meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], model: Any = None) -> Fit:
    """A fitted pair as :meth:`Fit.save` wrote it; a pair of your own is given as ``model=``."""
    if model is None:
        kind = getattr(home, meta["pair"], None) if meta["pair"] in home.__all__ else None
        if not (isinstance(kind, type) and issubclass(kind, ConjugatePair)):
            raise PersistError(
                f'this is a fit of the pair "{meta["pair"]}", which is not part of robustly. Read it with '
                "rb.load(path, model=YourPair())."
            )
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in meta["options"].items()}
        model = kind(**options)
    columns = {name.removeprefix("column:"): array for name, array in arrays.items() if name.startswith("column:")}
    fit = _rebuilt_pair(model, make_table(columns, arrays["weight"]), meta, arrays, meta["had_hyperprior"])
    if not np.isfinite(fit.evidence).all():
        row = int(np.flatnonzero(~np.isfinite(fit.evidence))[0])
        raise PersistError(f"row {row} of the file cannot come from a {meta['pair']}. Save the fit again.")
    return fit


@in_double_precision
def _rebuilt_pair(
    pair: ConjugatePair, table: Table, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], lost: bool
) -> Fit:
    model = model_of(pair, table.columns)
    first = {name: np.asarray(column[:1])[0] for name, column in table.columns.items()}
    start = model.theta(jnp.asarray(model.parameters.start))
    if jax.eval_shape(lambda row: pair.evidence(start, row), first).shape != ():
        raise PersistError(f"the columns of the file are not those of a {type(pair).__name__}. Save the fit again.")
    problem = PairProblem(model, table, Penalty(model, None))
    outcome, vector, classical = Outcome(*meta["outcome"]), arrays["vector"], None
    if outcome.kind == "boundary":
        classical = pair.classical(table)
        if classical is None:
            raise PersistError(f"{type(pair).__name__} has no classical model, but the saved fit is one.")
    elif len(vector) != model.parameters.size:
        raise PersistError(
            f"the file has {len(vector)} numbers for the {model.parameters.size} parameters of its pair."
        )
    # The rows and where the search had ended say the rest, which is made anew.
    if classical is not None:
        fit = boundary_fit(problem, classical, outcome.text, outcome.steps)
    else:
        optimum = Optimum(vector, meta["objective"], np.zeros_like(vector), arrays["curve"], meta["history"], outcome)
        fit = interior_fit(problem, optimum)
    assert isinstance(fit.source, PairSource)
    fit.source.lost_hyperprior = lost
    return fit
