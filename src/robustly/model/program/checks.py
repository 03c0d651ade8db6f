"""Does a program do what localizing it supposes? Found by trial: it is run, and its densities are compared."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import biject_to, constraints

from robustly._runtime.compiled import one_thread
from robustly.errors import DataError, LocalizeError, SupportError, names
from robustly.model.parameters import Theta
from robustly.model.program import hyper
from robustly.model.program.arguments import Arguments
from robustly.model.program.sites import samples, support_of
from robustly.model.program.trace import ROWS, Site, Trace, check_plate, inside, run_program, site_log_prob
from robustly.rows.arrays import bucket_of

if TYPE_CHECKING:
    from robustly.model.program.read import Program

CHECKED_ROWS = 48
# Rows whose observations are looked at together: a million at once would need a copy of the data for every step.
LOOKED_AT = 65_536
# Supports that follow from no other value.
PLAIN = (
    constraints.real,
    constraints.positive,
    constraints.nonnegative,
    constraints.unit_interval,
    constraints.boolean,
    constraints.positive_integer,
    constraints.nonnegative_integer,
)


def check_traceable(program: Program) -> None:
    """JAX must be able to follow the program with values it does not know."""
    model = program.row_model

    def joint(vector: Array, row: Any) -> Any:
        z = None if program.latents is None else jnp.asarray(program.latents)[0]
        return model.log_joint(jnp.zeros(program.size), model.parameters.natural(vector), row, z)

    jax.eval_shape(jax.grad(joint), model.parameters.start, program.first_row)


def check_independent(program: Program) -> None:
    """The full density must be the sum of the rows' densities, tried on a few rows at moderate values."""
    arguments = program.arguments
    n = next(leaf.shape[0] for leaf, row in zip(arguments.leaves, program.is_row) if row)
    index = np.unique(np.linspace(0, n - 1, min(n, CHECKED_ROWS)).astype(int))
    few = [np.asarray(leaf)[index] if row else leaf for leaf, row in zip(arguments.leaves, program.is_row)]
    rng = np.random.default_rng(0)
    bijections, free = {}, {}
    for name in (*program.sites.shared, *program.request.sites):
        site = program.trace[name]
        if inside(site, program.plate):
            continue
        bijections[name] = biject_to(support_of(site))
        shape = bijections[name].inverse_shape(jnp.shape(site["value"]))
        # Wide priors propose values at which densities overflow; moderate ones are as good for a comparison.
        free[name] = 0.1 * rng.normal(size=shape)
    rows = tuple(np.asarray(leaf) for leaf, row in zip(few, program.is_row) if row)
    values = lambda free: {name: bijections[name](jnp.asarray(value)) for name, value in free.items()}
    # One compilation of the whole comparison is quicker than one for each of its operations.
    both = one_thread(lambda free, rows: _both_ways(program, values(free), rows))(free, rows)
    totals = {name: (float(a), float(b)) for name, (a, b) in both.items()}
    for name, (whole, parts) in totals.items():
        if not (
            abs(whole - parts) <= 1e-6 * (1.0 + abs(whole)) or whole == parts or (np.isnan(whole) and np.isnan(parts))
        ):
            raise LocalizeError(
                f'rows are not independent at site "{name}": its log density on {len(index)} rows together is {whole:.6g}, '
                f"but {parts:.6g} when the rows are taken one at a time. The model mixes rows (centring x, y.mean(), lags, "
                "cumulative sums), or an argument is not row data; compute such things before the model, or state rows=."
            )
    if program.sites.filled:
        _check_filled(program, rows, values(free))


def _both_ways(program: Program, values: Mapping[str, Any], rows: Sequence[Any]) -> dict[str, tuple[Any, Any]]:
    """Log densities of the sites in the plate, with all rows in one call and with one call a row."""
    count = rows[0].shape[0]
    taken = iter(rows)
    args, kwargs = program.arguments.call(
        [
            next(taken) if row else count if counts else leaf
            for leaf, row, counts in zip(program.arguments.leaves, program.is_row, program.counts_rows)
        ]
    )
    run = lambda more: run_program(
        program.request.model, args, kwargs, values={**values, **more}, key=jax.random.key(1), along=program.along
    )
    together = run({})
    check_plate(together[program.plate], count)
    inner = [name for name in samples(together) if inside(together[name], program.plate)]
    # Values that are the same in every row would not show that a row sees those of others.
    rng = np.random.default_rng(1)
    differing = {}
    for name in inner:
        site = together[name]
        if not site["is_observed"] and not site["fn"].is_discrete:
            bijection = biject_to(site["fn"].support)
            shape = bijection.inverse_shape(jnp.shape(site["value"]))
            differing[name] = bijection(jnp.asarray(0.1 * rng.normal(size=shape)))
    together = run(differing)
    own = {name: together[name]["value"] for name in inner if not together[name]["is_observed"]}
    axis = {name: _row_axis(together[name], program.plate) for name in own}

    def one(i: Any, row: Any) -> dict[str, Any]:
        mine = {name: jax.lax.dynamic_slice_in_dim(value, i, 1, axis=axis[name]) for name, value in own.items()}
        trace = program.trace_row(row, {**values, **mine})
        return {name: site_log_prob(trace[name]) for name in inner}

    apart = jax.vmap(one)(jnp.arange(count), tuple(rows))
    return {name: (site_log_prob(together[name]), jnp.sum(apart[name])) for name in inner}


