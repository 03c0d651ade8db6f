"""The localized model as a NumPyro program, for those who want to sample every row's own value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from robustly._runtime.precision import double_precision
from robustly.errors import LocalizeError
from robustly.model.parameters import Theta
from robustly.model.program import hyper
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.read import Program

if TYPE_CHECKING:
    from robustly.localized.model import Localized


def as_numpyro(owner: Localized) -> Callable[..., None]:
    """A NumPyro model with the arguments of the original.

    Sites: ``"site.argument"`` for every fitted argument of a localized prior, the shared sites under their own names,
    the localized sites with one value a row, and ``"rows"``, the rows' log likelihood as a factor.
    """

    def program(*args: Any, **kwargs: Any) -> None:
        arguments = read_arguments(owner.request.model, args, kwargs)
        read = _read_program(owner, arguments)
        theta = {**_draw_shared(read), **_draw_hyperparameters(read)}
        rows = tuple(jnp.asarray(a) for a in read.row_data(arguments)[0])
        size = rows[0].shape[0]
        local = _draw_locals(read, theta, size)
        model = read.row_model

        def one(row: Any, value: Any) -> Any:
            here = None if not read.sites.local else value
            extra = jnp.zeros(()) if _is_plain(read) else read.log_prior(here, theta, row)
            if model.latents is None:
                return extra + model.log_likelihood(here, theta, row)
            each = jax.vmap(lambda z: model.log_likelihood(here, theta, row, z))(jnp.asarray(model.latents))
            return extra + jax.scipy.special.logsumexp(each)

        with numpyro.plate("rows_plate", size):
            numpyro.factor("rows", jax.vmap(one)(rows, local))

    program.__name__ = f"{getattr(owner.request.model, '__name__', 'model')}_localized"
    return program


def _read_program(owner: Localized, arguments: Arguments) -> Program:
    """The program behind the call: one that was read before, or read now, under ``jit`` with stand-ins for the data."""

    with double_precision():
        for known in (*(program for program, _, _ in owner.programs_read), *owner.stand_ins):
            if known.is_like(arguments, values=False):
                return known
    with jax.ensure_compile_time_eval(), double_precision():
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in arguments.leaves):
            return owner.program_for(arguments)[0]
        if any(program.is_whole for program, _, _ in owner.programs_read):
            raise LocalizeError(
                "the program is run on all rows at once, and takes from its data what must be known while it is traced. Sample it with "
                "the data as they are (jit_model_args=False), not as arguments of a jitted function."
            )
        leaves = tuple(
            np.ones(leaf.shape, dtype=leaf.dtype) if isinstance(leaf, jax.core.Tracer) else leaf
            for leaf in arguments.leaves
        )
        owner.stand_ins.append(Program(owner.request, replace(arguments, leaves=leaves)))
        return owner.stand_ins[-1]


def _draw_hyperparameters(read: Program) -> dict[str, Any]:
    drawn = {}
    believed = read.request.hyperprior or {}
    for site, free in read.free.items():
        for name, argument in free.items():
            prior = believed.get(site, {}).get(name)
            if prior is None:
                prior = hyper.default_hyperprior(name, argument, read.trace[site]["fn"])
            drawn[f"{site}.{name}"] = numpyro.sample(f"{site}.{name}", prior)
    return drawn


def _draw_shared(read: Program) -> dict[str, Any]:
    """Shared sites, drawn from their priors as the program states them (which may depend on one another)."""
    drawn: dict[str, Any] = {}

    for name in read.sites.shared:
        site = read.trace[name]
        if site["type"] == "param":
            drawn[name] = numpyro.param(
                name, site["value"], constraint=site["kwargs"].get("constraint", dist.constraints.real)
            )
            continue
        rest = read.site_values((*read.sites.local, *read.sites.discrete, *read.sites.filled))
        traced = read.trace_row(read.first_row, {**rest, **drawn})
        drawn[name] = numpyro.sample(name, traced[name]["fn"])
    return drawn


def _is_plain(read: Program) -> bool:
    """One localized site outside the plate: its values are independent draws of one distribution."""
    return (
        read.single
        and read.sites.local[0] in read.request.sites
        and len(jnp.shape(read.trace[read.sites.local[0]]["value"]))
        == len(read.trace[read.sites.local[0]]["fn"].event_shape)
    )


def _draw_locals(read: Program, theta: Theta, size: int) -> Any:
    if not read.sites.local:
        return jnp.zeros(size)
    if _is_plain(read):
        prior = read.prior(theta, read.first_row)
        with numpyro.plate("rows_plate", size):
            return numpyro.sample(read.sites.local[0], prior)
    values = {}
    for name in read.sites.local:
        site = read.trace[name]
        shape = np.shape(site["value"])
        flat = dist.ImproperUniform(site["fn"].support, (), event_shape=shape)
        with numpyro.plate("rows_plate", size):
            values[name] = numpyro.sample(name, flat)
    return values[read.sites.local[0]] if read.single else values
