r"""How does a conjugate pair look to the core? As a row model whose evidence is in closed form, with the classical limit.

The search maximises :math:`\sum_i w_i \log p(x_i \mid \alpha)`. At its edge lies the classical model (one value for all
rows): when the score test says that no spread of the locals would help, and a climb from a wide prior does not contradict
it, the classical model is the answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import biject_to

from robustly.approx import Exact
from robustly.conjugate.base import ClassicalModel, PairDefinition, add
from robustly.errors import ModelError, did_you_mean, names
from robustly.fit.newton import maximize
from robustly.fit.objective import Look, Optimum
from robustly.fit.outcome import Outcome, Stop
from robustly.fit.passes import ChunkPass, weighed
from robustly.fit.problem import Found, Limit, RowProblem
from robustly.model.parameters import Parameters, Theta
from robustly.model.row import RowModel
from robustly.rows.arrays import ArrayRows
from robustly.rows.distinct import Table
from robustly.rows.store import Data, Rows

KEPT = 64
_MODELS: dict[Any, PairModel] = {}


@dataclass(frozen=True, eq=False)
class StatedConjugacy:
    """What a pair knows of its rows, as the core looks for it in programs."""

    pair: PairDefinition
    columns: tuple[str, ...]

    def origin(self, theta: Theta, row: Any) -> None:
        """Pairs count values from zero."""

    def level_and_natural(self, theta: Theta, row: Any, z: Array = None, origin: None = None) -> tuple[Any, Any]:
        """log p(row, local) is ``level + natural · T(local)`` and the prior's base measure."""
        named = dict(zip(self.columns, row))
        eta = tuple(jnp.asarray(part, dtype=float) for part in self.pair.natural(theta, named))
        level = self.pair.log_base(theta, named) - self.pair.log_normalizer(eta)
        return level, add(eta, self.pair.statistic(theta, named))

    def log_normalizer(self, natural: Array) -> Array:
        return self.pair.log_normalizer(natural)


class PairModel:
    """A pair as a row model, for columns of certain shapes. Get it from :func:`model_of`, which keeps them."""

    def __init__(self, pair: PairDefinition, free: tuple[Any, ...], columns: tuple[str, ...]) -> None:
        self.pair, self.columns = pair, columns
        self.samplers: dict[Any, dict[Any, Any]] = {}
        """Compiled samplers of the prior's posterior, by hyperprior."""
        self.row_model = RowModel(
            log_likelihood=lambda local, theta, row: pair.evidence(theta, self.row(row)),
            closed=lambda theta, row: pair.evidence(theta, self.row(row)),
            start={name: _middle(constraint, shape) for name, constraint, shape in free},
            constraints={name: constraint for name, constraint, _ in free},
            fixed=pair.fixed,
            conjugacy=StatedConjugacy(pair, columns),  # type: ignore[arg-type]
            size=0,
        )

    @property
    def parameters(self) -> Parameters:
        return self.row_model.parameters

    def theta(self, vector: Array) -> dict[str, Any]:
        """All coordinates by name, fixed ones included."""
        return dict(self.parameters.natural(vector))

    def reported(self, vector: Array) -> dict[str, Any]:
        """What the user is told: the prior's arguments and what rows share."""
        theta = self.theta(vector)
        shared = {name: theta[name] for name in self.pair.shared if name in theta}
        return {**self.pair.arguments(theta), **shared}

    def row(self, data: Any) -> dict[str, Any]:
        return dict(zip(self.columns, data))


def _middle(constraint: Any, shape: tuple[int, ...]) -> Any:
    transform = biject_to(constraint)
    return transform(jnp.zeros(transform.inverse_shape(shape)))


def model_of(pair: PairDefinition, columns: Mapping[str, np.ndarray]) -> PairModel:
    """The row model of this pair for columns of these shapes, made once."""
    fixed = pair.fixed
    listed = pair.coordinates(columns)
    free = tuple((name, constraint, shape) for name, (constraint, shape) in listed.items() if name not in fixed)
    key = (pair, tuple((name, shape) for name, _, shape in free), tuple(columns))
    try:
        if key not in _MODELS:
            if len(_MODELS) >= KEPT:
                _MODELS.clear()
            _MODELS[key] = PairModel(pair, free, tuple(columns))
        return _MODELS[key]
    except TypeError as error:
        if "hashable" not in str(error):
            raise
        raise ModelError(
            f"{type(pair).__name__} cannot be told from other pairs ({error}). Make it a frozen dataclass whose fields "
            "are numbers, texts or tuples."
        ) from error