def _check_filled(program: Program, rows: Any, values: Mapping[str, Any]) -> None:
    first = tuple(a[0] for a in rows)
    other = {name: program.trace[name]["value"] + 1.0 for name in program.sites.filled}
    rest = {**values, **program.site_values((*program.sites.local, *program.sites.discrete))}
    before = program.trace_row(first, {**rest, **program.site_values(program.sites.filled)})
    after = program.trace_row(first, {**rest, **other})
    for name in program.sites.observed:
        if not np.isclose(float(site_log_prob(before[name])), float(site_log_prob(after[name])), equal_nan=True):
            raise LocalizeError(
                f'site "{name}" depends on the missing values of {names(program.sites.filled)}. '
                "Partly observed sites may not feed other sites; drop their masked rows instead."
            )


def plain_supports(program: Program, trace: Trace) -> dict[int, Any] | None:
    """Supports of the observed sites by the place of the argument each observes as it came; None where one does not."""
    found = {}
    for name in program.sites.observed:
        site = trace[name]
        support = getattr(site["fn"], "support", None)
        places = [i for i, leaf in enumerate(program.arguments.leaves) if leaf is site["value"]]
        if not places or not any(support is plain for plain in PLAIN) or getattr(site["fn"], "_mask", True) is not True:
            return None
        found[places[0]] = support
    return found


def check_support(program: Program, arguments: Arguments) -> None:
    """Every observed value must be possible; name the first row that is not."""
    if program.is_whole:
        _refuse_impossible(program, program.full_trace(arguments, program.typical), 0)
        return
    n = next(leaf.shape[0] for leaf, row in zip(arguments.leaves, program.is_row) if row)
    # Calls like the one that was read need no reading again, unless there is something to tell.
    plain = program.plain_supports if n == program.rows_read or _has_plate_of(program, arguments, n) else None
    if plain is not None and all(np.all(support(np.asarray(arguments.leaves[i]))) for i, support in plain.items()):
        return
    if n <= LOOKED_AT and _is_possible(program, arguments, n):
        return
    for start in range(0, n, LOOKED_AT):
        count = min(LOOKED_AT, n - start)
        some = [
            leaf[start : start + count] if row else count if counts else leaf
            for leaf, row, counts in zip(arguments.leaves, program.is_row, program.counts_rows)
        ]
        trace = program.full_trace(replace(arguments, leaves=tuple(some)), program.typical)
        check_plate(trace[program.plate], count)
        _refuse_impossible(program, trace, start)


def _has_plate_of(program: Program, arguments: Arguments, n: int) -> bool:
    """Whether the plate has as many rows as the arguments, from shapes alone: nothing is computed, so nothing compiled."""
    if program.plain_supports is None:
        return False
    rows = tuple(leaf for leaf, row in zip(arguments.leaves, program.is_row) if row)

    def sizes(given: Any) -> Any:
        taken = iter(given)
        leaves = [next(taken) if row else leaf for leaf, row in zip(arguments.leaves, program.is_row)]
        check_plate(program.full_trace(replace(arguments, leaves=tuple(leaves)), program.typical)[program.plate], n)
        return jnp.zeros(())

    try:
        jax.eval_shape(sizes, rows)
    except Exception:  # whatever it is, it is told of the rows themselves
        return False
    return True


def _is_possible(program: Program, arguments: Arguments, n: int) -> bool:
    """Whether all rows can be told to be possible at a size that was compiled before; if not, they are looked at as they are."""
    size = bucket_of(n, LOOKED_AT)
    try:
        trace = program.full_trace(program.padded(arguments, size), program.typical)
        check_plate(trace[program.plate], size)
        _refuse_impossible(program, trace, 0)
    except Exception:  # whatever it is, it is told of the rows themselves
        return False
    return True


def _refuse_impossible(program: Program, trace: Trace, start: int) -> None:
    for name in program.sites.observed:
        site = trace[name]
        fn, value = site["fn"], site["value"]
        mask = getattr(fn, "_mask", True)
        try:
            possible = np.asarray(jnp.logical_or(fn.support(value), jnp.logical_not(mask)))
        except (TypeError, ValueError) as error:
            raise LocalizeError(
                f'the values of "{name}", of shape {np.shape(value)}, do not go with its law, of shape {fn.shape()} ({error}). Give as many '
                "rows of every argument."
            ) from None
        if possible.all():
            continue
        batch = np.broadcast_to(possible, fn.batch_shape) if fn.batch_shape else possible
        place = tuple(int(i) for i in np.argwhere(~batch)[0])
        row = start + (place[_row_axis(site, program.plate)] if place else 0)
        whole = jnp.broadcast_shapes(jnp.shape(value), (*fn.batch_shape, *fn.event_shape))
        seen = np.asarray(jnp.broadcast_to(value, whole))[place]
        kind = type(hyper.core(fn)[0]).__name__.removesuffix("Probs").removesuffix("Logits")
        raise SupportError(
            f"{name} holds {seen} in row {row}, which a {kind} cannot give ({fn.support}). "
            "Correct or drop that row, or choose another distribution."
        )


