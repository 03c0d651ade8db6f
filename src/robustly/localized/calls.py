"""What does a fitted program draw for one row? A mixture over the fitted prior, laid out on points once for each row.

The program is run at every point without its observations; what it would have drawn there are the mixture's components.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import betainc, logsumexp
from numpyro.distributions import CategoricalLogits, CategoricalProbs, ExpandedDistribution, Normal
from numpyro.distributions.discrete import ZeroInflatedProbs

from robustly._runtime.compiled import one_thread
from robustly.approx.climb import climb
from robustly.approx.grid import Density, line_points, peak_width, qmc_points
from robustly.approx.two_centre import two_centre_points
from robustly.errors import DataError, ModelError, names
from robustly.fit.passes import ChunkPass
from robustly.localized.truncated import TRUNCATED, truncated_cdf, truncated_moments
from robustly.model.parameters import Theta
from robustly.model.program.hyper import core
from robustly.model.program.read import Program
from robustly.model.program.request import Run
from robustly.model.program.trace import neutral_value
from robustly.model.row import Latent
from robustly.rows.store import Data

LINE_POINTS = 121
# On each of four half-lines around the prior's mode and the place that an outcome tells of.
HALF_LINE_POINTS = 40
CLOUD_POINTS = 512


class Calls:
    """Calls of a program without its observations, of one kind: passes over their rows, compiled once.

    Passes take the vector of parameters as their theta, so that all fits of a program share them.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.model = program.row_model
        self.moments = ChunkPass(one_thread(self._moments))
        self.cdf = ChunkPass(one_thread(self._cdf))
        self.probabilities = ChunkPass(one_thread(self._probabilities))
        self._draws: dict[int, ChunkPass] = {}

    @cached_property
    def _example(self) -> tuple[Any, Any]:
        """A vector and a row, as examples of their kinds."""
        return jnp.asarray(self.model.parameters.start), tuple(jnp.asarray(a) for a in self.program.first_row)

    @cached_property
    def _typical(self) -> Any:
        theta = self.model.parameters.natural(self._example[0])
        return self.program.run_once(self.program.shared_values(theta), theta)

    @cached_property
    def sites(self) -> tuple[str, ...]:
        """The sites that were observed in the fit and are predicted now."""
        trace = self._typical
        given = [name for name in self.program.sites.observed if name in trace and trace[name]["is_observed"]]
        if given:
            raise DataError(
                f"the new rows come with observations of {names(given)}. Leave them out of predictive(): "
                "the model should take them as None and then draw them."
            )
        return tuple(name for name in self.program.sites.observed if name in trace)

    def _components(
        self, vector: Array, row: Any, ask: Any, *more: Any, log_prob_of: Array | None = None
    ) -> tuple[Any, Any]:
        """``ask(site, *more)`` at every point of the prior (and value of z), and the points' shares.

        Points are dense, too, where an outcome `log_prob_of` is likely: a count of 20 000 says where its log rate is to within .007.
        """
        theta = self.model.parameters.natural(vector)
        wanted = self.site
        latents = self.program.latents

        def components(ask: Any, run: Run, local: Any, theta: Theta, z: Latent, *more: Any) -> tuple[Any, Any]:
            values = dict.fromkeys(self.sites, neutral_value)
            trace = run({**self.program.all_values(local, theta, z), **values}, theta)
            chance = sum((self.program.log_prob(trace[name]) for name in self.program.sites.discrete), jnp.zeros(()))
            return ask(trace[wanted], *more), chance

        def at(u: Any, z: Latent, ask: Any, *more: Any) -> tuple[Any, Any]:
            local = None if u is None else self.model.local(u, theta, row)[0]
            return self.program.rowwise(partial(components, ask), row, local, theta, z, *more)

        def each(z: Latent) -> tuple[Any, Any, Any]:
            """Answers, log chances of z and log shares, by point."""
            if self.model.dim == 0:
                answers, chance = at(None, z, ask, *more)
                return jax.tree.map(lambda a: a[None], answers), chance[None], jnp.zeros(1)
            likelihood = None
            if log_prob_of is not None:
                says = lambda site, value: self.program.by_row(site, site["fn"].log_prob(value))
                likelihood = lambda u: at(u, z, says, log_prob_of)[0].reshape(())
            points, log_share = self._prior_points(theta, row, likelihood)
            return *jax.vmap(lambda u: at(u, z, ask, *more))(points), log_share - logsumexp(log_share)

        if latents is None:
            answers, _, log_share = each(None)
            return answers, jnp.exp(log_share)
        answers, chance, log_share = jax.vmap(each)(jnp.asarray(latents))
        weight = (chance + log_share).reshape(-1)
        return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), answers), jnp.exp(weight - logsumexp(weight))

    def _prior_points(self, theta: Theta, row: Any, likelihood: Density | None) -> tuple[Any, Any]:
        """Points of the local's prior: the same rules that integrate a posterior, with no data or dense where those are likely."""

        def prior(u: Array) -> Any:
            local, volume = self.model.local(u, theta, row)
            return self.program.log_prior(local, theta, row) + volume

        mode = climb(prior, jnp.zeros(self.model.dim), self.model.dim)
        if self.model.dim > 1:
            return qmc_points(prior, mode, self.model.dim, CLOUD_POINTS)
        if likelihood is None:
            return line_points(prior, mode, LINE_POINTS)
        posterior = lambda u: prior(u) + likelihood(u)
        place = climb(posterior, mode, 1)
        width, narrow = (peak_width(f, at) for f, at in ((prior, mode), (posterior, place)))
        # An outcome that the law cannot give has no place, and its distribution function needs no points of its own.
        told = jnp.isfinite(posterior(place))
        points, log_share = two_centre_points(
            prior,
            mode[0],
            width,
            jnp.where(told, place[0], mode[0]),
            jnp.where(told, narrow, width),
            HALF_LINE_POINTS,
        )
        return points[:, None], log_share

    @property
    def site(self) -> str:
        if len(self.sites) != 1:
            raise ModelError(
                f"this model observes {names(self.sites)} together; use sample() for their joint prediction."
            )
        return self.sites[0]

    def _mixture_cdf(self, vector: Array, row: Any, value: Any) -> Any:
        ask = lambda site, value: self.program.by_row(site, cdf_of(site["fn"], value))
        low, high, whole = self.support
        seen = jnp.clip(jnp.floor(value) if whole else value, low, high)
        each, share = self._components(vector, row, ask, value, log_prob_of=seen)
        found = jnp.einsum("k,k...->...", share, each)
        return found.reshape(()) if found.size == 1 else found

    def _works(self, function: Any) -> Any:
        """The shape of what a function of a row gives, if the observed distribution can tell it."""
        try:
            return jax.eval_shape(function, *self._example).shape
        except (NotImplementedError, ImportError, AttributeError, TypeError, ValueError, AssertionError):
            return None

    @cached_property
    def has_cdf(self) -> bool:
        """Whether the observed distribution is one number with a known distribution function."""
        return len(self.sites) == 1 and self._works(lambda v, r: self._mixture_cdf(v, r, jnp.zeros(()))) == ()

    @cached_property
    def has_moments(self) -> bool:
        """Whether the observed distribution states its mean and variance."""
        return len(self.sites) == 1 and self._works(lambda v, r: self._mean_and_sd(v, r)["mean"]) is not None

    @cached_property
    def is_categorical(self) -> bool:
        return len(self.sites) == 1 and _categories(self._typical[self.site]["fn"]) is not None

    @cached_property
    def support(self) -> tuple[float, float, bool]:
        """Ends of what is observed, and whether it is whole numbers."""
        return _range(self._typical[self.site]["fn"].support)

    # ------------------------------------------------------------------ all rows

    def _mean_and_sd(self, vector: Array, row: Any) -> dict[str, Any]:
        (mean, variance), share = self._components(vector, row, self._mean_and_variance)
        centre = jnp.einsum("k,k...->...", share, mean)
        spread = jnp.einsum("k,k...->...", share, variance + (mean - centre) ** 2)
        return {"mean": centre, "sd": jnp.sqrt(spread)}

    def _mean_and_variance(self, site: Any) -> tuple[Any, Any]:
        chances = _categories(site["fn"])
        if chances is None:
            mean, variance = _moments_of(site["fn"])
            return self.program.by_row(site, mean), self.program.by_row(site, variance)
        # Of ordered categories the expected number says something; NumPyro gives none.
        chances = self.program.by_row(site, chances)
        number = jnp.arange(chances.shape[-1])
        mean = chances @ number
        return mean, chances @ number**2 - mean**2

    def _moments(
        self, vector: Array, data: Data, weight: Array, state: Array
    ) -> tuple[dict[str, Any], dict[str, Any], None]:
        return {}, jax.vmap(lambda row: self._mean_and_sd(vector, row))(data), None

    def _probabilities(
        self, vector: Array, data: Data, weight: Array, state: Array
    ) -> tuple[Any, dict[str, Any], None]:
        def one(row: Any) -> Any:
            ask = lambda site: self.program.by_row(site, _categories(site["fn"]))
            each, share = self._components(vector, row, ask)
            return jnp.einsum("k,k...->...", share, each)

        return {}, {"probability": jax.vmap(one)(data)}, None

    def _cdf(
        self, vector: Array, data: Data, weight: Array, state: Array
    ) -> tuple[dict[str, Any], dict[str, Any], None]:
        one = lambda packed: self._mixture_cdf(vector, tuple(packed[:-1]), packed[-1])
        return {}, {"cdf": jax.vmap(one)(data)}, None

    def draws(self, count: int) -> ChunkPass:
        """The pass of so many draws a row, whose data end with a key for each row."""

        def chunk(
            vector: Array, data: Data, weight: Array, state: Array
        ) -> tuple[dict[str, Any], dict[str, Any], None]:
            theta = self.model.parameters.natural(vector)

            def one(row: Any, row_key: Any) -> dict[str, Any]:
                draw = lambda k: self.program.draw(row, theta, k, self.sites)
                return jax.vmap(draw)(jax.random.split(row_key, count))

            *row, raw = data
            return {}, jax.vmap(one)(tuple(row), jax.random.wrap_key_data(raw)), None

        if count not in self._draws:
            self._draws[count] = ChunkPass(jax.jit(chunk))
        return self._draws[count]


