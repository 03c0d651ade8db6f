r"""What will a new row look like? A mixture over the fitted prior: :math:`p(x^* \mid \hat\alpha)`.

The prior of the local value is laid out on points once for each row, the program is run at every point without its
observations, and what it would have drawn there are the mixture's components.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, logsumexp
from numpyro.distributions import ExpandedDistribution

from robustly.approx.climb import climb
from robustly.approx.grid import line_points, qmc_points
from robustly.errors import DataError, ModelError, names
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.hyper import core
from robustly.model.program.read import Program
from robustly.model.program.trace import neutral_value, run, site_log_prob
from robustly.rows.arrays import Rows, make_rows
from robustly.rows.store import over_rows

LINE_POINTS = 121
CLOUD_POINTS = 512


class Predictor:
    """A program with fitted parameters, asked about rows whose observations are not given."""

    def __init__(self, program: Program, vector: np.ndarray, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.vector = jnp.asarray(vector)
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
        self.rows: Rows = make_rows(leaves, labels, chunk=512)
        self.missing = tuple(label for label in trained if label not in labels)
        for label, array in zip(self.rows.labels, self.rows.data):
            expected = np.shape(trained[label])[1:]
            if array.shape[1:] != expected:
                raise DataError(
                    f"{label} has {array.shape[1:]} entries a row, but the model was fitted with {expected}."
                )
        self.program = program.called_with(arguments, is_row)
        self.model = self.program.row_model

    # ------------------------------------------------------------------ one row

    def _trace(self, row: Any, values: Mapping[str, Any], theta: Any, key: Any = None) -> Any:
        return self.program.trace_row(row, values, theta, key=key, draw=key is not None)

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites that were observed in the fit and are predicted now."""
        theta = self.model.parameters.natural(self.vector)
        row = tuple(jnp.asarray(a[0]) for a in self.rows.data)
        trace = self._trace(row, self.program.shared_values(theta), theta)
        given = [name for name in self.program.sites.observed if name in trace and trace[name]["is_observed"]]
        if given:
            raise DataError(
                f"the new rows come with observations of {names(given)}. Leave them out of predictive(): "
                "the model should take them as None and then draw them."
            )
        return tuple(name for name in self.program.sites.observed if name in trace)

    def _components(self, row: Any, ask: Any) -> tuple[Any, Any]:
        """``ask(distribution)`` at every point of the prior (and value of z), and the points' shares."""
        theta = self.model.parameters.natural(self.vector)
        site = self.site
        latents = self.program.latents

        def at(local: Any, z: Any) -> tuple[Any, Any]:
            caught: dict[str, Any] = {}

            def catch(name: str) -> Any:
                def keep(distribution: Any) -> Any:
                    caught[name] = distribution
                    return neutral_value(distribution)

                return keep

            values = {**self.program._everything(local, theta, z), **{name: catch(name) for name in self.sites}}
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
                **self.program._everything(local, theta, None),
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

    # ------------------------------------------------------------------ all rows

    def _over(self, function: Any, *args: Any) -> dict[str, np.ndarray]:
        def chunk(*given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            *rest, data, _weight, _state = given
            return {}, jax.vmap(lambda row: function(*rest, row))(data)

        return over_rows(jax.jit(chunk), self.rows, None, *args)[1]

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every new row."""

        def one(row: Any) -> dict[str, Any]:
            (mean, variance), share = self._components(row, lambda d: (_flat(d.mean), _flat(d.variance)))
            centre = jnp.einsum("k,k...->...", share, mean)
            spread = jnp.einsum("k,k...->...", share, variance + (mean - centre) ** 2)
            return {"mean": centre, "sd": jnp.sqrt(spread)}

        found = self._over(one)
        return found["mean"], found["sd"]

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """P(Y ≤ value) for one value a row."""

        def one(packed: Any) -> dict[str, Any]:
            *row, value = packed
            each, share = self._components(tuple(row), lambda d: cdf_of(d, value))
            return {"cdf": share @ each}

        rows = Rows((*self.rows.data, np.asarray(values, dtype=float)), self.rows.weight, self.rows.chunk)

        def chunk(data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            return {}, jax.vmap(one)(data)

        return over_rows(jax.jit(chunk), rows, None)[1]["cdf"]

    def quantile(self, level: float) -> np.ndarray:
        """The value below which a share `level` of each row's predictive lies."""
        theta = self.model.parameters.natural(self.vector)
        row0 = tuple(jnp.asarray(a[0]) for a in self.rows.data)
        seen = self._trace(row0, self.program.shared_values(theta), theta)[self.site]["fn"]
        low, high, whole = _range(seen.support)

        def one(row: Any) -> dict[str, Any]:
            below = partial(self._mixture_cdf, row)
            return {"quantile": solve_quantile(below, level, low, high, whole)}

        return self._over(one)["quantile"]

    def _mixture_cdf(self, row: Any, value: Any) -> Any:
        each, share = self._components(row, lambda d: cdf_of(d, value))
        return share @ each

    def has_cdf(self) -> bool:
        """Whether the observed distribution is one number with a known distribution function."""
        if len(self.sites) != 1:
            return False
        row = tuple(jnp.asarray(a[0]) for a in self.rows.data)
        try:
            shape = jax.eval_shape(lambda r: self._mixture_cdf(r, jnp.zeros(())), row)
        except (NotImplementedError, ImportError, AttributeError, TypeError, ValueError):
            return False
        return shape.shape == ()

    def sample(self, count: int, key: Any) -> dict[str, np.ndarray]:
        """Draws of new rows, each with a local value of its own: by site, (count, rows, …)."""
        theta = self.model.parameters.natural(self.vector)

        def one(row: Any, row_key: Any) -> dict[str, Any]:
            def draw(k: Any) -> dict[str, Any]:
                trace = self._trace(row, self.program.shared_values(theta), theta, key=k)
                return {
                    name: trace[name]["value"][0] if jnp.ndim(trace[name]["value"]) else trace[name]["value"]
                    for name in self.sites
                }

            return jax.vmap(draw)(jax.random.split(row_key, count))

        keys = np.asarray(jax.random.key_data(jax.random.split(key, len(self.rows))))
        rows = Rows((*self.rows.data, keys), self.rows.weight, self.rows.chunk)

        def chunk(data: Any, weight: Any, state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
            *row, raw = data
            return {}, jax.vmap(one)(tuple(row), jax.random.wrap_key_data(raw))

        found = over_rows(jax.jit(chunk), rows, None)[1]
        return {name: np.moveaxis(values, 1, 0) for name, values in found.items()}


def without_observations(program: Program, arguments: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call that was fitted, with its observations left out."""
    signature = inspect.signature(program.request.model)
    args, kwargs = arguments.call(arguments.leaves)
    bound = signature.bind(*args, **kwargs)
    rows = {label.split("[")[0].split(".")[0] for label, row in zip(arguments.labels, program.is_row) if row}
    likely = [
        name
        for name, parameter in signature.parameters.items()
        if name in bound.arguments and name in rows and parameter.default is None
    ]
    for chosen in ([likely] if likely else []) + [[name] for name in reversed(list(bound.arguments)) if name in rows]:
        trial = signature.bind(*args, **kwargs)
        for name in chosen:
            trial.arguments[name] = None
        try:
            trace = run(program.request.model, trial.args, trial.kwargs, key=jax.random.key(0))
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


def solve_quantile(below: Any, level: Any, low: float, high: float, whole: bool) -> Any:
    """Invert a distribution function by doubling a bracket, then halving it."""
    unbounded = jnp.zeros(())
    start_low = unbounded - 1.0 if not np.isfinite(low) else jnp.asarray(low - (1.0 if whole else 0.0))
    start_high = (start_low + 2.0) if not np.isfinite(high) else jnp.asarray(high)

    def widen_up(state: Any) -> Any:
        a, width = state
        return a, width * 2.0

    if not np.isfinite(high):
        _, width = jax.lax.while_loop(
            lambda s: (below(s[0] + s[1]) < level) & (s[1] < 1e300), widen_up, (start_low, jnp.ones(()) * 2.0)
        )
        start_high = start_low + width
    if not np.isfinite(low):
        _, width = jax.lax.while_loop(
            lambda s: (below(s[0] - s[1]) > level) & (s[1] < 1e300), widen_up, (start_high, jnp.ones(()) * 2.0)
        )
        start_low = start_high - width

    def halve(_: Any, bracket: Any) -> Any:
        a, b = bracket
        middle = 0.5 * (a + b)
        under = below(middle) < level
        return jnp.where(under, middle, a), jnp.where(under, b, middle)

    a, b = jax.lax.fori_loop(0, 70, halve, (start_low, start_high))
    return jnp.ceil(b - 1e-6 * jnp.maximum(1.0, jnp.abs(b))) if whole else 0.5 * (a + b)
