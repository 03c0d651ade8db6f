"""Which arguments of a prior are free? Wrappers are peeled off a distribution, its own arguments swapped for fitted ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array
from numpyro.distributions import Distribution, biject_to, constraints
from numpyro.distributions.distribution import (
    ExpandedDistribution,
    Independent,
    MaskedDistribution,
    TransformedDistribution,
)
from numpyro.distributions.truncated import (
    LeftTruncatedDistribution,
    RightTruncatedDistribution,
    TwoSidedTruncatedDistribution,
)

LOCATION_SCALE = (dist.Normal, dist.StudentT, dist.Laplace, dist.Logistic, dist.Cauchy, dist.Gumbel, dist.SoftLaplace)
_TRUNCATED = (LeftTruncatedDistribution, RightTruncatedDistribution, TwoSidedTruncatedDistribution)

Rewrap = Callable[[Any], Any]


class Argument(NamedTuple):
    """A prior's argument that can be fitted: its value in the program and the constraint it obeys."""

    value: Any
    constraint: Any


def core(prior: Distribution) -> tuple[Any, Rewrap]:
    """The distribution inside ``expand``, ``to_event``, ``mask``, truncation and transforms, and how to wrap another."""
    if isinstance(prior, ExpandedDistribution):
        inner, rewrap = core(prior.base_dist)
        return inner, lambda new: rewrap(new).expand(prior.batch_shape)
    if isinstance(prior, Independent):
        inner, rewrap = core(prior.base_dist)
        return inner, lambda new: rewrap(new).to_event(prior.reinterpreted_batch_ndims)
    if isinstance(prior, MaskedDistribution):
        inner, rewrap = core(prior.base_dist)
        return inner, lambda new: rewrap(new).mask(prior._mask)
    if isinstance(prior, _TRUNCATED):
        inner, rewrap = core(prior.base_dist)
        ends = {end: getattr(prior, end) for end in ("low", "high") if end in type(prior).arg_constraints}
        return inner, lambda new: type(prior)(rewrap(new), **ends, validate_args=False)
    if type(prior) is TransformedDistribution:
        inner, rewrap = core(prior.base_dist)
        return inner, lambda new: TransformedDistribution(rewrap(new), prior.transforms, validate_args=False)
    return prior, lambda new: new


def plain(prior: Distribution) -> Any:
    """The distribution inside ``expand``, ``to_event`` and ``mask``; None if it is truncated or transformed as well.

    What is truncated or transformed has another support and density than the distribution inside.
    """
    inner, _ = core(prior)
    while isinstance(prior, ExpandedDistribution | Independent | MaskedDistribution):
        prior = prior.base_dist
    return inner if prior is inner else None


def is_masked(prior: Distribution) -> bool:
    """Whether a mask may take part of this distribution out."""
    while isinstance(prior, ExpandedDistribution | Independent):
        prior = prior.base_dist
    return isinstance(prior, MaskedDistribution)


def _constructor(prior: Distribution) -> list[str]:
    taken = inspect.signature(type(prior).__init__).parameters
    return [name for name in taken if name not in ("self", "validate_args")]


def arguments(prior: Distribution) -> tuple[dict[str, Argument], dict[str, str]]:
    """The arguments that can be fitted, and why the others cannot."""
    inner, _ = core(prior)
    taken = _constructor(inner)
    free: dict[str, Argument] = {}
    held: dict[str, str] = {}
    for name, value in inner.get_args().items():
        limit = type(inner).arg_constraints[name]
        if name not in taken or value is None:
            continue
        if name in ("covariance_matrix", "precision_matrix") and "scale_tril" in taken:
            continue  # scale_tril says the same and is always there
        if getattr(limit, "is_discrete", False):
            held[name] = "it is a whole number"
        elif _moves_support(inner, name, value):
            held[name] = "the support depends on it"
        elif constraints.is_dependent(limit):
            held[name] = "its constraint depends on another argument"
        else:
            free[name] = Argument(value if isinstance(value, jax.core.Tracer) else np.asarray(value), limit)
    return free, held


