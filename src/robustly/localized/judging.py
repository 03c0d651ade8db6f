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
from robustly.model.row import RowModel
from robustly.result.outliers import Judgement
from robustly.result.two_part import judge_measurements
from robustly.rows.store import Rows

HALF = 1e-6
TINY = 1e-280


def judge_precisions(model: RowModel, rows: Rows, theta: Mapping[str, Any], keeps: dict[Any, Any]) -> Judgement | None:
    """Judge rows with precisions (or variances) of their own; None for any other model."""
    found = model.conjugacy
    if found is None or model.dim != 1 or len(found.blocks) != 1 or model.latents is not None:
        return None
    if not isinstance(found.blocks[0].family, GammaFamily) or model.examples is None:
        return None
    start = {name: jnp.asarray(value, dtype=float) for name, value in theta.items()}
    some = tuple(jnp.asarray(column) for column in model.examples)
    moved = lambda row: found.level_and_natural(start, row)[1] - found.priors(start, row)[0]
    steps = np.asarray(jax.vmap(moved)(some))
    ours = [name for name in model.start if "." in name]
    if np.abs(steps[:, 0] - 0.5).max() > HALF or not ours:
        return None
    still = {name: start[name] for name in ours}

    def square(theta: Mapping[str, Any], row: Any) -> Any:
        full = {**{name: theta[name] for name in theta if name in start}, **still}
        return -2.0 * (found.level_and_natural(full, row)[1] - found.priors(full, row)[0])[1]

    def away(theta: Mapping[str, Any], row: Any) -> Any:
        return jnp.sqrt(jnp.maximum(square(theta, row), TINY))

    if "errors" not in keeps:

        def each(theta: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
            return {}, {"away": jax.vmap(lambda row: away(theta, row))(data)}, None

        keeps["errors"] = ChunkPass(one_thread(each))
    errors = keeps["errors"]
    place = {name: start[name] for name in model.start if name not in ours}
    of_place = lambda theta: {name: jnp.asarray(theta[name]) for name in place}
    residual = lambda theta: np.asarray(rows.map(errors, of_place(theta)).by_unit["away"])
    here = residual(place)
    narrow = 1.4826 * float(np.median(here)) or float(np.sqrt(np.mean(here**2))) or 1e-150
    return judge_measurements(
        rows,
        away,
        residual,
        [{**place, "scale": narrow}, {**place, "scale": float(np.sqrt(np.mean(here**2)))}],
        freedom=sum(int(np.size(value)) for value in place.values()),
        constraints={name: one for name, one in model.constraints.items() if name in place},
        fixed={name: value for name, value in model.fixed.items() if name not in ours},
        keeps=keeps,
        prior=lambda theta: model.log_hyperprior({**{name: theta[name] for name in place}, **still}),
    )
