r"""What will a new row look like? A mixture over the fitted prior: :math:`p(x^* \mid \hat\alpha)`.

The prior of the local value is laid out on points once for each row, the program is run at every point without its
observations, and what it would have drawn there are the mixture's components.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, logsumexp
from numpyro.distributions import ExpandedDistribution

from robustly._runtime.keys import jax_key
from robustly._runtime.precision import in_double_precision
from robustly.approx.climb import climb
from robustly.approx.grid import line_points, qmc_points
from robustly.errors import DataError, ModelError, names
from robustly.fit.passes import ChunkPass
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.hyper import core
from robustly.model.program.read import Program
from robustly.model.program.trace import neutral_value, run_program, site_log_prob
from robustly.result.laws import RowLaw, invert_cdf
from robustly.rows.arrays import ArrayRows, bucket_of, make_rows

DRAWS = 4000
# Rows with which a program is tried without its observations.
FEW_ROWS = 64
LINE_POINTS = 121
CLOUD_POINTS = 512


class Calls:
    """Calls of a program without its observations, of one kind: passes over their rows, compiled once.

    Passes take the vector of parameters as their theta, so that all fits of a program share them.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.model = program.row_model
        self.moments = ChunkPass(jax.jit(self._moments))
        self.cdf = ChunkPass(jax.jit(self._cdf))
        self._draws: dict[int, ChunkPass] = {}

    def _trace(self, row: Any, values: Mapping[str, Any], theta: Any, key: Any = None) -> Any:
        return self.program.trace_row(row, values, theta, key=key, draw=key is not None)

    @cached_property
    def _example(self) -> tuple[Any, Any]:
        """A vector and a row, as examples of their kinds."""
        rows = (leaf for leaf, row in zip(self.program.arguments.leaves, self.program.is_row) if row)
        return jnp.asarray(self.model.parameters.start), tuple(jnp.asarray(leaf[0]) for leaf in rows)

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites that were observed in the fit and are predicted now."""
        vector, row = self._example
        theta = self.model.parameters.natural(vector)
        trace = self._trace(row, self.program.shared_values(theta), theta)
        given = [name for name in self.program.sites.observed if name in trace and trace[name]["is_observed"]]
        if given:
            raise DataError(
                f"the new rows come with observations of {names(given)}. Leave them out of predictive(): "
                "the model should take them as None and then draw them."
            )
        return tuple(name for name in self.program.sites.observed if name in trace)

    def _components(self, vector: Any, row: Any, ask: Any) -> tuple[Any, Any]:
        """``ask(distribution)`` at every point of the prior (and value of z), and the points' shares."""
        theta = self.model.parameters.natural(vector)
        site = self.site
        latents = self.program.latents

        def at(local: Any, z: Any) -> tuple[Any, Any]:
            caught: dict[str, Any] = {}

            def catch(name: str) -> Any:
                def keep(distribution: Any) -> Any:
                    caught[name] = distribution
                    return neutral_value(distribution)

                return keep

            values = {**self.program.all_values(local, theta, z), **{name: catch(name) for name in self.sites}}
            trace = self._trace(row, values, theta)
            chance = sum((site_log_prob(trace[name]) for name in self.program.sites.discrete), jnp.zeros(()))
            return ask(caught[site]), chance

        if self.model.dim == 0:
            points, log_share = None, jnp.zeros(1)
            each = lambda z: jax.tree.map(lambda a: a[None], at(None, z))
        else:
            points, log_share = self._prior_points(theta, row)
            each = lambda z: jax.vmap(lambda u: at(self.model.local(u, theta, row)[0], z))(points)
        if latents is None:
            answers, _ = each(None)
            return answers, jnp.exp(log_share - logsumexp(log_share))
        answers, chance = jax.vmap(each)(jnp.asarray(latents))
        weight = (chance + log_share).reshape(-1)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), answers), jnp.exp(weight - logsumexp(weight))

    def _prior_points(self, theta: Any, row: Any) -> tuple[Any, Any]:
        """Points of the local's prior: the same rules that integrate a posterior, with no data."""

        def prior(u: Any) -> Any:
            local, volume = self.model.local(u, theta, row)
            values = {
                **self.program.all_values(local, theta, None),
                **{name: self.program.trace[name]["value"] for name in self.sites},
            }
            trace = self._trace(row, values, theta)
            return sum((site_log_prob(trace[name]) for name in self.program.sites.local), jnp.zeros(())) + volume

        mode = climb(prior, jnp.zeros(self.model.dim), self.model.dim)
        if self.model.dim == 1:
            return line_points(prior, mode, LINE_POINTS)
        return qmc_points(prior, mode, self.model.dim, CLOUD_POINTS)

    @property
    def site(self) -> str:
        if len(self.sites) != 1:
            raise ModelError(
                f"this model observes {names(self.sites)} together; use sample() for their joint prediction."
            )
        return self.sites[0]

    def _mixture_cdf(self, vector: Any, row: Any, value: Any) -> Any:
        each, share = self._components(vector, row, lambda d: cdf_of(d, value))
        return share @ each

    @cached_property
    def has_cdf(self) -> bool:
        """Whether the observed distribution is one number with a known distribution function."""
        if len(self.sites) != 1:
            return False
        try:
            shape = jax.eval_shape(lambda v, r: self._mixture_cdf(v, r, jnp.zeros(())), *self._example)
        except (NotImplementedError, ImportError, AttributeError, TypeError, ValueError):
            return False
        return shape.shape == ()

    @cached_property
    def support(self) -> tuple[float, float, bool]:
        """Ends of what is observed, and whether it is whole numbers."""
        vector, row = self._example
        theta = self.model.parameters.natural(vector)
        return _range(self._trace(row, self.program.shared_values(theta), theta)[self.site]["fn"].support)

    # ------------------------------------------------------------------ all rows

    def _moments(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
        def one(row: Any) -> dict[str, Any]:
            (mean, variance), share = self._components(vector, row, lambda d: (_flat(d.mean), _flat(d.variance)))
            centre = jnp.einsum("k,k...->...", share, mean)
            spread = jnp.einsum("k,k...->...", share, variance + (mean - centre) ** 2)
            return {"mean": centre, "sd": jnp.sqrt(spread)}

        return {}, jax.vmap(one)(data), None

    def _cdf(self, vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
        one = lambda packed: self._mixture_cdf(vector, tuple(packed[:-1]), packed[-1])
        return {}, {"cdf": jax.vmap(one)(data)}, None

    def draws(self, count: int) -> ChunkPass:
        """The pass of so many draws a row, whose data end with a key for each row."""

        def chunk(vector: Any, data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any], None]:
            theta = self.model.parameters.natural(vector)

            def one(row: Any, row_key: Any) -> dict[str, Any]:
                def draw(k: Any) -> dict[str, Any]:
                    trace = self._trace(row, self.program.shared_values(theta), theta, key=k)
                    return {
                        name: trace[name]["value"][0] if jnp.ndim(trace[name]["value"]) else trace[name]["value"]
                        for name in self.sites
                    }

                return jax.vmap(draw)(jax.random.split(row_key, count))

            *row, raw = data
            return {}, jax.vmap(one)(tuple(row), jax.random.wrap_key_data(raw)), None

        if count not in self._draws:
            self._draws[count] = ChunkPass(jax.jit(chunk))
        return self._draws[count]


def calls_like(program: Program, arguments: Arguments, is_row: tuple[bool, ...]) -> Calls:
    """What predicts calls like this one; kept with the program."""
    for known in program.predictors:
        if known.program.is_like(arguments):
            return known
    program.predictors.append(Calls(program.called_with(arguments, is_row)))
    return program.predictors[-1]


class Predictive(RowLaw):
    """The integrated predictive distribution of rows whose observations are not given; every answer is an array by row."""

    @in_double_precision
    def __init__(
        self,
        program: Program,
        vector: np.ndarray,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        log_prob: Callable[[Predictive, Mapping[str, Any]], np.ndarray],
    ) -> None:
        self._log_prob = log_prob
        self.vector = np.asarray(vector)
        arguments = read_arguments(program.request.model, args, dict(kwargs))
        trained = {
            label: leaf
            for label, leaf, row in zip(program.arguments.labels, program.arguments.leaves, program.is_row)
            if row
        }
        is_row = tuple(label in trained for label in arguments.labels)
        if not any(is_row):
            raise DataError(f"new rows are needed for {names(trained)}, as in the call that was fitted.")
        leaves = [leaf for leaf, row in zip(arguments.leaves, is_row) if row]
        labels = [label for label, row in zip(arguments.labels, is_row) if row]
        self.rows: ArrayRows = make_rows(leaves, labels, chunk=512)
        self.missing = tuple(label for label in trained if label not in labels)
        for label, array in zip(self.rows.labels, self.rows.data):
            expected = np.shape(trained[label])[1:]
            if array.shape[1:] != expected:
                raise DataError(
                    f"{label} has {array.shape[1:]} entries a row, but the model was fitted with {expected}."
                )
        self.calls = calls_like(program, arguments, is_row)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    @in_double_precision
    def _moments(self) -> Mapping[str, np.ndarray]:
        return self.rows.map(self.calls.moments, self.vector).by_unit

    @property
    def mean(self) -> np.ndarray:
        """Expected value of every row, averaged over the fitted prior."""
        return self._moments["mean"]

    @property
    def sd(self) -> np.ndarray:
        """Standard deviation of every row, the prior's spread included."""
        return self._moments["sd"]

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that were observed in the fit and are predicted now."""
        return in_double_precision(lambda: self.calls.sites)()

    @property
    def site(self) -> str:
        """The only one."""
        return in_double_precision(lambda: self.calls.site)()

    @property
    def has_cdf(self) -> bool:
        """Whether the observed distribution is one number with a known distribution function."""
        return in_double_precision(lambda: self.calls.has_cdf)()

    def cdf(self, values: Any) -> np.ndarray:
        """P(Y ≤ value), one value a row."""
        if not self.has_cdf:
            raise ModelError("the observed distribution has no known distribution function. Use sample() instead.")
        given = np.broadcast_to(np.asarray(values, dtype=float), (len(self),))
        rows = ArrayRows((*self.rows.data, given), self.rows.weight, self.rows.chunk)
        return rows.map(self.calls.cdf, self.vector).by_unit["cdf"]

    @in_double_precision
    def _quantile_at(self, level: float) -> np.ndarray:
        if not self.has_cdf:
            return np.quantile(self._drawn, level, axis=0)
        low, high, whole = self.calls.support
        open_ends = (not np.isfinite(low), not np.isfinite(high))
        start = (-1.0 if open_ends[1] else high - 2.0) if open_ends[0] else low - float(whole)
        bracket = (np.full(len(self), end) for end in (start, start + 2.0 if open_ends[1] else high))
        return invert_cdf(self.cdf, level, *bracket, open_ends=open_ends, whole=whole)

    @cached_property
    def _drawn(self) -> np.ndarray:
        found = self.sample(DRAWS, key=0)
        if isinstance(found, dict):
            raise ModelError(
                f"this model observes {names(found)} together; use sample() and take quantiles of one of them."
            )
        return found

    def log_prob(self, *observations: Any) -> np.ndarray:
        """Log density of observed values, integrated over each row's own local value."""
        if len(observations) != len(self.missing):
            raise DataError(f"log_prob takes {names(self.missing)}; got {len(observations)} arrays.")
        return self._log_prob(self, dict(zip(self.missing, observations)))

    def sample(self, num_samples: int = 1000, *, key: Any) -> np.ndarray | dict[str, np.ndarray]:
        """Draws of shape (num_samples, rows, …); a dictionary by site when several are observed."""
        found = self.draws(num_samples, jax_key(key))
        return next(iter(found.values())) if len(found) == 1 else found

    @in_double_precision
    def draws(self, count: int, key: Any) -> dict[str, np.ndarray]:
        """Draws of new rows, each with a local value of its own: by site, (count, rows, …)."""
        size = bucket_of(len(self), max(len(self), self.rows.chunk))
        keys = np.asarray(jax.random.key_data(jax.random.split(key, size)))[: len(self)]
        rows = ArrayRows((*self.rows.data, keys), self.rows.weight, self.rows.chunk)
        found = rows.map(self.calls.draws(count), self.vector).by_unit
        return {name: np.moveaxis(values, 1, 0) for name, values in found.items()}


def without_observations(program: Program, arguments: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that was fitted, with its observations left out."""
    signature = inspect.signature(program.request.model)
    args, kwargs = arguments.call(arguments.leaves)
    bound = signature.bind(*args, **kwargs)
    few_args, few_kwargs = arguments.call(program.padded(arguments, FEW_ROWS).leaves)
    rows = {label.split("[")[0].split(".")[0] for label, row in zip(arguments.labels, program.is_row) if row}
    likely = [
        name
        for name, parameter in signature.parameters.items()
        if name in bound.arguments and name in rows and parameter.default is None
    ]
    for chosen in ([likely] if likely else []) + [[name] for name in reversed(list(bound.arguments)) if name in rows]:
        trial, few = signature.bind(*args, **kwargs), signature.bind(*few_args, **few_kwargs)
        for name in chosen:
            trial.arguments[name] = few.arguments[name] = None
        try:
            trace = run_program(program.request.model, few.args, few.kwargs, key=jax.random.key(0))
        except Exception:
            continue
        if not any(trace[name]["is_observed"] for name in program.sites.observed if name in trace):
            return trial.args, trial.kwargs
    raise ModelError(
        f"the model cannot be run without the observations of {names(program.sites.observed)}, which prediction needs. "
        "Let it take them as None, as in def model(x, y=None)."
    )


def cdf_of(distribution: Any, value: Any) -> Any:
    """P(Y ≤ value); for some discrete distributions NumPyro has none."""
    inner, _ = core(distribution)
    kind = type(inner).__name__
    # A plate expands what does not depend on its rows; NumPyro gives what was expanded no distribution function.
    while isinstance(distribution, ExpandedDistribution):
        distribution = distribution.base_dist
    if kind.startswith("Bernoulli"):
        p = inner.mean
        found = jnp.where(value < 0, 0.0, jnp.where(value < 1, 1.0 - p, 1.0))
    elif kind.startswith("Binomial"):
        k, n = jnp.floor(value), inner.total_count
        inside = betainc(jnp.maximum(n - k, 1e-300), jnp.maximum(k + 1.0, 1e-300), 1.0 - inner.probs)
        found = jnp.where(value < 0, 0.0, jnp.where(k >= n, 1.0, inside))
    elif distribution.support.is_discrete:
        found = jnp.where(value < 0, 0.0, distribution.cdf(jnp.maximum(jnp.floor(value), 0.0)))
    else:
        found = distribution.cdf(value)
    return _one_number(found)


def _one_number(found: Any) -> Any:
    if found.size != 1:
        raise ValueError("not one number a row")
    return found.reshape(())


def _flat(value: Any) -> Any:
    """A row's component without its leading axis of one row."""
    value = jnp.asarray(value, dtype=float)
    return value[0] if value.ndim and value.shape[0] == 1 else value


def _range(support: Any) -> tuple[float, float, bool]:
    from numpyro.distributions import constraints

    while isinstance(support, constraints.independent):
        support = support.base_constraint
    low = getattr(support, "lower_bound", -jnp.inf)
    high = getattr(support, "upper_bound", jnp.inf)
    if support in (constraints.unit_interval,):
        low, high = 0.0, 1.0
    if support is constraints.boolean:
        low, high = 0.0, 1.0
    low = low if np.size(low) == 1 and not isinstance(low, jax.core.Tracer) else -jnp.inf
    high = high if np.size(high) == 1 and not isinstance(high, jax.core.Tracer) else jnp.inf
    return float(np.reshape(low, ())), float(np.reshape(high, ())), bool(support.is_discrete)
