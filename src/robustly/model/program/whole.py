"""How is a program read that cannot be called with one row? It is run on all of them, and a row's part is followed back.

Sizes taken from data (``len(np.unique(group))``), data read from outside the model, means and masks over all rows, values
filled in: all this needs the data as they are. The program is then run once with all of them, with one value of each
localized site, and the entry of row i in its log density is row i's density at that value. Giving each row its own value of
the site turns the sum of these entries, each at the same value, into the sum of these entries, each at its own.

Latent sites that have a copy for every row already must enter their own row only, which is tried with values that differ.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution, biject_to

from robustly.errors import LocalizeError, names
from robustly.model.parameters import Theta
from robustly.model.program import hyper
from robustly.model.program.arguments import Arguments
from robustly.model.program.checks import check_traceable, plain_supports, user_line
from robustly.model.program.dependences import only_first_reached, traced_leaves
from robustly.model.program.lifted import Lifted, Reading, has_same_priors, lift
from robustly.model.program.read import Program
from robustly.model.program.request import Ask, Request
from robustly.model.program.row_axis import RowAxis
from robustly.model.program.sites import choose_plate, latent_grid, local_size, observed_sites, samples, sort_sites
from robustly.model.program.trace import (
    ROWS,
    Site,
    Trace,
    fixed_key,
    inside,
    run_program,
    site_log_prob,
    stand_in_rows,
)
from robustly.model.row import RowModel

# Latent sites of more entries than these are not tried for being one a row.
MOST_TRIED = 2048


class WholeProgram(Program):
    """A program that is run on all its rows at once. What passes see of a row is its number, and what it needs of the data."""

    is_whole = True
    reason = ""
    """Why it was not called with one row."""
    is_finite = True
    """Whether all rows have a finite density at moderate values."""
    lifted: Lifted | None = None
    """What rows bring along of the data, so that other data need nothing compiled; None where they stay in the program."""
    _noted: dict[Hashable, Reading] | None = None

    def __init__(self, request: Request, arguments: Arguments) -> None:
        self.request, self.arguments = request, arguments
        full = self.full_trace(arguments)
        self.plate = choose_plate(full, [], request.plate)
        if self.plate == ROWS:
            self.along = tuple(observed_sites(full))
            stand_in_rows(full, self.along)
        self.rows_read = self.row_count = int(full[self.plate]["args"][0])
        self.is_row = tuple(np.shape(leaf)[:1] == (self.row_count,) for leaf in arguments.leaves)
        self.counts_rows = (False,) * len(arguments.leaves)
        self.first_row = (np.asarray(0),)
        self._refuse_joint(full)
        self.along += self._own_rows(full)
        self.trace = self._one_row(full)
        self.sites = sort_sites(self.trace, request.sites, self.plate)
        self.plain_supports = plain_supports(self, full)
        self.size = local_size(self.trace, self.sites)
        self.latents = latent_grid(self.trace, self.sites)
        try:
            self._read_hyperparameters()
            check_traceable(self)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
            raise LocalizeError(
                f"the model branches on, or converts, a sampled value{user_line(error, request.model)}. "
                "Use jnp.where or jax.lax.cond instead of Python's if, and jnp instead of np on sampled values."
            ) from error
        self._check_rows()
        self.lifted = lift(
            self.readings(), lambda data: self.on(data).readings(), arguments, self.is_row, self.row_count
        )
        self._seen = [] if self.lifted is None else [(arguments, self.lifted.columns)]

    # ------------------------------------------------------------------ reading

    def _refuse_joint(self, full: Trace) -> None:
        """Every observed site must have a density by row."""
        for name, site in observed_sites(full).items():
            if inside(site, self.plate):
                self._axis.log_probs(name, site)

    def _own_rows(self, full: Trace) -> tuple[str, ...]:
        """Without a plate, latent sites as long as the rows, of which each row sees its own entry only."""
        if self.plate != ROWS or not 1 < self.row_count <= MOST_TRIED:
            return ()
        found = []
        for name, site in samples(full).items():
            is_long = jnp.shape(site["value"])[:1] == (self.row_count,) and not site["is_observed"]
            if is_long and (site["fn"].is_discrete or self._is_diagonal(name, full)):
                found.append(name)
        return tuple(found)

    def _is_diagonal(self, name: str, full: Trace) -> bool:
        value = jnp.asarray(full[name]["value"], dtype=float)
        observed = list(observed_sites(full))

        def densities(value: Any) -> Any:
            args, kwargs = self.arguments.call(self.arguments.leaves)
            trace = run_program(
                self.request.model, args, kwargs, values={name: value}, key=fixed_key(), along=self.along
            )
            return sum(self._axis.log_probs(other, trace[other]) for other in observed)

        slopes = np.asarray(jax.jacfwd(densities)(value + 0.1)).reshape(self.row_count, self.row_count, -1)
        return bool(np.all(slopes[~np.eye(self.row_count, dtype=bool)] == 0.0))

    def _one_row(self, full: Trace) -> Trace:
        """The trace as one row would give it: the first entry of what has one for every row."""
        found = dict(full)
        for name, site in samples(full).items():
            if name in self.along and not inside(site, self.plate):
                stand_in_rows(found, (name,))
            if inside(found[name], self.plate):
                value, axis = jnp.asarray(site["value"]), self._axis.of_value(found[name])
                if 0 <= axis < value.ndim and value.shape[axis] == self.row_count:
                    found[name] = {**found[name], "value": jax.lax.slice_in_dim(value, 0, 1, axis=axis)}
        return found

    @property
    def _axis(self) -> RowAxis:
        return RowAxis(self.plate, self.row_count)

    def _whole_shape(self, name: str) -> tuple[int, ...]:
        shape, site = list(jnp.shape(self.trace[name]["value"])), self.trace[name]
        if inside(site, self.plate):
            shape[self._axis.of_value(site)] = self.row_count
        return tuple(shape)

    def _by_row_arguments(self, site: str) -> set[str]:
        if not inside(self.trace[site], self.plate):
            return set()
        given = hyper.core(self.trace[site]["fn"])[0].get_args()
        return {name for name, value in given.items() if self.row_count in jnp.shape(value)}

    # ------------------------------------------------------------------ running

    def is_like(self, arguments: Arguments, values: bool = True) -> bool:
        known = self.arguments
        if known.tree != arguments.tree or known.labels != arguments.labels:
            return False
        if any(isinstance(leaf, jax.core.Tracer) for leaf in arguments.leaves):
            return False  # sizes are taken from values, which are not known here

        def has_kind(old: Any, new: Any) -> bool:
            if hasattr(old, "shape") != hasattr(new, "shape"):
                return False
            if not hasattr(old, "shape"):
                return bool(old is new or old == new)
            return np.shape(old) == np.shape(new) and old.dtype == new.dtype

        return all(map(has_kind, known.leaves, arguments.leaves)) and (
            self._has_values(arguments) or self._columns(arguments) is not None
        )

    def padded(self, arguments: Arguments, size: int) -> Arguments:
        return arguments

    def row_data(self, arguments: Arguments) -> tuple[list[Any], list[str]]:
        columns = () if self.lifted is None else self._columns(arguments)
        assert columns is not None
        return [np.arange(self.row_count), *columns], ["row", *(f"data {k}" for k in range(len(columns)))]

    def call(self, row: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.arguments.call(self.arguments.leaves)

    def trace_row(
        self,
        row: Sequence[Any],
        values: Mapping[str, Any],
        theta: Mapping[str, Any] | None = None,
        key: Any = None,
        draw: bool = False,
    ) -> Trace:
        args, kwargs = self.arguments.call(self.arguments.leaves)
        own = {
            name: value
            if callable(value) or name not in self.trace or not inside(self.trace[name], self.plate)
            else jnp.broadcast_to(value, self._whole_shape(name))
            for name, value in values.items()
        }
        # What depends on data alone is computed at once, so that sizes can be taken from it.
        with jax.ensure_compile_time_eval():
            return run_program(
                self.request.model,
                args,
                kwargs,
                values=own,
                swapped={} if theta is None else self.swapped(theta),
                key=fixed_key() if key is None else key,
                draw=draw,
                unobserved=self.unobserved,
                along=self.along,
            )

    def rowwise(self, ask: Ask, row: Any, *inputs: Any) -> Any:
        """One row's part of what ``ask`` gives for all: entries of arrays with a leading axis of rows, numbers as they are."""
        index, *columns = row
        leaves, tree = jax.tree.flatten(inputs)
        kinds = tuple((jnp.shape(leaf), str(jnp.result_type(leaf))) for leaf in leaves)
        function = ask.__qualname__, tree, kinds
        if columns and self.lifted is not None:
            return self.lifted.entry(function, leaves, index, columns)
        run = lambda values, theta=None: self.trace_row(row, values, theta)
        whole = lambda *given: ask(run, *jax.tree.unflatten(tree, given))
        traced, shapes = jax.make_jaxpr(whole, return_shape=True)(*leaves)
        outputs, out_tree = jax.tree.flatten(shapes)
        reading = Reading(traced, out_tree, [bool(out.shape) for out in outputs])
        if self._noted is not None:
            self._noted[function] = reading
        return reading.entry(leaves, index, None)

    def log_prob(self, site: Site) -> Any:
        return self._axis.log_probs(site["name"], site) if inside(site, self.plate) else site_log_prob(site)

    def by_row(self, site: Site, array: Any) -> Any:
        return self._axis.entries(site, array)

    def draw(self, row: Any, theta: Mapping[str, Any], key: Any, wanted: Sequence[str]) -> dict[str, Any]:
        trace = self.trace_row(row, self.shared_values(theta), theta, key=key, draw=True)
        found = {}
        for name in wanted:
            value, by_row = trace[name]["value"], inside(trace[name], self.plate)
            found[name] = jnp.moveaxis(value, self._axis.of_value(trace[name]), 0)[row[0]] if by_row else value
        return found

    def called_with(self, arguments: Arguments, is_row: tuple[bool, ...], unobserved: tuple[str, ...] = ()) -> Program:
        other = copy.copy(self)
        other.arguments, other.is_row, other.unobserved = arguments, is_row, unobserved
        other.counts_rows = (False,) * len(arguments.leaves)
        other.lifted = None
        for name in ("row_model", "observation_labels"):
            other.__dict__.pop(name, None)
        args, kwargs = arguments.call(arguments.leaves)
        trace = run_program(
            self.request.model,
            args,
            kwargs,
            values=self.typical,
            key=fixed_key(),
            unobserved=unobserved,
            along=self.along,
        )
        lengths = [np.shape(leaf)[0] for leaf, row in zip(arguments.leaves, is_row) if row]
        other.row_count = int(trace[self.plate]["args"][0]) or next(iter(lengths), self.row_count)
        return other

    def _is_only_observed(self, place: int) -> bool:
        at = [k for k, row in enumerate(self.is_row) if row][place]

        def parts(leaf: Any) -> tuple[list[Any], list[Any]]:
            leaves = [leaf if k == at else other for k, other in enumerate(self.arguments.leaves)]
            args, kwargs = self.arguments.call(leaves)
            with jax.ensure_compile_time_eval():
                trace = run_program(self.request.model, args, kwargs, values=self.typical, key=fixed_key())
            observed = [trace[name] for name in self.sites.observed]
            return [site["value"] for site in observed], traced_leaves([site["fn"] for site in observed])

        return only_first_reached(parts, jnp.asarray(self.arguments.leaves[at]))

    # ------------------------------------------------------------------ the row model

    @cached_property
    def in_rows(self) -> tuple[str, ...]:
        """Local sites that have a copy for every row in the program itself."""
        return tuple(name for name in self.sites.local if inside(self.trace[name], self.plate))

    def _row_model(self) -> RowModel:
        model = super()._row_model()
        # Priors that differ by row are not one distribution to be looked at.
        return replace(model, prior=None) if self.in_rows else model

    def _place(self, name: str, prior: Distribution, part: Any, shape: tuple[int, ...]) -> hyper.Placed:
        if name not in self.in_rows:
            return hyper.place(prior, part, shape)
        axis = self._axis.of_value(self.trace[name])
        return hyper.place(prior, part, shape, self._whole_shape(name), lambda a: self._axis.sums(a, axis))

    def _transform(self, u: Array, theta: Theta, row: Any) -> tuple[Any, Any]:
        rest = {**self.site_values((*self.sites.filled, *self.sites.discrete)), **self.shared_values(theta)}
        setters, placed = self._setters(u)
        self.trace_row(row, {**rest, **setters}, theta)
        values = {name: at.value for name, at in placed.items()}
        volume = sum((at.log_volume for at in placed.values()), jnp.zeros(()))
        if self.in_rows:

            def ask(run: Any, u: Array, theta: Theta) -> tuple[Any, Any]:
                setters, placed = self._setters(u)
                run({**rest, **self.shared_values(theta), **setters}, theta)
                own = {
                    name: jnp.moveaxis(placed[name].value, self._axis.of_value(self.trace[name]), 0)
                    for name in self.in_rows
                }
                return own, sum((at.log_volume for at in placed.values()), jnp.zeros(()))

            own, volume = self.rowwise(ask, row, u, theta)
            for name, value in own.items():
                values[name] = jnp.reshape(value, jnp.shape(self.trace[name]["value"]))
        return values[self.sites.local[0]] if self.single else values, volume

    # ------------------------------------------------------------------ other data

    def readings(self) -> dict[Hashable, Reading]:
        """The functions of the row model, as they are traced with the data of the program's own call."""
        self._noted = {}
        u, (index,) = jnp.zeros(self.size), self.first_row
        z = None if self.latents is None else jnp.asarray(self.latents)[0]

        def all_functions(vector: Any, index: Any) -> Any:
            theta, row = self.row_model.parameters.natural(vector), (index,)
            local = self._transform(u, theta, row)[0] if self.size else None
            found = [self._likelihood(local, theta, row, z)]
            if self.size:
                found += [self.log_prior(local, theta, row), self._joint(u, theta, row, z)]
            return found

        try:
            jax.eval_shape(all_functions, jnp.asarray(self.row_model.parameters.start), jnp.asarray(index))
            return self._noted
        finally:
            self._noted = None

    def on(self, arguments: Arguments) -> WholeProgram:
        """The same program with other data, nothing of it checked."""
        other = copy.copy(self)
        other.arguments, other.lifted = arguments, None
        other.__dict__.pop("row_model", None)
        other.trace = other._one_row(other.full_trace(arguments))
        return other

    def _has_values(self, arguments: Arguments) -> bool:
        same = lambda old, new: (
            old is new
            or (np.array_equal(np.asarray(old), np.asarray(new), equal_nan=np.asarray(old).dtype.kind == "f"))
        )
        return all(map(same, self.arguments.leaves, arguments.leaves))

    def _columns(self, arguments: Arguments) -> tuple[np.ndarray, ...] | None:
        """What rows of a call like the one read bring along; None where its data make another program."""
        if self.lifted is None:
            return None
        for known, columns in self._seen:
            if known is arguments:
                return columns
        if self._has_values(arguments):
            return self.lifted.columns
        try:
            other = self.on(arguments)
            shared = [name for name, site in samples(self.trace).items() if not inside(site, self.plate)]
            is_like = has_same_priors(self.trace, other.trace, [n for n in shared if n not in self.sites.observed])
            found = self.lifted.columns_of(other.readings(), self.row_count) if is_like else None
        except Exception:  # whatever it is, reading these data anew tells
            return None
        if found is not None:
            self._seen = [*self._seen[-3:], (arguments, found)]
        return found

    # ------------------------------------------------------------------ checks

    def _check_rows(self) -> None:
        """Rows one by one must give the densities that all of them together give, with values that differ by row."""
        rng = np.random.default_rng(0)
        values: dict[str, Any] = {}
        for name in (*self.sites.shared, *self.sites.local):
            if self.trace[name]["type"] != "sample":
                continue
            bijection = biject_to(self.trace[name]["fn"].support)
            shape = bijection.inverse_shape(self._whole_shape(name))
            values[name] = bijection(jnp.asarray(0.1 * rng.normal(size=shape)))
        theta = self.row_model.parameters.natural(jnp.asarray(self.row_model.parameters.start))
        rest = self.site_values((*self.sites.filled, *self.sites.discrete))

        def both(values: Any) -> tuple[Any, Any]:
            at = {**theta, **{name: values[name] for name in self.sites.shared if name in values}}
            trace = self.trace_row((0,), {**rest, **self.shared_values(at), **values}, at)
            together = sum(self.log_prob(trace[name]) for name in self.sites.observed)

            def one(index: Any) -> Any:
                mine = {
                    name: self._entry(name, values[name], index) if name in self.in_rows else values[name]
                    for name in self.sites.local
                }
                local = None if not mine else mine[self.sites.local[0]] if self.single else mine
                ask = lambda run, local, at: sum(
                    self.log_prob(run(self.all_values(local, at, None), at)[name]) for name in self.sites.observed
                )
                return self.rowwise(ask, (index,), local, at)

            return together, jax.vmap(one)(jnp.arange(self.row_count))

        together, apart = (np.asarray(a) for a in jax.jit(both)(values))
        self.is_finite = bool(np.all(np.isfinite(together)))
        gap = np.abs(together - apart) > 1e-8 * (1.0 + np.abs(together))
        bad = np.flatnonzero(gap & ~(np.isnan(together) & np.isnan(apart)))
        if bad.size:
            raise LocalizeError(
                f"rows are not independent: the log density of row {bad[0]} is {together[bad[0]]:.6g} with values of "
                f"{names(self.in_rows)} that differ by row, but {apart[bad[0]]:.6g} with its own in all rows. A row may only "
                "see its own value (no cumulative sums or lags of it); for time series see rb.series."
            )

    def _entry(self, name: str, value: Any, index: Any) -> Any:
        axis = self._axis.of_value(self.trace[name])
        return jax.lax.dynamic_slice_in_dim(value, index, 1, axis)