def refuse_other_lengths(trace: Trace, plate: str, size: int) -> None:
    """Observations must be as many as the plate's rows."""
    for name, site in samples(trace).items():
        if not site["is_observed"] or not inside(site, plate) or plate == ROWS:
            continue
        values = jnp.shape(site["value"])[: jnp.ndim(site["value"]) - len(site["fn"].event_shape)]
        axis = _row_axis(site, plate) - len(site["fn"].batch_shape)
        if len(values) >= -axis and values[axis] not in (1, size):
            raise DataError(f'observed site "{name}" has {values[axis]} rows, but plate "{plate}" has {size}.')


def _row_axis(site: Site, plate: str) -> int:
    """Which axis of a site's value counts the plate's rows."""
    if plate == ROWS:
        return 0
    frame = next(frame for frame in site["cond_indep_stack"] if frame.name == plate)
    return len(site["fn"].batch_shape) + frame.dim


# Small values of a scale at which powers of it are read off.
_SMALL = (1e-7, 1e-9)


def check_bounded(program: Program) -> None:
    r"""A row's integrated density must not be infinite where its residual is zero.

    A scale whose prior keeps a positive density at 0 (half-normal, exponential) gives :math:`\int s^{-1} e^{-r^2/2s^2} p(s) ds`,
    which grows like :math:`-\log |r|`: whatever value of the shared sites meets an observation exactly is infinitely likely, so
    there is no best one. Powers are read off: the prior goes like :math:`s^{k-1}` and the density at its centre like
    :math:`s^{-c}`; the integral is finite where k > c.
    """
    if program.size != 1 or len(program.sites.observed) != 1 or not program.sites.shared or program.latents is not None:
        return
    name, seen = program.sites.local[0], program.sites.observed[0]
    if program.trace[name]["fn"].support not in (constraints.positive, constraints.nonnegative):
        return
    model = program.row_model
    shape = jnp.shape(program.trace[name]["value"])

    def logs(theta: Theta, value: Any) -> tuple[Any, Any]:
        def at_centre(run: Any, local: Any, theta: Theta) -> Any:
            site = run(program.all_values(local, theta, None), theta)[seen]
            middle = getattr(site["fn"], "loc", None)
            middle = site["fn"].mean if middle is None else middle
            return program.log_prob({**site, "value": jnp.broadcast_to(middle, jnp.shape(site["value"]))})

        local = jnp.full(shape, value)
        row = tuple(jnp.asarray(a) for a in program.first_row)
        return program.rowwise(at_centre, row, local, theta), program.log_prior(local, theta, row)

    def powers(vector: Array) -> tuple[Any, Any]:
        theta = model.parameters.natural(vector)
        (near, p_near), (far, p_far) = (logs(theta, small) for small in _SMALL)
        step = jnp.log(_SMALL[0] / _SMALL[1])
        return (far - near) / step, 1.0 + (p_near - p_far) / step

    site = program.trace[seen]
    entries = np.size(site["value"]) // (1 if not program.is_whole else max(1, np.shape(site["value"])[0]))
    if entries != 1 or site["fn"].is_discrete:
        return
    start, both = model.parameters.start, one_thread(powers)
    try:
        found = [tuple(float(a) for a in both(start + shift)) for shift in (0.0, 0.7)]
    except (NotImplementedError, AttributeError, TypeError, ValueError):
        return
    if all(np.isfinite(c) and np.isfinite(k) and c > 0.5 and k <= c + 1e-3 for c, k in found):
        kind = type(hyper.core(program.trace[name]["fn"])[0]).__name__
        raise LocalizeError(
            f'site "{name}" ({kind}) keeps a positive density at 0, so a row whose residual is 0 would be infinitely likely: '
            "shared values that meet one observation exactly would win, whatever the others say. Give it a prior that "
            "vanishes at 0, such as LogNormal or InverseGamma for a standard deviation, or Gamma for a precision."
        )


def user_line(error: BaseException, model: Callable[..., Any]) -> str:
    """`` (line 12: if x > 0:)``: where in the user's own code it happened."""
    code = getattr(model, "__code__", None)
    if code is None:
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == code.co_filename and frame.lineno and frame.lineno >= code.co_firstlineno:
            return f" (line {frame.lineno}: {frame.line})" if frame.line else f" (line {frame.lineno})"
    return ""
