r"""Which rows of a program do not belong? Rows with a precision of their own are judged as measurements are everywhere.

Where a row's likelihood is conjugate to a gamma prior of its precision, :math:`\log p(y_i \mid \tau) = c + \tfrac12 \log\tau -
\tau r_i^2 / 2`, the structure that was found tells the row's error :math:`r_i` as a function of what is shared, whatever the
program. The judging law then is that of a regression or a conjugate pair with these errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly._runtime.compiled import one_thread
from robustly.fit.passes import ChunkPass
from robustly.model.exponential import GammaFamily
from robustly.model.parameters import Parameters
from robustly.model.row import RowModel
from robustly.result.measurements import Measurements, Seen
from robustly.result.outliers import Judgement
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import Rows

HALF = 1e-6


def judge_precisions(model: RowModel, given: Rows, theta: Mapping[str, Any], keeps: dict[Any, Any]) -> Judgement | None:
    """Judge rows with precisions (or variances) of their own; None for any other model."""
    found = model.conjugacy
    if found is None or model.dim != 1 or len(found.blocks) != 1 or model.latents is not None:
        return None
    if not isinstance(found.blocks[0].family, GammaFamily) or model.examples is None:
        return None
    start = {name: jnp.asarray(value, dtype=float) for name, value in theta.items()}
    some = tuple(jnp.asarray(column) for column in model.examples)
    moved = lambda row: found.level_and_natural(start, row)[1] - found.priors(start, row)[0]
    ours = [name for name in model.start if "." in name]
    if "halves" not in keeps:
        powers = np.asarray(one_thread(jax.vmap(moved))(some))[:, 0]
        keeps["halves"] = bool(np.abs(powers - 0.5).max() <= HALF)
    if not keeps["halves"] or not ours:
        return None
    still = {name: start[name] for name in ours}

    def square(theta: Mapping[str, Any], row: Any) -> Any:
        full = {**{name: theta[name] for name in theta if name in start}, **still}
        return -2.0 * (found.level_and_natural(full, row)[1] - found.priors(full, row)[0])[1]

    free = {name: start[name] for name in model.start if name not in ours}
    place = Parameters(
        free,
        {name: one for name, one in model.constraints.items() if name in free},
        {name: value for name, value in model.fixed.items() if name not in ours},
    )

    def each(vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
        *row, pull = data
        one = lambda v, row: square(place.natural(v), row)
        found, slope = jax.vmap(jax.value_and_grad(one), (None, 0))(vector, tuple(row))
        counted = jnp.where(weight > 0, pull, 0.0)
        total = lambda v: jnp.sum(counted * jax.vmap(one, (None, 0))(v, tuple(row)))
        prior = lambda v: model.log_hyperprior({**place.natural(v), **still})
        second = lambda function: jax.jacfwd(jax.grad(function))(vector)
        sums = {"curve": second(total), "bent": second(prior), "chunks": jnp.ones(())}
        sums |= {"prior": prior(vector), "slope": jax.grad(prior)(vector)}
        return sums, {"square": found, "slope": slope}, None

    if "squares" not in keeps:
        keeps["squares"] = ChunkPass(one_thread(each))
    compiled = keeps["squares"]
    # Every step asks all rows twice, with numbers by row: they are brought here.
    rows = given.here or given.sample(len(given), 0)

    def squares(vector: np.ndarray, pull: np.ndarray) -> Seen:
        mapped = ArrayRows((*rows.data, pull), rows.weight, rows.chunk).map(compiled, vector)
        sums = mapped.sums
        value, slope, bent = (np.asarray(sums[name]) / sums["chunks"] for name in ("prior", "slope", "bent"))
        prior = (float(value), slope, bent)
        return Seen(np.maximum(mapped.by_unit["square"], 0.0), mapped.by_unit["slope"], sums["curve"], prior)

    begin = np.asarray(place.vector(free))
    away = np.sqrt(squares(begin, np.zeros(len(rows))).square)
    wide = float(np.sqrt(np.mean(away**2)))
    narrow = 1.4826 * float(np.median(away)) or wide or 1e-150
    return Measurements(squares, rows.weight, place.constrained, [(begin, narrow), (begin, wide or narrow)]).judge()