def _categories(distribution: Any) -> Any:
    """The chances of the categories 0, 1, …; None of a distribution that is not over categories."""
    while isinstance(distribution, ExpandedDistribution):
        shape, distribution = distribution.batch_shape, distribution.base_dist
        if isinstance(distribution, CategoricalProbs | CategoricalLogits):
            return jnp.broadcast_to(distribution.probs, (*shape, distribution.probs.shape[-1]))
    return distribution.probs if isinstance(distribution, CategoricalProbs | CategoricalLogits) else None


def cdf_of(distribution: Any, value: Any) -> Any:
    """P(Y ≤ value), of the batch shape; for some discrete distributions NumPyro has none."""
    inner, _ = core(distribution)
    kind = type(inner).__name__
    chances = _categories(distribution)
    # A plate expands what does not depend on its rows; NumPyro gives what was expanded no distribution function.
    while isinstance(distribution, ExpandedDistribution):
        distribution = distribution.base_dist
    if chances is not None:
        return jnp.sum(jnp.where(jnp.arange(chances.shape[-1]) <= value, chances, 0.0), axis=-1)
    if kind.startswith("Bernoulli"):
        return jnp.where(value < 0, 0.0, jnp.where(value < 1, 1.0 - inner.mean, 1.0))
    if kind.startswith("Binomial"):
        k, n = jnp.floor(value), inner.total_count
        inside = betainc(jnp.maximum(n - k, 1e-300), jnp.maximum(k + 1.0, 1e-300), 1.0 - inner.probs)
        return jnp.where(value < 0, 0.0, jnp.where(k >= n, 1.0, inside))
    if isinstance(distribution, ZeroInflatedProbs):
        rest = cdf_of(distribution.base_dist, value)
        return jnp.where(value < 0, 0.0, distribution.gate + (1.0 - distribution.gate) * rest)
    if isinstance(distribution, TRUNCATED):
        return truncated_cdf(distribution, value)
    if distribution.support.is_discrete:
        return jnp.where(value < 0, 0.0, distribution.cdf(jnp.maximum(jnp.floor(value), 0.0)))
    return distribution.cdf(value)


def _moments_of(distribution: Any) -> tuple[Any, Any]:
    """Mean and variance, of the batch shape."""
    inner = distribution
    while isinstance(inner, ExpandedDistribution):
        inner = inner.base_dist
    if not isinstance(inner, TRUNCATED) or not isinstance(inner.base_dist, Normal):
        return distribution.mean, distribution.variance
    return tuple(jnp.broadcast_to(part, distribution.batch_shape) for part in truncated_moments(inner))  # type: ignore[return-value]


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