def _moves_support(inner: Any, name: str, value: Any) -> bool:
    if isinstance(value, jax.core.Tracer):
        return False
    before = jax.tree.leaves(inner.support)
    if not before:
        return False
    after = jax.tree.leaves(with_arguments(inner, {name: jnp.asarray(value, dtype=float) * 1.01 + 0.01}).support)
    return any(not np.allclose(np.asarray(a, dtype=float), np.asarray(b, dtype=float)) for a, b in zip(before, after))


def with_arguments(prior: Distribution, new: Mapping[str, Any]) -> Any:
    """The same distribution with some arguments of its core replaced."""
    if not new:
        return prior
    inner, rewrap = core(prior)
    taken = _constructor(inner)
    given = {name: value for name, value in inner.get_args().items() if name in taken}
    for name in taken:
        if name not in given and name in vars(inner):
            given[name] = vars(inner)[name]
    if "scale_tril" in given:
        given.pop("covariance_matrix", None)
        given.pop("precision_matrix", None)
    given.update(new)
    return rewrap(type(inner)(**given, validate_args=False))


class Placed(NamedTuple):
    """A local value at a free coordinate `u`."""

    value: Any
    log_volume: Any
    log_density: Any = None
    """Of `u` itself, where that is known without location and scale."""


def place(
    prior: Distribution,
    u: Array,
    shape: tuple[int, ...],
    whole: tuple[int, ...] | None = None,
    total: Callable[[Any], Any] = jnp.sum,
) -> Placed:
    """The value of a site at free numbers `u`: standard steps from the middle of a location-scale prior, else its support's.

    A site with a copy for every row has the shape `whole` and takes the same value, of shape `shape`, in all of them; `total`
    then sums by row.
    """
    whole = shape if whole is None else whole
    inner, masked = plain(prior), is_masked(prior)
    # A truncated or transformed prior has another support than the whole line.
    if inner is not None and u.size == np.prod(shape, dtype=int):
        u = u.reshape(shape)
        if type(inner) in LOCATION_SCALE:
            volume = total(jnp.broadcast_to(jnp.log(inner.scale), whole))
            law = type(inner)(**{**inner.get_args(), "loc": 0.0, "scale": 1.0}, validate_args=False)
            density = None if masked else total(jnp.broadcast_to(law.log_prob(u), whole))
            return Placed(jnp.broadcast_to(inner.loc + inner.scale * u, whole), volume, density)
        if type(inner) is dist.MultivariateNormal and jnp.ndim(inner.scale_tril) == 2 and whole == shape:
            volume = jnp.sum(jnp.log(jnp.diagonal(inner.scale_tril))) * (np.prod(shape) / inner.loc.shape[-1])
            value = inner.loc + (inner.scale_tril @ u[..., None])[..., 0]
            return Placed(value, volume, None if masked else jnp.sum(dist.Normal().log_prob(u)))
    bijection = biject_to(prior.support)
    free = u.reshape(bijection.inverse_shape(shape))
    value = bijection(free)
    # The same numbers in every row have the same volume in every row.
    return Placed(jnp.broadcast_to(value, whole), jnp.sum(bijection.log_abs_det_jacobian(free, value)))


def default_hyperprior(name: str, argument: Argument, prior: Distribution) -> Any:
    """A weak, proper prior of an argument around what the program wrote; used only where a full posterior is asked for."""
    value = jnp.asarray(argument.value, dtype=float)
    if argument.constraint is constraints.real:
        inner, _ = core(prior)
        unit = jnp.max(jnp.asarray(getattr(inner, "scale", 1.0), dtype=float))
        return dist.Normal(value, 10.0 * jnp.maximum(unit, 1.0)).to_event(value.ndim)
    free = biject_to(argument.constraint)
    spread = dist.Normal(free.inv(value), 2.0)
    return TransformedDistribution(spread.to_event(jnp.ndim(free.inv(value))), free)
