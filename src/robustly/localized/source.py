"""What can be asked of a fitted program, and of its rows? Predictions, tails, and draws from its posterior."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly._runtime.precision import double_precision, in_double_precision
from robustly.approx import default_approximation
from robustly.errors import ModelError, RobustlyError, names
from robustly.fit.passes import Passes, passes
from robustly.fit.problem import Found
from robustly.localized.predictor import Predictive
from robustly.localized.rows import RowSource
from robustly.localized.stored import with_data
from robustly.model.conjugacy import detect
from robustly.model.parameters import Theta
from robustly.model.program import hyper
from robustly.model.program.arguments import Arguments
from robustly.model.program.read import Program
from robustly.model.program.trace import Trace, inside
from robustly.result.laws import two_sided
from robustly.rows.arrays import bucket_of, make_rows
from robustly.rows.store import Data, Rows

if TYPE_CHECKING:
    from robustly.localized.model import Localized

SURPRISE_DRAWS = 999


@dataclass(frozen=True, eq=False)
class ProgramModel:
    """A NumPyro program with fitted parameters: it predicts rows whose observations are not given."""

    program: Program
    arguments: Arguments
    passes: Passes
    vector: np.ndarray

    kind: ClassVar[str] = "fit"

    @property
    def own_vector(self) -> np.ndarray:
        """What the program itself knows of the vector: of a law in two parts the core, by which new rows are predicted."""
        return self.vector[: self.program.row_model.parameters.size]

    @in_double_precision
    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Predictive:
        return Predictive.of_new(self.program, self.own_vector, args, kwargs, self.log_prob)

    @in_double_precision
    def log_prob(self, predictor: Predictive, given: Mapping[str, Any]) -> np.ndarray:
        """Evidence of rows with observations `given` beside what `predictor` was made with."""
        if self.program.is_whole:
            return self._log_prob_of_whole(predictor, given)
        by_label = {**dict(zip(predictor.rows.labels, predictor.rows.data)), **given}
        order = [label for label, row in zip(self.arguments.labels, self.program.is_row) if row]
        trained = dict(zip(self.arguments.labels, self.arguments.leaves))
        data = [np.asarray(by_label[label], dtype=np.asarray(trained[label]).dtype) for label in order]
        rows = make_rows(data, order)
        return rows.map(self.passes.values, self.vector).by_unit["evidence"]

    def _log_prob_of_whole(self, predictor: Predictive, given: Mapping[str, Any]) -> np.ndarray:
        called = predictor.calls.program.arguments
        leaves = tuple(
            np.asarray(given[label]) if label in given else a for label, a in zip(called.labels, called.leaves)
        )
        program = self.program.called_with(replace(called, leaves=leaves), predictor.calls.program.is_row)
        rows = make_rows(*program.row_data(called))
        model = detect(program.row_model, rows)[0] if program.size else program.row_model
        approx = self.passes.approx if model.conjugacy or not self.passes.approx.is_exact else None
        compiled = passes(model, approx or default_approximation(model))
        return rows.map(compiled.values, self.own_vector).by_unit["evidence"]

    def unobserved(self, arguments: Arguments) -> Predictive:
        """The predictive of the rows of a call, as if they had not been observed."""
        return Predictive.of_fitted(self.program, self.own_vector, arguments, self.log_prob)

    def padded_trace(self, arguments: Arguments, count: int) -> Trace:
        """The program run on all rows, and as many copies of the last one as fill the size that is compiled."""
        size = bucket_of(count, 1 << 62)
        return self.program.full_trace(self.program.padded(arguments, size))

    def closed_tails(self, arguments: Arguments, count: int) -> np.ndarray | None:
        """Tail probabilities of the rows of a call, from distribution functions; None where there are none."""
        predictor = self.unobserved(arguments)
        if not predictor.has_cdf:
            return None
        observed = self.padded_trace(arguments, count)[predictor.site]
        value = np.asarray(observed["value"], dtype=float).reshape(-1)[:count]
        below = predictor.cdf(value)
        strictly = predictor.cdf(value - 1.0) if observed["fn"].support.is_discrete else below
        return two_sided(below, 1.0 - strictly)

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        request = self.program.request
        # Of rows the first one tells their kind; a program that was run whole needs all of them to be read again.
        by_row = [row and not self.program.is_whole for row in self.program.is_row]
        kinds = [
            [label, bool(row), list(np.shape(leaf)[1:]), np.asarray(leaf).dtype.kind]
            if row
            else [label, False, _listed(leaf), np.asarray(leaf).dtype.kind]
            if self.program.is_whole and np.ndim(leaf)
            else [label, False, 2, None]  # as many rows as the program is read with again
            if counts
            else [
                label,
                False,
                np.asarray(leaf).tolist() if isinstance(leaf, int | float | str | bool | np.ndarray) else None,
                None,
            ]
            for label, leaf, row, counts in zip(
                self.arguments.labels, self.arguments.leaves, by_row, self.program.counts_rows
            )
        ]
        plain = lambda v: np.asarray(v).tolist()
        about = {
            "sites": list(request.sites),
            "flat": list(request.flat),
            "rows": None if request.rows is None else list(request.rows),
            "plate": request.plate,
            "fixed": {s: {a: plain(v) for a, v in given.items()} for s, given in (request.fixed or {}).items()},
            "arguments": kinds,
            "first_row": [plain(a) for a in self.program.first_row],
            "approximation": repr(self.passes.approx),
            "whole": self.program.is_whole,
        }
        return {"call": about}, {}


@dataclass(frozen=True, eq=False)
class TailPass:
    """A pass that gives tail probabilities by row."""

    model: ProgramModel

    def __call__(
        self, theta: Any, data: Data, weight: np.ndarray, state: Any
    ) -> tuple[dict[str, Any], dict[str, Any], None]:
        program, arguments = self.model.program, self.model.arguments
        with double_precision():
            found = self.model.closed_tails(with_data(program, arguments, data), len(data[0]))
        if found is None:
            raise ModelError(
                "tail probabilities of these observations are simulated, which needs rows in memory. Fit a sample, or rank rows by "
                "fit.surprise."
            )
        return {}, {"tail": found}, None


def _listed(leaf: Any) -> Any:
    """An array as lists, missing values as None."""
    array = np.asarray(leaf)
    if array.dtype.kind == "f" and np.isnan(array).any():
        missing = np.isnan(array)
        array = array.astype(object)
        array[missing] = None
    return array.tolist()


class ProgramSource(RowSource):
    """The rows of a NumPyro program: it can also tell how far out an observation is."""

    def __init__(self, found: Found, rows: Rows, program: Program, arguments: Arguments, owner: Localized) -> None:
        super().__init__(found, rows)
        self.program = program
        self.arguments = arguments
        self.model = ProgramModel(program, arguments, self.passes, found.vector)
        self.compiled = owner.compiled.setdefault(id(self.passes), {})

    def has_posterior(self, site: str) -> bool:
        return site in self.program.sites.local

    def _shape_of(self, site: str | None) -> tuple[tuple[int, ...], slice]:
        # Values of several local sites are put end to end in the order of their names, as JAX flattens a dictionary.
        if site not in self.program.sites.local:
            site = "" if site is None else site
            raise ModelError(f'site "{site}" is not local; local are {names(self.program.sites.local)}.')
        shapes = {name: jnp.shape(self.program.trace[name]["value"]) for name in self.program.sites.local}
        order = list(shapes) if self.program.single else sorted(shapes)
        place = 0
        for name in order:
            size = int(np.prod(shapes[name], dtype=int))
            if name == site:
                shape = shapes[name]
                inner = shape[1:] if shape[:1] == (1,) and name not in self.program.request.sites else shape
                inner = (
                    shape[1:] if shape[:1] == (1,) and inside(self.program.trace[name], self.program.plate) else inner
                )
                return inner, slice(place, place + size)
            place += size
        raise AssertionError(site)

    def _own_predictive(self) -> Predictive:
        """Of the fitted rows, as if they had not been observed."""
        return self.model.unobserved(self.arguments)

    def has_closed_tails(self) -> bool:
        try:
            return self._own_predictive().has_cdf
        except RobustlyError:
            return False

    @in_double_precision
    def tail_probabilities(self) -> np.ndarray:
        if self.rows.here is None:
            return self.rows.map(TailPass(self.model), None).by_unit["tail"]
        found = self.model.closed_tails(self.arguments, len(self.rows))
        return self._surprise_tails(self._own_predictive()) if found is None else found

    @in_double_precision
    def observed(self) -> dict[str, np.ndarray]:
        """Values of the observed sites."""
        if self.rows.here is None:
            return {}
        trace = self.model.padded_trace(self.arguments, len(self.rows))
        return {
            name: np.asarray(trace[name]["value"])[: len(self.rows)]
            for name in self.program.sites.observed
            if name in trace
        }

    def _surprise_tails(self, predictor: Predictive) -> np.ndarray:
        """By simulation, where observations are not one number: how often a drawn row is as surprising."""
        if self.program.is_whole:
            raise ModelError(
                f"site {names(self.program.sites.observed)} has no distribution function by row, and the program can only be "
                "run on all rows at once, so drawn rows cannot be scored. Rank rows by fit.surprise instead."
            )
        drawn = predictor.draws(SURPRISE_DRAWS, jax.random.key(0))
        if len(drawn) != len(predictor.missing):
            given = (
                f"the arguments {names(predictor.missing)} one by one"
                if predictor.missing
                else "arguments as they came"
            )
            raise ModelError(
                f"observed sites {names(drawn)} are not {given}, so drawn rows cannot be scored. Rank rows by fit.surprise instead."
            )
        values = list(drawn.values())
        count = np.ones(len(self.rows))
        for draw in range(SURPRISE_DRAWS):
            scored = self.model.log_prob(predictor, {label: v[draw] for label, v in zip(predictor.missing, values)})
            count += scored <= self.found.evidence
        return count / (SURPRISE_DRAWS + 1)

    def log_prior(self, theta: Theta) -> Array:
        """Weak hyperpriors for arguments that were given none."""
        total = jnp.zeros(())
        believed = self.program.request.hyperprior or {}
        for site, free in self.program.free.items():
            prior = self.program.trace[site]["fn"]
            for name, argument in free.items():
                if name not in believed.get(site, {}):
                    weak = hyper.default_hyperprior(name, argument, prior)
                    total = total + jnp.sum(weak.log_prob(theta[f"{site}.{name}"]))
        return total
