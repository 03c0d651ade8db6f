"""How does a NumPyro program become a row model? It is called with one row, as it stands, under ``vmap``.

Nothing is moved into the plate. The localized site's value is substituted, its prior's arguments are swapped for fitted
ones, and the other latent sites become shared parameters with their own priors. What would make this wrong is checked:
:mod:`robustly.model.program.sites` refuses by sight, :mod:`robustly.model.program.checks` by trying.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from robustly._runtime.precision import double_precision
from robustly.errors import LocalizeError, did_you_mean, names
from robustly.model.program import hyper
from robustly.model.program.arguments import Arguments, find_rows
from robustly.model.program.checks import (
    check_independent,
    check_traceable,
    plain_supports,
    refuse_other_lengths,
    user_line,
)
from robustly.model.program.dependences import dependences, only_first_reached, traced_leaves
from robustly.model.program.request import Ask, Request, Tangled
from robustly.model.program.row_functions import RowFunctions
from robustly.model.program.sites import (
    choose_plate,
    latent_grid,
    local_size,
    observed_sites,
    samples,
    sort_sites,
)
from robustly.model.program.trace import ROWS, Site, Trace, fixed_key, inside, run_program, site_log_prob, stand_in_rows
from robustly.rows.arrays import pad

# Rows with which another process reads a program again, and the programs it has read so far.
READ_AGAIN = 257
_READ: dict[str, Program] = {}


def read_again(token: str, request: Request, arguments: Arguments) -> Program:
    """The program that another process has read."""
    if token not in _READ:
        with double_precision():
            _READ[token] = Program(request, arguments)
        _READ[token].token = token
    return _READ[token]


class Program(RowFunctions):
    """A program read for one kind of call; `row_model` is what it comes to."""

    is_whole = False
    """Whether the program is run on all rows at once, rather than on one at a time."""
    along: tuple[str, ...] = ()
    """Sites whose leading axis counts rows, in a program without a row plate."""
    unobserved: tuple[str, ...] = ()
    """Sites to be predicted though the call comes with something in the place of their observations."""

    def __init__(self, request: Request, arguments: Arguments) -> None:
        self.request = request
        self.arguments = arguments
        self.token = uuid.uuid4().hex
        """By which another process knows what it has read already."""
        full = self.full_trace(arguments)
        leading = [leaf.shape[0] for leaf in arguments.leaves if np.ndim(leaf) > 0]
        self.plate = choose_plate(full, leading, request.plate)
        if self.plate == ROWS:
            self.along = tuple(observed_sites(full))
            stand_in_rows(full, self.along)
        size = full[self.plate]["args"][0]
        self.is_row = find_rows(arguments, size, request.rows, self.plate)
        refuse_other_lengths(full, self.plate, size)
        # A plain whole number equal to the plate's size is how many programs say how many rows there are.
        self.counts_rows = tuple(
            type(leaf) is int and leaf == size and not row for leaf, row in zip(arguments.leaves, self.is_row)
        )
        self.first_row = tuple(np.asarray(leaf[0]) for leaf, row in zip(arguments.leaves, self.is_row) if row)
        self.trace = self._first_trace(full)
        self.sites = sort_sites(self.trace, request.sites, self.plate)
        self.rows_read = size
        self.plain_supports = plain_supports(self, full)
        self._refuse_outside()
        self._check_penalties(full)
        self._check_priors(full)
        self.size = local_size(self.trace, self.sites)
        self.latents = latent_grid(self.trace, self.sites)
        try:
            self._read_hyperparameters()
            check_traceable(self)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
            where = user_line(error, request.model)
            raise LocalizeError(
                f"the model branches on, or converts, a value that is not known until it runs{where}. "
                "Use jnp.where or jax.lax.cond instead of Python's if, and jnp instead of np on sampled values and data."
            ) from error
        check_independent(self)

    def __copy__(self) -> Program:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce__(self) -> Any:
        # What was traced and compiled stays here; another process reads the program again, with a few of its rows.
        return read_again, (self.token, self.request, self.padded(self.arguments, min(READ_AGAIN, self.rows_read)))

    # ------------------------------------------------------------------ calling the program

    def full_trace(self, arguments: Arguments, values: Mapping[str, Any] | None = None) -> Trace:
        """The program's trace on all rows; `values` by site, the rest typical."""
        args, kwargs = arguments.call(arguments.leaves)
        return run_program(self.request.model, args, kwargs, values=values, key=fixed_key(), along=self.along)

    def is_like(self, arguments: Arguments, values: bool = True) -> bool:
        """Whether a call differs from one already read only in the values and the number of its rows.

        Without `values`, arrays that are not rows are compared by shape alone: under ``jit`` their values are not known.
        """
        known = self.arguments
        if known.tree != arguments.tree or known.labels != arguments.labels:
            return False
        lengths = set()
        counts = []
        for old, new, row, counting in zip(known.leaves, arguments.leaves, self.is_row, self.counts_rows):
            if row:
                if np.ndim(new) != np.ndim(old) or np.shape(new)[1:] != np.shape(old)[1:]:
                    return False
                if np.dtype(new.dtype).kind != np.dtype(old.dtype).kind:
                    return False
                lengths.add(np.shape(new)[0])
            elif counting:
                counts.append(new)
            elif hasattr(old, "shape"):
                if np.shape(new) != np.shape(old) or (values and not np.array_equal(np.asarray(new), np.asarray(old))):
                    return False
            elif hasattr(new, "shape") or (old is not new and old != new):
                return False
        return len(lengths) == 1 and all(count in lengths for count in counts)

    def padded(self, arguments: Arguments, size: int) -> Arguments:
        """The same call with so many rows: the first of them, or the last one repeated. New sizes compile small programs."""
        leaves = tuple(
            pad(np.asarray(leaf)[:size], size) if row else size if counts else leaf
            for leaf, row, counts in zip(arguments.leaves, self.is_row, self.counts_rows)
        )
        return replace(arguments, leaves=leaves)

    def row_data(self, arguments: Arguments) -> tuple[list[Any], list[str]]:
        """What passes see of the rows of a call, with labels."""
        both = [(a, label) for a, label, row in zip(arguments.leaves, arguments.labels, self.is_row) if row]
        return [a for a, _ in both], [label for _, label in both]

    @cached_property
    def predictors(self) -> list[Any]:
        """What predicts calls of this program without observations, compiled, one entry for each kind of call."""
        return []

    def call(self, row: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with one row."""
        taken = iter(row)
        return self.arguments.call(
            [
                next(taken)[None] if is_row else 1 if counts else leaf
                for leaf, is_row, counts in zip(self.arguments.leaves, self.is_row, self.counts_rows)
            ]
        )

    def trace_row(
        self,
        row: Sequence[Any],
        values: Mapping[str, Any],
        theta: Mapping[str, Any] | None = None,
        key: Any = None,
        draw: bool = False,
    ) -> Trace:
        """The program's trace on one row; `values` by site, prior arguments from `theta`, the rest typical or drawn."""
        args, kwargs = self.call(row)
        swapped = {} if theta is None else self.swapped(theta)
        return run_program(
            self.request.model,
            args,
            kwargs,
            values=values,
            swapped=swapped,
            plate=self.plate,
            key=key,
            draw=draw,
            unobserved=self.unobserved,
            along=self.along,
        )

    def run_once(self, values: Mapping[str, Any], theta: Mapping[str, Any] | None = None) -> Trace:
        """The program's trace on some row, for what all rows have alike."""
        return self.trace_row(self.first_row, values, theta)

    def rowwise(self, ask: Ask, row: Any, *inputs: Any) -> Any:
        """What ``ask(run, *inputs)`` comes to for one row, where ``run(values, theta)`` gives a trace of the program."""
        return ask(lambda values, theta=None: self.trace_row(row, values, theta), *inputs)

    def log_prob(self, site: Site) -> Any:
        """A site's log density in the row, or rows, that a trace is of."""
        return site_log_prob(site)

    def called_with(self, arguments: Arguments, is_row: tuple[bool, ...], unobserved: tuple[str, ...] = ()) -> Program:
        """The same program for calls with other arguments, such as new rows without their observations."""
        other = copy.copy(self)
        counting = {label for label, counts in zip(self.arguments.labels, self.counts_rows) if counts}
        other.arguments, other.is_row, other.unobserved = arguments, is_row, unobserved
        other.counts_rows = tuple(label in counting for label in arguments.labels)
        other.first_row = tuple(np.asarray(leaf)[0] for leaf, row in zip(arguments.leaves, is_row) if row)
        other.__dict__.pop("row_model", None)
        return other

    @cached_property
    def observation_labels(self) -> tuple[str, ...]:
        """Row arguments that are observed and enter nothing else, so that prediction can do without them."""
        labels = [label for label, row in zip(self.arguments.labels, self.is_row) if row]
        return tuple(label for place, label in enumerate(labels) if self._is_only_observed(place))

    def _is_only_observed(self, place: int) -> bool:
        def parts(entry: Any) -> tuple[list[Any], list[Any]]:
            row = tuple(entry if k == place else a for k, a in enumerate(self.first_row))
            trace = self.trace_row(row, self.typical)
            observed = [trace[name] for name in self.sites.observed if name in trace]
            return [site["value"] for site in observed], traced_leaves([site["fn"] for site in observed])

        return only_first_reached(parts, self.first_row[place])

    def by_row(self, site: Site, array: Any) -> Any:
        """Something of a site, of its batch shape or more, without the axis of its only row."""
        array = jnp.asarray(array, dtype=float)
        return array[0] if array.ndim and array.shape[0] == 1 else array

    def draw(self, row: Any, theta: Mapping[str, Any], key: Any, wanted: Sequence[str]) -> dict[str, Any]:
        """Draws of some sites for a new row, with a local value of its own."""
        trace = self.trace_row(row, self.shared_values(theta), theta, key=key, draw=True)
        values = {name: trace[name]["value"] for name in wanted}
        return {name: value[0] if jnp.ndim(value) else value for name, value in values.items()}

    def _first_trace(self, full: Trace) -> Trace:
        first = self.trace_row(self.first_row, {}, key=fixed_key())
        if self.plate != ROWS:
            return first
        # Latent sites of as many entries as there are rows, whatever their number, have a value for every row already.
        counted = lambda trace, name, size: jnp.shape(trace[name]["value"])[:1] == (size,)
        size = full[ROWS]["args"][0]
        own = [
            name
            for name, site in samples(first).items()
            if not site["is_observed"] and name in full and counted(full, name, size) and counted(first, name, 1)
        ]
        if size == 1 or not own:
            return first
        self.along = (*self.along, *own)
        return self.trace_row(self.first_row, {}, key=fixed_key())

    @cached_property
    def typical(self) -> dict[str, Any]:
        """Typical values of the latent sites outside the plate, which all calls have alike."""
        return self.site_values(
            [name for name in (*self.sites.shared, *self.sites.local) if not inside(self.trace[name], self.plate)]
        )

    # ------------------------------------------------------------------ parameters

    def _refuse_outside(self) -> None:
        if not self.request.sites:
            return
        stray = [name for name in self.sites.observed if not inside(self.trace[name], self.plate)]
        if stray:
            raise LocalizeError(f'observed sites {names(stray)} stand outside plate "{self.plate}". Move them into it.')

    def _check_penalties(self, full: Trace) -> None:
        """A single factor that looks at the data has another value when it sees one row of them."""
        for name in self.sites.penalties:
            if not np.allclose(float(site_log_prob(full[name])), float(site_log_prob(self.trace[name])), rtol=1e-9):
                raise LocalizeError(
                    f'factor "{name}" is one number made of all rows, so it is not a product over them. Give it one entry a row.'
                )

    def _check_priors(self, full: Trace) -> None:
        """A prior that is made of the data, ``Normal(y.mean(), 1)``, is another one when it sees one row of them."""
        last = tuple(np.asarray(leaf[-1]) for leaf, row in zip(self.arguments.leaves, self.is_row) if row)
        chosen = [name for name in (*self.sites.shared, *self.request.sites) if self.trace[name]["type"] == "sample"]
        for trace in (self.trace, self.trace_row(last, {}, key=fixed_key())):
            for name in chosen:
                if inside(self.trace[name], self.plate) or name not in full:
                    continue
                both = zip(traced_leaves(trace[name]["fn"]), traced_leaves(full[name]["fn"]))
                same = lambda a, b: np.shape(a) != np.shape(b) or np.allclose(a, b, rtol=1e-9, equal_nan=True)
                if not all(same(a, b) for a, b in both):
                    raise LocalizeError(
                        f'the prior of site "{name}" is made of all rows together, so it is not known from one of them. Compute what it '
                        "needs before the model."
                    )

    def _read_hyperparameters(self) -> None:
        moving, tangled, self.led = dependences(self)
        for site in self.request.sites:
            moving.setdefault(site, set()).update(self._by_row_arguments(site))
        for name in tangled:
            if name in self.sites.penalties:
                raise LocalizeError(
                    f'factor "{name}" is one number for all rows and depends on {names(self.request.sites)}, which would now '
                    "differ from row to row. Give it one entry a row."
                )
            raise Tangled(
                name,
                f'the prior of shared site "{name}" depends on {names(self.request.sites)}, which would now differ from row '
                f'to row. Localize "{name}" too, or let also="auto" do so.',
            )
        fixed, believed = self.request.fixed or {}, self.request.hyperprior or {}
        self.free: dict[str, dict[str, hyper.Argument]] = {}
        self.held: dict[str, dict[str, str]] = {}
        for site in self.request.sites:
            free, held = hyper.arguments(self.trace[site]["fn"])
            kind = type(hyper.core(self.trace[site]["fn"])[0]).__name__
            for given, word in ((fixed.get(site, {}), "fixed"), (believed.get(site, {}), "hyperprior")):
                for argument in given:
                    if argument in held:
                        raise LocalizeError(
                            f'{word}= names "{argument}" of site "{site}", which cannot be fitted: {held[argument]}.'
                        )
                    if argument not in free:
                        raise LocalizeError(
                            f'{word}= names "{argument}", but site "{site}" is a {kind} with {names(free)}.'
                            + did_you_mean(argument, free)
                        )
            for argument, prior in believed.get(site, {}).items():
                if not isinstance(prior, Distribution):
                    raise LocalizeError(
                        f'hyperprior= gives "{argument}" of site "{site}" the value {prior!r}. Give a NumPyro distribution, such as '
                        "dist.Gamma(2.0, 0.1); a value that is not fitted goes into fixed=."
                    )
            for argument in list(free):
                if argument in moving.get(site, ()):
                    held[argument] = "it follows other sites, and is fitted through them"
                    del free[argument]
                elif argument in fixed.get(site, {}):
                    held[argument] = "fixed"
                    del free[argument]
                elif self.request.as_written:
                    held[argument] = "the prior stays as it is written"
                    del free[argument]
            if not free and not moving.get(site) and not self.request.as_written:
                listed = "; ".join(f"{argument}: {reason}" for argument, reason in held.items())
                raise LocalizeError(
                    f'site "{site}" ({kind}) has no argument left to fit ({listed or "it takes none"}). '
                    "Give it a prior with a free scale or concentration, such as Normal or Gamma."
                )
            self.free[site], self.held[site] = free, held
        self.fixed = {site: dict(fixed.get(site, {})) for site in self.request.sites}

    def _by_row_arguments(self, site: str) -> set[str]:
        """Arguments of a localized prior that differ by row, beyond what was seen when the row was traced."""
        return set()

    def swapped(self, theta: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The fitted and fixed arguments of each localized prior."""
        return {
            site: {**{argument: theta[f"{site}.{argument}"] for argument in self.free[site]}, **self.fixed[site]}
            for site in self.request.sites
        }
