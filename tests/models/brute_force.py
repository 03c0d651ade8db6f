"""What is a localized model's evidence, with nothing of the package? Its integral on a fine grid, and a search of its own.

The program is run as NumPyro runs it, with one value of the localized site for all rows, and read off are the entries of its
observed sites' log densities. Row i's evidence is the integral of ``exp(entry i + log prior)`` over the value; the trapezoid
rule on a long fine grid of the unconstrained value does it (several thousand points, refined where the mass is). Where a fit says
that rows do not differ, the program is run with one value for all of them.

NumPyro's densities are taken as they are but for one thing: JAX's ``betaln`` keeps six digits, so it is written out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from corpus import Case
from jax.scipy.special import gammaln
from numpyro import handlers
from numpyro.distributions import biject_to
from scipy import optimize

LINE = 3001
SQUARE = 201
# A slope below which a search is at a top: scipy says "precision loss" of most that end there.
ENDED = 1e-4
ROUNDS = 3
# CPU seconds for the searches of one model.
LONGEST = 60.0
# How far (on log scales) a prior's arguments are taken from what is written where rows do not differ: the grid is fine enough for
# spreads of a hundredth.
INSIDE = 4.0


class BruteForce:
    """The summed evidence and the prior of the shared sites, as a function of natural parameters by name."""

    def __init__(self, case: Case, rows: int, common: bool = False) -> None:
        self.case, self.rows = case, rows
        localized = [case.site] if isinstance(case.site, str) else list(case.site)
        self.sites, self.common = ([], localized) if common else (localized, [])
        model = case.model
        self.model = model.fn if isinstance(model, handlers.reparam) else model
        self.value = jax.jit(self._value)
        self.with_slope = jax.jit(jax.value_and_grad(self._of_vector, has_aux=True))

    def trace(self, values: dict[str, Any]) -> Any:
        with numpyro.validation_enabled(False), jax.ensure_compile_time_eval():
            everything = _AllRows(handlers.substitute(self.model, values))
            return handlers.trace(handlers.seed(everything, jax.random.key(0))).get_trace(*self.case.args)

    def priors(self, theta: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        """The priors of the localized sites with their fitted arguments, and the log prior of everything shared."""
        shared = {name: value for name, value in theta.items() if "." not in name}
        trace = self.trace(shared)
        priors, total = {}, jnp.zeros(())
        for name, site in trace.items():
            if name in self.sites:
                own = {key.rpartition(".")[2]: v for key, v in theta.items() if key.rpartition(".")[0] == name}
                priors[name] = _with(site["fn"], {**own, **self.case.options.get("fixed", {})})
            elif site["type"] == "sample" and name not in self.common and (name in shared or _is_penalty(site)):
                total += jnp.sum(site["fn"].log_prob(site["value"]))
        return priors, total

    def by_row(self, theta: dict[str, Any], local: dict[str, Any]) -> Any:
        """Entry by entry, the log densities of what is observed and of discrete values summed over."""
        shared = {name: value for name, value in theta.items() if "." not in name}
        first = self.trace({**shared, **local})
        kinds = [
            name
            for name, site in first.items()
            if site["type"] == "sample" and not site["is_observed"] and site["fn"].is_discrete
        ]

        def entries(more: dict[str, Any]) -> Any:
            trace = self.trace({**shared, **local, **more})
            total = jnp.zeros(self.rows)
            for name, site in trace.items():
                counted = site["type"] == "sample" and (site["is_observed"] or name in kinds)
                if counted and not _is_penalty(site):
                    fn = site["fn"].base_dist if _is_event(site, self.rows) else site["fn"]
                    logs = fn.log_prob(site["value"])
                    total += jnp.sum(logs.reshape(self.rows, -1), axis=1)
            return total

        if not kinds:
            return entries({})
        (name,) = kinds
        values = np.arange(2)
        assert type(first[name]["fn"]).__name__.startswith(("Bernoulli", "Expanded"))
        return jax.scipy.special.logsumexp(
            jnp.stack([entries({name: jnp.full(self.rows, value)}) for value in values]), axis=0
        )

    def _value(self, theta: dict[str, Any]) -> tuple[Any, Any]:
        """Each row's evidence, and the log prior of what is shared."""
        with mock.patch.object(dist.conjugate, "betaln", lambda a, b: gammaln(a) + gammaln(b) - gammaln(a + b)):
            return self._integrated(theta)

    def _integrated(self, theta: dict[str, Any]) -> tuple[Any, Any]:
        priors, log_shared = self.priors(theta)
        if not priors:
            return self.by_row(theta, {}), log_shared
        maps = {name: biject_to(prior.support) for name, prior in priors.items()}
        shapes = {name: prior.event_shape for name, prior in priors.items()}
        in_rows = {name for name, prior in priors.items() if prior.batch_shape == (self.rows,)}
        sizes = {n: int(np.prod(maps[n].inverse_shape(shapes[n]), dtype=int)) for n in priors}
        dim = sum(sizes.values())

        def joint(u: Any) -> Any:
            local, total, begin = {}, jnp.zeros(self.rows), 0
            for name, prior in priors.items():
                free = u[begin : begin + sizes[name]].reshape(maps[name].inverse_shape(shapes[name]))
                begin += sizes[name]
                value = maps[name](free)
                volume = jnp.sum(maps[name].log_abs_det_jacobian(free, value))
                local[name] = jnp.full(self.rows, value) if name in in_rows else value
                total += prior.log_prob(local[name]) + volume
            return total + self.by_row(theta, local)

        count = LINE if dim == 1 else SQUARE
        steps = jnp.linspace(0.0, 1.0, count)
        if dim == 1:
            return self._line(joint, steps), log_shared
        grid = jnp.stack(jnp.meshgrid(*[-12.0 + 24.0 * steps] * dim, indexing="ij"), -1).reshape(-1, dim)
        each = jax.lax.map(joint, grid, batch_size=4096)
        return jax.scipy.special.logsumexp(each, axis=0) + dim * jnp.log(24.0 / (count - 1)), log_shared

    def _line(self, joint: Any, steps: Any) -> Any:
        """A first look finds where each row's mass is, a second one integrates there."""
        at_rows = lambda u: jnp.diagonal(jax.vmap(lambda x: joint(x[None]))(u))
        coarse = jnp.linspace(-80.0, 80.0, 1601)
        seen = jax.lax.stop_gradient(jax.vmap(lambda u: joint(u[None]))(coarse))
        seen = jnp.where(jnp.isfinite(seen), seen, -jnp.inf)
        near = seen > jnp.max(seen, axis=0) - 60.0
        first = coarse[jnp.argmax(near, axis=0)] - 0.2
        last = coarse[len(coarse) - 1 - jnp.argmax(near[::-1], axis=0)] + 0.2

        def point(s: Any) -> Any:
            # Far out NumPyro's truncated laws divide by a chance that was rounded to 0.
            found = at_rows(first + (last - first) * s)
            return jnp.where(jnp.isfinite(found), found, -jnp.inf)

        each = jax.lax.map(point, steps, batch_size=256)
        return jax.scipy.special.logsumexp(each, axis=0) + jnp.log((last - first) / (len(steps) - 1))

    # ------------------------------------------------------------------ an independent search

    def maximum(self, start: dict[str, Any], limits: dict[str, Any]) -> tuple[float, dict[str, np.ndarray]]:
        """The highest objective found by scipy from a start that is off by some, and where it is."""
        begin = self._vector(start, limits)
        rng = np.random.default_rng(0)
        minus = self._minus()
        found = optimize.minimize(minus, begin + 0.1 * rng.normal(size=begin.shape), jac=True, method="BFGS")
        for _ in range(ROUNDS):
            if np.max(np.abs(found.jac)) <= ENDED:
                break
            # Where the objective has corners, slopes lead astray; a simplex does not ask for any.
            options = {"maxiter": 200 * len(begin), "xatol": 1e-6, "fatol": 1e-9}
            simplex = optimize.minimize(lambda v: minus(v)[0], found.x, method="Nelder-Mead", options=options)
            again = optimize.minimize(minus, simplex.x, jac=True, method="BFGS")
            if again.fun > found.fun - 1e-9:
                break
            found = again
        return -float(found.fun), {n: np.asarray(v) for n, v in self._natural(jnp.asarray(found.x)).items()}

    def highest_inside(self, start: dict[str, Any], freed: Mapping[str, Any], limits: dict[str, Any]) -> float:
        """The highest objective where rows differ, from the priors as written: what a fit without differences must not be below."""
        shared = {name: value for name, value in start.items() if name not in self.sites}
        trace = self.trace(shared)
        begin, bounds = dict(shared), {name: limits[name] for name in shared}
        for site in self.sites:
            prior = trace[site]["fn"]
            while isinstance(prior, dist.ExpandedDistribution | dist.Independent):
                prior = prior.base_dist
            for name in freed[site]:
                begin[f"{site}.{name}"] = np.asarray(getattr(prior, name), dtype=float)
                bounds[f"{site}.{name}"] = prior.arg_constraints[name]
        at = self._vector(begin, bounds)
        own = np.concatenate([np.full(int(np.prod(self.shapes[n], dtype=int)), n not in shared) for n in begin])
        box = [(v - INSIDE, v + INSIDE) if mine else (None, None) for v, mine in zip(at, own, strict=True)]
        return -float(optimize.minimize(self._minus(), at, jac=True, method="L-BFGS-B", bounds=box).fun)

    def _vector(self, start: dict[str, Any], limits: dict[str, Any]) -> np.ndarray:
        self.maps = {name: biject_to(limits[name]) for name in start}
        free = {name: np.asarray(self.maps[name].inv(jnp.asarray(value, dtype=float))) for name, value in start.items()}
        self.shapes = {name: value.shape for name, value in free.items()}
        return np.concatenate([value.reshape(-1) for value in free.values()])

    def _minus(self) -> Any:
        began = time.process_time()

        def minus(v: np.ndarray) -> tuple[float, np.ndarray]:
            if time.process_time() > began + LONGEST:
                raise TimeoutError(f"a search took more than {LONGEST:.0f} s")
            (value, _), slope = self.with_slope(jnp.asarray(v))
            return (-float(value), -np.asarray(slope)) if np.isfinite(value) else (1e10, np.zeros_like(v))

        return minus

    def _natural(self, v: Any) -> dict[str, Any]:
        theta, begin = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape, dtype=int))
            theta[name] = self.maps[name](v[begin : begin + size].reshape(shape))
            begin += size
        return theta

    def _of_vector(self, v: Any) -> tuple[Any, Any]:
        evidence, log_shared = self._value(self._natural(v))
        return jnp.sum(evidence) + log_shared, evidence


class _AllRows(numpyro.primitives.Messenger):
    """Plates that subsample give all their rows."""

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate" and msg["args"][1] is not None:
            msg["args"], msg["value"] = (msg["args"][0], None), jnp.arange(msg["args"][0])


def _with(prior: Any, arguments: dict[str, Any]) -> Any:
    """The distribution inside ``expand`` and ``to_event`` with other arguments."""
    if isinstance(prior, dist.ExpandedDistribution):
        return _with(prior.base_dist, arguments).expand(prior.batch_shape)
    if isinstance(prior, dist.Independent):
        return _with(prior.base_dist, arguments).to_event(prior.reinterpreted_batch_ndims)
    return type(prior)(**{**{n: getattr(prior, n) for n in prior.arg_constraints}, **arguments}) if arguments else prior


def _is_penalty(site: Any) -> bool:
    return isinstance(site["fn"], dist.Unit) and site["fn"].batch_shape == ()


def _is_event(site: Any, rows: int) -> bool:
    return isinstance(site["fn"], dist.Independent) and site["fn"].event_shape == (rows,)
