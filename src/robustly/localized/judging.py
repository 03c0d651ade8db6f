r"""Which rows of a program do not belong? Rows with a precision of their own are judged as measurements are everywhere.

Where a row's likelihood is conjugate to a gamma prior of its precision, :math:`\log p(y_i \mid \tau) = c + \tfrac12 \log\tau -
\tau r_i^2 / 2`, the structure that was found tells the row's error :math:`r_i` as a function of what is shared, whatever the
program. The judging law then is that of a regression or a conjugate pair with these errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly._runtime.compiled import one_thread
from robustly._runtime.precision import double_precision
from robustly.model.exponential import GammaFamily
from robustly.model.parameters import Parameters
from robustly.model.row import RowModel
from robustly.result.measurements import Measurements, Seen, Squares, Sum
from robustly.result.outliers import Judgement
from robustly.rows.arrays import CHUNK
from robustly.rows.store import ByUnit, Data, Rows, Sums

HALF = 1e-6


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
    ours = [name for name in model.start if "." in name]
    if "halves" not in keeps:
        powers = np.asarray(one_thread(jax.vmap(moved))(some))[:, 0]
        keeps["halves"] = bool(np.abs(powers - 0.5).max() <= HALF)
    if not keeps["halves"] or not ours:
        return None
    still = {name: start[name] for name in ours}

    def parts(theta: Mapping[str, Any], row: Any) -> tuple[Any, Any]:
        """A row's squared error, and what its log likelihood has besides."""
        full = {**{name: theta[name] for name in theta if name in start}, **still}
        level, natural = found.level_and_natural(full, row)
        return -2.0 * (natural - found.priors(full, row)[0])[1], level

    free = {name: start[name] for name in model.start if name not in ours}
    place = Parameters(
        free,
        {name: one for name, one in model.constraints.items() if name in free},
        {name: value for name, value in model.fixed.items() if name not in ours},
    )

    def each(vector: Any, data: Any, weight: Any, pull: Any) -> tuple[Any, Any, Any, Any]:
        one = lambda v, row: parts(place.natural(v), row)
        square, slope = jax.vmap(jax.value_and_grad(lambda v, row: one(v, row)[0]), (None, 0))(vector, data)

        def totals(v: Any) -> Any:
            squares, levels = jax.vmap(one, (None, 0))(v, data)
            counted = lambda by, values: jnp.sum(jnp.where(weight > 0, by * values, 0.0))
            return jnp.stack([counted(pull, squares), counted(weight, levels)])

        return square, slope, (totals(vector), jax.jacrev(totals)(vector)), jax.jacfwd(jax.jacrev(totals))(vector)

    def believed(vector: Any) -> tuple[Any, Any, Any]:
        prior = lambda v: model.log_hyperprior({**place.natural(v), **still})
        return prior(vector), jax.grad(prior)(vector), jax.jacfwd(jax.grad(prior))(vector)

    if "squares" not in keeps:
        keeps["squares"], keeps["believed"] = one_thread(each), one_thread(believed)
    compiled, compiled_prior = keeps["squares"], keeps["believed"]

    def squares(vector: np.ndarray, data: Data, weight: np.ndarray, pull: np.ndarray) -> Seen:
        with double_precision():
            square, slope, (total, tilt), bent = jax.tree.map(np.asarray, compiled(vector, data, weight, pull))
        return Seen(np.maximum(square, 0.0), slope, bent[0], (float(total[1]), tilt[1], bent[1]))

    def prior(vector: np.ndarray) -> Sum:
        with double_precision():
            value, slope, bent = map(np.asarray, compiled_prior(vector))
        return float(value), slope, bent

    begin = np.asarray(place.vector(free))
    away = np.sqrt(rows.map(_SquarePass(squares), begin).by_unit["square"])
    wide = float(np.sqrt(np.mean(away**2)))
    narrow = 1.4826 * float(np.median(away)) or wide or 1e-150
    wide = wide or narrow
    # A chunk of the size that is compiled already.
    _, data, weight = next((rows.here or rows.sample(min(CHUNK, len(rows)), 0)).chunks())
    along = _own_scale(squares(begin, data, weight, np.zeros(len(weight))), prior(begin))
    if along is None:
        starts, scale = [(begin, narrow), (begin, wide)], None
    else:
        starts, scale = [(begin, narrow), (begin - 2.0 * np.log(wide / narrow) * along, narrow)], narrow
    return Measurements(squares, rows, place.constrained, starts, scale, prior).judge()


@dataclass(frozen=True, eq=False)
class _SquarePass:
    """Squared errors by row."""

    squares: Squares

    def __call__(self, vector: np.ndarray, data: Data, weight: Any, state: Any) -> tuple[Sums, ByUnit, None]:
        return {}, {"square": self.squares(vector, data, weight, np.zeros(len(weight))).square}, None


def _own_scale(seen: Seen, prior: Sum) -> np.ndarray | None:
    """The direction in which all squared errors grow by one and the same factor, if no prior holds it; None if there is none.

    A program with such a scale of its own takes the place of the law's: the two cannot be told apart.
    """
    if len(np.unique(seen.square)) <= seen.slope.shape[1] or not np.all(np.isfinite(seen.slope)):
        return None
    direction = np.linalg.lstsq(seen.slope, seen.square, rcond=1e-10)[0]
    if np.abs(seen.slope @ direction - seen.square).max() > 1e-9 * seen.square.max():
        return None
    _, slope, bent = prior
    is_held = np.abs(slope @ direction) > 1e-12 or np.abs(bent @ direction).max() > 1e-12
    return None if is_held else direction