class Penalty:
    """Hyperpriors, by the name of what they are about, as a function of the search's vector."""

    def __init__(self, model: PairModel, hyperprior: Mapping[str, Any] | None) -> None:
        self.given = dict(hyperprior or {})
        if not self.given:
            return

        def known(vector: Array) -> dict[str, Any]:
            theta = model.theta(vector)
            return {**theta, **model.reported(vector), **model.pair.derived(theta)}

        listed = list(jax.eval_shape(known, jnp.asarray(model.parameters.start)))
        for name, prior in self.given.items():
            if name not in listed:
                raise ModelError(
                    f'no hyperparameter "{name}"; {type(model.pair).__name__} has {names(listed)}.'
                    + did_you_mean(name, listed)
                )
            if not hasattr(prior, "log_prob"):
                raise ModelError(
                    f'the hyperprior of "{name}" is {prior!r}, but a NumPyro distribution is needed, such as '
                    "dist.Gamma(2.0, 0.1)."
                )

        def log_prior(vector: Array) -> Array:
            values = known(vector)
            return sum((jnp.sum(p.log_prob(values[name])) for name, p in self.given.items()), jnp.zeros(()))

        self.value = jax.jit(log_prior)
        self.all = jax.jit(lambda v: (log_prior(v), jax.grad(log_prior)(v), jax.hessian(log_prior)(v)))

    def at(self, vector: Array) -> tuple[float, Any, Any]:
        """Log density, slope and curvature."""
        if not self.given:
            return 0.0, 0.0, 0.0
        value, slope, curve = (np.asarray(part) for part in self.all(jnp.asarray(vector)))
        return float(value), slope, curve


