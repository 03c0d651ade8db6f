"""How does a regression's law look to the core? As a row model of its predictor and a few shared numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.approx import Approximation, Exact, Laplace, Quadrature, TwoCentre
from robustly.approx.two_centre import FEWEST_NODES
from robustly.fit.passes import ChunkPass
from robustly.fit.view_passes import row_kernel
from robustly.glm.family import Family
from robustly.glm.local import Law, LocalDispersion, LocalPredictor, log_prior
from robustly.model.row import RowModel
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import Data

if TYPE_CHECKING:
    import jax

NODES = 21


@lru_cache(maxsize=64)
def row_model(law: Law) -> RowModel:
    """The row model of a law; its parameters are the row's predictor and the shared numbers, on scales without walls."""
    return replace(_stated(law), made_by=(row_model, (law,)))


def _stated(law: Law) -> RowModel:
    names = ("predictor", *law.names)
    start = dict.fromkeys(names, 0.0)
    values = lambda theta: tuple(theta[name] for name in names)
    if law.closed:
        closed = lambda local, theta, row: law.evidence(row, *values(theta))
        return RowModel(log_likelihood=closed, start=start, size=0)
    shared: dict[str, Any] = {"start": start, "points_follow": False}
    family = law.family
    if isinstance(law, LocalDispersion):
        import jax.numpy as jnp

        name = family.nuisance[0]
        return RowModel(
            log_likelihood=lambda own, theta, row: family.log_prob(*row, theta["predictor"], jnp.exp(own)),
            log_prior=lambda own, theta, row: log_prior("normal", own - theta[name], theta["spread"]),
            guess=lambda rows, numbers: (numbers[names.index(name)], None),
            **shared,
        )
    if not isinstance(law, LocalPredictor):
        return RowModel(
            log_likelihood=lambda own, theta, row: law.joint(own, row, *values(theta)),
            log_prior=lambda own, theta, row: 0.0,
            **shared,
        )
    kind = law.prior
    likelihood = lambda own, theta, row: family.log_prob(*row, own, *law.traced_nuisance(values(theta)[1:]))
    prior = lambda own, theta, row: log_prior(kind, own - theta["predictor"], theta["spread"], theta.get("dof"))
    if kind == "normal":
        guess = lambda rows, numbers: _normal_guess(law, rows, numbers)
        return RowModel(log_likelihood=likelihood, log_prior=prior, guess=guess, **shared)
    return RowModel(
        log_likelihood=likelihood,
        log_prior=prior,
        # The response's own peak is searched for near its rough predictor; a family that knows none looks around the prior.
        guess=(lambda rows, numbers: (family.start(*rows), None)) if knows_start(family) else None,
        peak=lambda theta, row: (theta["predictor"], _exp(theta["spread"])),
        kink=(lambda theta: 2.0 * _exp(-theta["spread"])) if kind == "laplace" else None,
        **shared,
    )


def _exp(value: jax.Array) -> jax.Array:
    import jax.numpy as jnp

    return jnp.exp(value)


def _normal_guess(law: LocalPredictor, rows: Any, numbers: Any) -> tuple[Any, Any]:
    """Where a row's own predictor lies: between response and prior, as if the response were normal on its scale."""
    y, trials = (np.asarray(part) for part in rows)
    turn = law.family.turn(y, trials, [float(np.exp(np.median(v))) for v in numbers[2:]])
    if turn is None:
        return law.family.start(y, trials), None
    told, believed = turn[1] ** -2.0, np.exp(-2.0 * numbers[1])
    return (told * turn[0] + believed * numbers[0]) / (told + believed), -0.5 * np.log(told + believed)


def knows_start(family: Family) -> bool:
    """Whether a family says of a response alone where its predictor lies."""
    return type(family).start is not Family.start


def approximation(law: Law, nodes: int | None) -> Approximation:
    """How a law's rows are integrated with so many points; None is the usual number, 0 Laplace's approximation."""
    if law.closed:
        return law.rule or Exact()
    if nodes == 0:
        return Laplace()
    count = NODES if nodes is None else nodes
    if row_model(law).peak is not None:
        return TwoCentre(max(FEWEST_NODES, count))
    return Quadrature(count)


def evidence_of(
    law: Law, approx: Approximation, numbers: tuple[Any, ...], y: np.ndarray, trials: np.ndarray
) -> np.ndarray:
    """Log densities of any rows with these numbers (arrays by row, or single values), integrated over their own values."""
    kernel = row_kernel(row_model(law), approx)
    varied = [i for i, number in enumerate(numbers) if np.ndim(number)]

    def each(theta: Any, data: Data, weight: np.ndarray, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
        *columns, response, counted = data
        given = list(theta)
        for i, column in zip(varied, columns):
            given[i] = column
        row = (response, counted)
        start = kernel.approx.start_at(kernel.model, row, tuple(given), len(weight))
        return {}, {"evidence": kernel.values(tuple(given), row, np.asarray(start, np.float32))[0]}, None

    rows = ArrayRows((*(numbers[i] for i in varied), y, np.array(trials)), np.ones(len(y)))
    with double_precision(), np.errstate(all="ignore"):
        found = rows.map(ChunkPass(each), tuple(None if np.ndim(n) else n for n in numbers)).by_unit["evidence"]
    return found + law.family.log_base(y, trials)
