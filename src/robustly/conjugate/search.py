r"""Which prior makes the rows most probable? Newton on the exact evidence, or the paper's EM with exact steps.

Both maximise :math:`\sum_i w_i \log p(x_i \mid \alpha)`. Before either, the classical model (one value for all rows) is
looked at: when the score test says that no spread of the locals would help, and a climb from a wide prior does not
contradict it, the classical model is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from robustly.conjugate.base import Classical, ConjugatePair
from robustly.conjugate.table import Table
from robustly.errors import FitError, ModelError, did_you_mean, names
from robustly.fit.newton import Optimum, newton
from robustly.fit.outcome import Outcome, Stop, warn_unless_converged
from robustly.model.parameters import Parameters
from robustly.rows.arrays import Rows
from robustly.rows.store import over_rows

if TYPE_CHECKING:
    from robustly.result.fit import Fit

METHODS = ("direct", "em")
# Beyond this many distinct rows the search begins on a sample of them.
MANY, SAMPLE = 40_000, 8_192
EM_TOLERANCE, EM_STEPS = 1e-10, 5_000
KEPT = 64
_ENGINES: dict[Any, Engine] = {}


class Engine:
    """Compiled passes of one pair over its rows. Get it from :func:`engine_of`, which keeps them."""

    def __init__(self, pair: ConjugatePair, free: tuple[Any, ...], columns: tuple[str, ...]) -> None:
        self.pair, self.columns = pair, columns
        start = {name: _middle(constraint, shape) for name, constraint, shape in free}
        self.parameters = Parameters(start, {name: constraint for name, constraint, _ in free})
        self.curves = jax.jit(self._curves)
        self.values = jax.jit(self._values)
        self.scores = jax.jit(self._scores)
        self.expectations = jax.jit(self._expectations)
        self.expected_curves = jax.jit(self._expected_curves)

    def theta(self, vector: Any) -> dict[str, Any]:
        """All coordinates by name, fixed ones included."""
        fixed = {name: jnp.asarray(value, dtype=float) for name, value in self.pair.fixed.items()}
        return {**fixed, **self.parameters.natural(vector)}

    def reported(self, vector: Any) -> dict[str, Any]:
        """What the user is told: the prior's arguments and what rows share."""
        theta = self.theta(vector)
        shared = {name: theta[name] for name in self.pair.shared if name in theta}
        return {**self.pair.arguments(theta), **shared}

    def row(self, data: Any) -> dict[str, Any]:
        return dict(zip(self.columns, data))

    def _each(self, vector: Any, data: Any) -> Any:
        theta = self.theta(vector)
        return jax.vmap(lambda one: self.pair.evidence(theta, self.row(one)))(data)

    def _values(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        each = self._each(vector, data)
        return {"value": jnp.dot(weight, each)}, {"evidence": each}

    def _curves(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return _three(lambda v: jnp.dot(weight, self._each(v, data)), vector), {}

    def _scores(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        one = lambda v, row: self.pair.evidence(self.theta(v), self.row(row))
        return {}, {"score": jax.vmap(jax.grad(one), (None, 0))(vector, data)}

    def _expectations(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        theta = self.theta(vector)
        found = jax.vmap(lambda one: self.pair.expectations(theta, self.row(one)))(data)
        return {}, {str(i): part for i, part in enumerate(found)}

    def _expected_curves(
        self, vector: Any, data: Any, weight: Any, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The M-step's objective: E[T]·(η + s) − A(η) + log h, added over rows."""
        plain, expected = data[: len(self.columns)], data[len(self.columns) :]

        def total(v: Any) -> Any:
            theta = self.theta(v)

            def one(row: Any, means: Any) -> Any:
                row = self.row(row)
                eta, s = self.pair.natural(theta, row), self.pair.statistic(theta, row)
                inner = sum(jnp.sum(m * (a + b)) for m, a, b in zip(means, eta, s))
                return inner - self.pair.log_normalizer(eta) + self.pair.log_base(theta, row)

            return jnp.dot(weight, jax.vmap(one)(plain, expected))

        return _three(total, vector), {}


def _three(total: Any, vector: Any) -> dict[str, Any]:
    """Value, slope and curvature of a function of the vector, traced once."""

    def both(v: Any) -> Any:
        value, slope = jax.value_and_grad(total)(v)
        return slope, (value, slope)

    curve, (value, slope) = jax.jacfwd(both, has_aux=True)(vector)
    return {"value": value, "slope": slope, "curve": curve}


def _middle(constraint: Any, shape: tuple[int, ...]) -> Any:
    transform = biject_to(constraint)
    return transform(jnp.zeros(transform.inverse_shape(shape)))


def engine_of(pair: ConjugatePair, columns: Mapping[str, np.ndarray]) -> Engine:
    """The compiled passes of this pair for columns of these shapes, made once."""
    fixed = pair.fixed
    listed = pair.coordinates(columns)
    free = tuple((name, constraint, shape) for name, (constraint, shape) in listed.items() if name not in fixed)
    key = (pair, tuple((name, shape) for name, _, shape in free), tuple(columns))
    try:
        if key not in _ENGINES:
            if len(_ENGINES) >= KEPT:
                _ENGINES.clear()
            _ENGINES[key] = Engine(pair, free, tuple(columns))
        return _ENGINES[key]
    except TypeError as error:
        if "hashable" not in str(error):
            raise
        raise ModelError(
            f"{type(pair).__name__} cannot be told from other pairs ({error}). Make it a frozen dataclass whose fields "
            "are numbers, texts or tuples."
        ) from error


class Penalty:
    """Hyperpriors, by the name of what they are about, as a function of the search's vector."""

    def __init__(self, engine: Engine, hyperprior: Mapping[str, Any] | None) -> None:
        self.given = dict(hyperprior or {})
        if not self.given:
            return

        def known(vector: Any) -> dict[str, Any]:
            theta = engine.theta(vector)
            return {**theta, **engine.reported(vector), **engine.pair.derived(theta)}

        listed = list(jax.eval_shape(known, jnp.asarray(engine.parameters.start)))
        for name, prior in self.given.items():
            if name not in listed:
                raise ModelError(
                    f'no hyperparameter "{name}"; {type(engine.pair).__name__} has {names(listed)}.'
                    + did_you_mean(name, listed)
                )
            if not hasattr(prior, "log_prob"):
                raise ModelError(
                    f'the hyperprior of "{name}" is {prior!r}, but a NumPyro distribution is needed, such as '
                    "dist.Gamma(2.0, 0.1)."
                )

        def log_prior(vector: Any) -> Any:
            values = known(vector)
            return sum((jnp.sum(p.log_prob(values[name])) for name, p in self.given.items()), jnp.zeros(()))

        self.value = jax.jit(log_prior)
        self.all = jax.jit(lambda v: (log_prior(v), jax.grad(log_prior)(v), jax.hessian(log_prior)(v)))

    def add_to(self, found: tuple[Any, Any, Any], vector: Any) -> tuple[float, np.ndarray, np.ndarray]:
        value, slope, curve = found
        if self.given:
            more = [np.asarray(part) for part in self.all(vector)]
            value, slope, curve = value + more[0], slope + more[1], curve + more[2]
        return float(value), np.asarray(slope), np.asarray(curve)

    def at(self, vector: Any) -> float:
        return float(self.value(jnp.asarray(vector))) if self.given else 0.0


def objective_of(engine: Engine, rows: Rows, penalty: Penalty) -> Any:
    """Value, slope and curvature of the summed evidence (plus hyperpriors) at a vector."""

    def objective(vector: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        x = jnp.asarray(vector)
        sums, _ = over_rows(engine.curves, rows, None, x)
        return penalty.add_to((sums["value"], sums["slope"], sums["curve"]), x)

    return objective


def evidence_of(engine: Engine, rows: Rows, vector: Any) -> tuple[float, np.ndarray]:
    sums, by_row = over_rows(engine.values, rows, None, jnp.asarray(vector))
    return float(sums["value"]), by_row["evidence"]


# ---------------------------------------------------------------------------------------------------- fitting


def fit_pair(pair: ConjugatePair, table: Table, method: str, hyperprior: Mapping[str, Any] | None) -> Fit:
    """Fit `pair` to the rows of `table`.

    Args:
        method: ``"direct"`` climbs the evidence by Newton steps; ``"em"`` alternates exact E-steps with M-steps, as the
            paper does, and takes more passes to the same answer.
        hyperprior: NumPyro distributions by name of a hyperparameter; the fit is then the joint mode (MAP).
    """
    from robustly.conjugate.result import boundary_fit, interior_fit

    if method not in METHODS:
        raise ModelError(f'method is {names(METHODS)}; "{method}" came.' + did_you_mean(str(method), METHODS))
    engine = engine_of(pair, table.columns)
    penalty = Penalty(engine, hyperprior)
    if not engine.parameters.size:
        return interior_fit(engine, table, penalty, _nothing_to_fit(engine, table))
    first = next(iter(pair.coordinates(table.columns)))
    can_vanish = first in engine.parameters.names and not penalty.given
    classical = pair.classical(table) if can_vanish else None
    if classical is not None and classical.why:
        return boundary_fit(engine, table, classical, classical.why, 1)
    many = len(table.weight) > MANY
    sample = table.some(SAMPLE) if many else table
    start = engine.parameters.vector({**pair.start(sample), **pair.fixed})
    objective = objective_of(engine, table.rows, penalty)
    history: list[dict[str, Any]] = []
    below = -np.inf if classical is None else classical_value(classical, table)
    if classical is not None and classical.score <= 0:
        # The score test looks at small spreads only; a short climb from a wide prior asks about large ones.
        explored = newton(objective, start, Stop(max_steps=10), walled=engine.parameters.walled)
        if not explored.value > below + noise(below):
            return boundary_fit(engine, table, classical, "", len(explored.history))
        start = explored.vector
    elif many:
        small = objective_of(engine, sample.rows, penalty)
        begun = newton(small, start, Stop(), walled=engine.parameters.walled)
        history = [{**entry, "rows": len(sample.weight)} for entry in begun.history]
        start = begun.vector if begun.outcome.converged else start
    if method == "direct":
        optimum = newton(objective, start, Stop(), walled=engine.parameters.walled)
    else:
        optimum = expectation_maximization(engine, table.rows, penalty, start)
    if optimum.outcome.kind == "bad_start":
        raise FitError(
            f"{type(pair).__name__} has no finite evidence at its start values. Look at the data for extreme values."
        )
    if classical is not None and not optimum.value > below + noise(below):
        return boundary_fit(engine, table, classical, "", len(history) + len(optimum.history))
    found = Optimum(
        optimum.vector, optimum.value, optimum.slope, optimum.curve, [*history, *optimum.history], optimum.outcome
    )
    fit = interior_fit(engine, table, penalty, found)
    warn_unless_converged(fit.outcome)
    return fit


def noise(value: float) -> float:
    """How far two log likelihoods of this size may differ and still be called equal."""
    return 1e-12 * max(1.0, abs(value)) + 1e-10


def classical_value(classical: Classical, table: Table) -> float:
    return float(table.weight @ classical_evidence(classical, table.columns))


def classical_evidence(classical: Classical, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    values = {name: jnp.asarray(value, dtype=float) for name, value in classical.values.items()}
    data = {name: jnp.asarray(column) for name, column in columns.items()}
    return np.asarray(jax.vmap(lambda row: classical.log_prob(values, row))(data))


def _nothing_to_fit(engine: Engine, table: Table) -> Optimum:
    value, _ = evidence_of(engine, table.rows, np.zeros(0))
    outcome = Outcome("converged", "everything was fixed, so nothing was fitted.", 1)
    history = [{"pass": 1, "value": value, "expected_gain": 0.0, "step": 0.0, "seconds": 0.0}]
    return Optimum(np.zeros(0), value, np.zeros(0), np.zeros((0, 0)), history, outcome)


def expectation_maximization(engine: Engine, rows: Rows, penalty: Penalty, start: np.ndarray) -> Optimum:
    """EM with exact steps, leaping ahead where two steps show where they lead (Varadhan & Roland 2008).

    A leap is kept only if it ends above the plain steps, so the evidence never falls.
    """
    history: list[dict[str, Any]] = []

    def total(vector: np.ndarray) -> float:
        return evidence_of(engine, rows, vector)[0] + penalty.at(vector)

    def step(vector: np.ndarray) -> np.ndarray:
        _, means = over_rows(engine.expectations, rows, None, jnp.asarray(vector))
        together = Rows((*rows.data, *means.values()), rows.weight, rows.chunk, rows.labels)

        def objective(v: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
            sums, _ = over_rows(engine.expected_curves, together, None, jnp.asarray(v))
            return penalty.add_to((sums["value"], sums["slope"], sums["curve"]), jnp.asarray(v))

        return newton(objective, vector, Stop(rtol=1e-13, max_steps=50), walled=engine.parameters.walled).vector

    def note(value: float, size: float) -> None:
        history.append({"pass": len(history) + 1, "value": value, "expected_gain": np.nan, "step": size})

    here, value = start, total(start)
    note(value, 0.0)
    outcome = Outcome("max_steps", f"{EM_STEPS} EM steps were not enough. Use method='direct'.", EM_STEPS)
    for _ in range(EM_STEPS):
        once = step(here)
        twice = step(once)
        there = total(twice)
        note(there, float(np.max(np.abs(twice - once))))
        first, second = once - here, twice - once
        bend = second - first
        if np.linalg.norm(bend) > 1e-14 * np.linalg.norm(first):
            stretch = np.linalg.norm(first) / np.linalg.norm(bend)
            if stretch > 1.0:
                leapt = step(here + 2 * stretch * first + stretch**2 * bend)
                reached = total(leapt) if np.all(np.isfinite(leapt)) else -np.inf
                if reached > there:
                    twice, there = leapt, reached
                    note(there, float(np.max(np.abs(leapt - once))))
        rate = min(float(np.linalg.norm(second)) / max(float(np.linalg.norm(first)), 1e-300), 0.9999)
        left = float(np.max(np.abs(second) / (1.0 + np.abs(twice)))) * rate / (1.0 - rate)
        here, value = twice, there
        if left < EM_TOLERANCE:
            outcome = Outcome("converged", f"EM stands still after {len(history)} steps.", len(history))
            break
    _, slope, curve = objective_of(engine, rows, penalty)(here)
    return Optimum(here, value, slope, curve, history, outcome)