class PairProblem(RowProblem):
    """The summed evidence of a pair's distinct rows, plus hyperpriors."""

    def __init__(self, owner: PairModel, table: Table, penalty: Penalty, rows: Rows | None = None) -> None:
        super().__init__(owner.row_model, table.rows if rows is None else rows, Exact())
        self.owner, self.table, self.penalty = owner, table, penalty
        self.shared_value: SharedValue | None = None
        """The limit in which rows do not differ, where it is one."""

    def _look(self, vector: np.ndarray, sums: dict[str, Any]) -> Look:
        found = super()._look(vector, sums)
        value, slope, curve = self.penalty.at(vector)
        return Look(found.value + value, found.slope + slope, found.curve + curve)

    def log_prior_at(self, vector: np.ndarray) -> float:
        return self.penalty.at(vector)[0]

    def expected(self, vector: np.ndarray, at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, slope, curve = super().expected(vector, at)
        more = self.penalty.at(vector)
        return value + more[0], slope + more[1], curve + more[2]

    def on(self, rows: Rows) -> PairProblem:
        return PairProblem(self.owner, self.table, self.penalty, rows)

    def starts(self, begin: Found | None) -> Sequence[np.ndarray]:
        if begin is not None:
            return [begin.vector]
        if self.shared_value is not None and self.shared_value.explored is not None:
            return [self.shared_value.explored.vector]
        return [self.first]

    @cached_property
    def first(self) -> np.ndarray:
        """Where the pair says that a search begins."""
        assert isinstance(self.rows, ArrayRows)
        sample = self.table if len(self.rows) == len(self.table.weight) else self.table.with_rows(self.rows)
        return self.model.parameters.vector({**self.owner.pair.start(sample), **self.owner.pair.fixed})

    def limits(self, begin: Found | None) -> Sequence[Limit]:
        return [] if self.shared_value is None else [self.shared_value]


class SharedValue(Limit):
    """All rows share one value of the local: the classical model, known in closed form."""

    def __init__(self, problem: PairProblem, classical: ClassicalModel) -> None:
        self.problem, self.classical = problem, classical
        self.explored: Optimum | None = None

    @cached_property
    def value(self) -> float:
        return classical_value(self.classical, self.problem.table)

    @cached_property
    def found(self) -> Found:  # type: ignore[override]
        nothing = np.zeros(0)
        outcome = Outcome("boundary", self.classical.why, 1)
        return Found(self.problem, Optimum(nothing, self.value, nothing, np.zeros((0, 0)), [], outcome))

    def rules_out(self) -> bool:
        if self.classical.why:
            return True
        if self.classical.score > 0:
            return False
        # The score test looks at small spreads only; a short climb from a wide prior asks about large ones.
        explored = maximize(self.problem.fresh(), self.problem.first, Stop(max_steps=10))
        if not explored.value > self.value + noise(self.value):
            self.steps = len(explored.history)
            return True
        self.explored = explored
        return False

    steps: int = 1

    def answers(self, best: Found) -> bool:
        return not best.value > self.value + noise(self.value)

    def answer(self, best: Found | None) -> Found:
        steps = self.steps if best is None else len(best.optimum.history)
        return self.found.with_outcome("boundary", self.classical.why, steps)


def noise(value: float) -> float:
    """How far two log likelihoods of this size may differ and still be called equal."""
    return 1e-12 * max(1.0, abs(value)) + 1e-10


def classical_value(classical: ClassicalModel, table: Table) -> float:
    return float(table.weight @ classical_evidence(classical, table.columns))


def classical_evidence(classical: ClassicalModel, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    return (
        classical_rows(columns).map(classical_passes(classical, columns).evidence, classical.values).by_unit["evidence"]
    )


def classical_rows(columns: Mapping[str, np.ndarray], weight: np.ndarray | None = None) -> ArrayRows:
    """Columns as rows of the classical model."""
    count = len(next(iter(columns.values())))
    return ArrayRows(tuple(columns.values()), np.ones(count) if weight is None else weight, labels=tuple(columns))


class ClassicalPasses:
    """Passes over the rows of a classical model: densities, their slopes by row, and their summed curvature."""

    def __init__(self, log_prob: Callable[[Any, Any], Any], columns: tuple[str, ...]) -> None:
        one = lambda values, row: log_prob(values, dict(zip(columns, row)))

        def flat(values: Mapping[str, Any]) -> tuple[Any, Callable[[Any], dict[str, Any]]]:
            shapes = {name: jnp.shape(value) for name, value in values.items()}
            sizes = [int(np.prod(shape, dtype=int)) for shape in shapes.values()]
            ends = np.cumsum([0, *sizes])

            def named(vector: Array) -> dict[str, Any]:
                parts = zip(shapes.items(), ends, ends[1:])
                return {name: vector[start:end].reshape(shape) for (name, shape), start, end in parts}

            return jnp.concatenate([jnp.reshape(jnp.asarray(v, dtype=float), -1) for v in values.values()]), named

        def evidence(values: Any, data: Data, weight: Any, state: Array) -> Array:
            return {}, {"evidence": jax.vmap(lambda row: one(values, row))(data)}, None

        def scores(values: Any, data: Data, weight: Any, state: Any) -> Any:
            x, named = flat(values)
            each = jax.vmap(jax.grad(lambda v, row: one(named(v), row)), (None, 0))
            return {}, {"score": each(x, data)}, None

        def curve(values: Any, data: Data, weight: Any, state: Any) -> Any:
            x, named = flat(values)
            total = lambda v: weighed(weight, jax.vmap(lambda row: one(named(v), row))(data))
            return {"curve": jax.hessian(total)(x)}, {}, None

        self.evidence, self.scores, self.curve = (ChunkPass(jax.jit(part)) for part in (evidence, scores, curve))


_CLASSICAL: dict[Any, ClassicalPasses] = {}


def classical_passes(classical: ClassicalModel, columns: Mapping[str, np.ndarray]) -> ClassicalPasses:
    """The passes of a classical model, made once for each density that a pair states, though it states it anew each time."""
    key = (_identity(classical.log_prob), tuple(columns))
    try:
        if key not in _CLASSICAL:
            if len(_CLASSICAL) >= KEPT:
                _CLASSICAL.clear()
            _CLASSICAL[key] = ClassicalPasses(classical.log_prob, tuple(columns))
        return _CLASSICAL[key]
    except TypeError:  # a user's own density, with something in it that cannot be told from another
        return ClassicalPasses(classical.log_prob, tuple(columns))


def _identity(function: Any) -> Any:
    """What makes two functions the same: their code, and what they were made with."""
    if not inspect.isfunction(function):
        return function
    held = tuple(_identity(cell.cell_contents) for cell in function.__closure__ or ())
    return function.__code__, held, function.__defaults__


@lru_cache(maxsize=KEPT)
def posterior_pass(pair: PairDefinition, columns: tuple[str, ...]) -> ChunkPass:
    """The pass that gives every row's posterior natural parameters; theta is the pair's."""

    def chunk(theta: Any, data: Data, weight: np.ndarray, state: Any) -> Any:
        full = lambda eta: tuple(jnp.asarray(part, dtype=float) for part in eta)
        eta = jax.vmap(lambda row: full(pair.posterior_natural(theta, dict(zip(columns, row)))))(data)
        return {}, {str(i): part for i, part in enumerate(eta)}, None

    return ChunkPass(jax.jit(chunk))
