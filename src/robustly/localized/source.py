"""From a program and its rows to a :class:`~robustly.result.fit.Fit`, and what can be asked of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly._runtime.precision import double_precision, in_double_precision
from robustly.errors import DataError, FitError, ModelError, RobustlyError, names
from robustly.fit.limits import RunawayWatch, heterogeneity
from robustly.fit.maximize import Found, maximize, settled
from robustly.fit.outcome import Outcome
from robustly.localized.predictor import Predictor, without_observations
from robustly.localized.rows import RowSource, make_fit, search
from robustly.model.program import hyper
from robustly.model.program.arguments import Arguments, read_arguments
from robustly.model.program.read import Program
from robustly.model.row import RowModel
from robustly.result.fit import Fit
from robustly.result.laws import Predictive
from robustly.rows.arrays import Rows, make_rows
from robustly.rows.store import over_rows

if TYPE_CHECKING:
    from robustly.localized.model import Localized

SURPRISE_DRAWS = 999
# A parameter that runs off for a smaller gain than this (in nats) has reached its limit.
NEGLIGIBLE = 1e-6


class ProgramSource(RowSource):
    """The rows of a NumPyro program: it can also predict, and tell how far out an observation is."""

    def __init__(self, found: Found, rows: Rows, program: Program, arguments: Arguments, owner: Localized) -> None:
        super().__init__(found, rows)
        self.program = program
        self.arguments = arguments
        self.owner = owner
        self.compiled = owner.compiled.setdefault(id(found.passes), {})

    def has_posterior(self, site: str) -> bool:
        return site in self.program.sites.local

    def _shape_of(self, site: str) -> tuple[tuple[int, ...], slice]:
        # Values of several local sites are put end to end in the order of their names, as JAX flattens a dictionary.
        if site not in self.program.sites.local:
            raise ModelError(f'site "{site}" is not local; local are {names(self.program.sites.local)}.')
        shapes = {name: jnp.shape(self.program.trace[name]["value"]) for name in self.program.sites.local}
        order = list(shapes) if self.program.single else sorted(shapes)
        place = 0
        for name in order:
            size = int(np.prod(shapes[name], dtype=int))
            if name == site:
                shape = shapes[name]
                inner = shape[1:] if shape[:1] == (1,) and name not in self.program.request.sites else shape
                inner = shape[1:] if shape[:1] == (1,) and _in_plate(self.program, name) else inner
                return inner, slice(place, place + size)
            place += size
        raise AssertionError(site)

    @in_double_precision
    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Predictive:
        predictor = Predictor(self.program, self.vector, args, kwargs)
        _ = predictor.sites
        return Predictive(predictor, lambda given: self._log_prob(predictor, given))

    @in_double_precision
    def _log_prob(self, predictor: Predictor, given: Mapping[str, Any]) -> np.ndarray:
        by_label = {**dict(zip(predictor.rows.labels, predictor.rows.data)), **given}
        order = [label for label, row in zip(self.arguments.labels, self.program.is_row) if row]
        trained = dict(zip(self.arguments.labels, self.arguments.leaves))
        data = [np.asarray(by_label[label], dtype=np.asarray(trained[label]).dtype) for label in order]
        rows = make_rows(data, order)
        x = jnp.asarray(self.vector)
        return over_rows(self.passes.values, rows, self.passes.begin(rows), x)[1]["evidence"]

    @in_double_precision
    def has_closed_tails(self) -> bool:
        try:
            args, kwargs = without_observations(self.program, self.arguments)
            return Predictor(self.program, self.vector, args, kwargs).has_cdf()
        except RobustlyError:
            return False

    @in_double_precision
    def tail_probabilities(self) -> np.ndarray:
        """Two-sided: twice the smaller of P(Y ≤ y) and P(Y ≥ y), by row."""
        args, kwargs = without_observations(self.program, self.arguments)
        predictor = Predictor(self.program, self.vector, args, kwargs)
        if not predictor.has_cdf():
            return self._surprise_tails(predictor)
        observed = self.program.full_trace(self.arguments)[predictor.site]
        value = np.asarray(observed["value"], dtype=float).reshape(len(self.rows))
        below = predictor.cdf(value)
        strictly = predictor.cdf(value - 1.0) if observed["fn"].support.is_discrete else below
        return np.minimum(1.0, 2.0 * np.minimum(below, 1.0 - strictly))

    def _surprise_tails(self, predictor: Predictor) -> np.ndarray:
        """By simulation, where observations are not one number: how often a drawn row is as surprising."""
        drawn = predictor.sample(SURPRISE_DRAWS, jax.random.key(0))
        if len(drawn) != len(predictor.missing):
            raise ModelError(
                f"observed sites {names(drawn)} are not the arguments {names(predictor.missing)} one by one, so drawn rows "
                "cannot be scored."
            )
        values = list(drawn.values())
        count = np.ones(len(self.rows))
        for draw in range(SURPRISE_DRAWS):
            scored = self._log_prob(predictor, {label: v[draw] for label, v in zip(predictor.missing, values)})
            count += scored <= self.found.evidence
        return count / (SURPRISE_DRAWS + 1)

    def log_prior(self, theta: Any) -> Any:
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

    def describe(self) -> dict[str, Any]:
        request = self.program.request
        kinds = [
            [label, bool(row), list(np.shape(leaf)[1:]), np.asarray(leaf).dtype.kind]
            if row
            else [
                label,
                False,
                np.asarray(leaf).tolist() if isinstance(leaf, int | float | str | bool | np.ndarray) else None,
                None,
            ]
            for label, leaf, row in zip(self.arguments.labels, self.arguments.leaves, self.program.is_row)
        ]
        plain = lambda v: np.asarray(v).tolist()
        return {
            "sites": list(request.sites),
            "flat": list(request.flat),
            "rows": None if request.rows is None else list(request.rows),
            "plate": request.plate,
            "fixed": {s: {a: plain(v) for a, v in given.items()} for s, given in (request.fixed or {}).items()},
            "arguments": kinds,
            "first_row": [plain(a) for a in self.program.first_row],
            "approximation": repr(self.passes.approx),
        }


def _in_plate(program: Program, name: str) -> bool:
    from robustly.model.program.trace import inside

    return inside(program.trace[name], program.plate)


def fit_program(
    owner: Localized,
    program: Program,
    model: RowModel,
    detected: str,
    arguments: Arguments,
    rows: Rows,
    options: Mapping[str, Any],
) -> Fit:
    """Fit a program that has been read; falls back to its classical model when the rows do not differ."""
    from robustly.localized.model import start_vector, stop_of

    start = start_vector(model, options.get("start"))
    walled, labels = model.parameters.walled, model.parameters.labels
    degenerate = _can_degenerate(program) and options["method"] == "direct"
    with _progress(options.get("progress", False)) as report:
        stop = stop_of(options)
        watch = RunawayWatch(walled, labels, 0.5 if degenerate else NEGLIGIBLE)
        found = search(model, rows, options["approx"], options["method"], stop, start, watch, report)
        if degenerate and found.optimum.outcome.kind != "converged":
            limit = _classical_limit(owner, program, arguments, rows, found)
            if limit is not None:
                return limit
            watch = RunawayWatch(walled, labels, NEGLIGIBLE)
            found = search(model, rows, options["approx"], "direct", stop, found.optimum.vector, watch, report)
    notes = (*found.notes, detected) if program.size else found.notes
    return make_fit(found, rows, ProgramSource(found, rows, program, arguments, owner), notes=notes)


def _can_degenerate(program: Program) -> bool:
    """Whether all rows sharing one value is a limit of the fitted priors."""
    request = program.request
    if not request.sites or any((request.hyperprior or {}).values()):
        return False
    return all(not program.held[site] and not _in_plate(program, site) for site in request.sites)


def _classical_limit(owner: Localized, program: Program, arguments: Arguments, rows: Rows, found: Found) -> Fit | None:
    """The fit in which all rows share the localized values, if no spread of them does better."""
    from robustly.localized.model import limits_of

    sites = program.request.sites
    common = owner.common(program, arguments)
    model = common.row_model
    centre = {
        name: value
        for name, value in found.passes.model.parameters.natural(jnp.asarray(found.optimum.vector)).items()
        if name in model.start
    }
    start = model.parameters.vector({**model.start, **_prior_centres(program, found), **centre})
    try:
        shared = maximize(model, rows, start=start)
    except FitError:
        return None
    if not shared.optimum.outcome.converged or shared.optimum.value < found.optimum.value - 1e-6:
        return None
    place = np.concatenate(
        [np.arange(*model.parameters._slices[site].indices(model.parameters.size)) for site in sites]
    )
    score = heterogeneity(shared.passes, rows, shared.optimum.vector, shared.state, place)
    if np.linalg.eigvalsh(score).max() > 1e-9:
        return None
    text = (
        f"the rows show no heterogeneity in {names(sites)}, so the classical model is returned, with one value for all rows "
        f"(its log likelihood is {shared.optimum.value - found.optimum.value:.1e} above the best spread tried)."
    )
    ended = settled(shared, Outcome("boundary", text, len(found.optimum.history) + len(shared.optimum.history)))
    theta = model.parameters.natural(jnp.asarray(shared.optimum.vector))
    source = ProgramSource(ended, rows, common, arguments, owner)
    return make_fit(ended, rows, source, limits=limits_of(program, theta), notes=(text,))


def _prior_centres(program: Program, found: Found) -> dict[str, Any]:
    """A typical value of each localized site under the prior reached so far."""
    theta = found.passes.model.parameters.natural(jnp.asarray(found.optimum.vector))
    centres = {}
    for site, swapped in program.swapped(theta).items():
        prior = hyper.with_arguments(program.trace[site]["fn"], swapped)
        mean = jnp.broadcast_to(prior.mean, jnp.shape(program.trace[site]["value"]))
        if bool(jnp.all(jnp.isfinite(mean))):
            centres[site] = mean
    return centres


class _progress:
    """A line that tells how a long fit is getting on; silent unless asked for."""

    def __init__(self, show: bool) -> None:
        self.show = show

    def __enter__(self) -> Any:
        if not self.show:
            return None
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.bar = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True)
        self.bar.start()
        task = self.bar.add_task("compiling")
        return lambda entry: self.bar.update(
            task, description=f"pass {entry['pass']}: objective {entry['value']:.6g}", advance=1
        )

    def __exit__(self, *error: Any) -> None:
        if self.show:
            self.bar.stop()


def reattached(fit: Fit, owner: Localized, call: Mapping[str, Any]) -> ProgramSource:
    """A source for a fit read from a file, good for predicting; the training rows themselves were not kept."""
    taken = iter(call["first_row"])
    leaves: dict[str, Any] = {}
    for label, row, known, kind in call["arguments"]:
        if row:
            one = np.asarray(next(taken))
            leaves[label] = np.stack([one, one]).astype({"f": float, "i": int, "u": int, "b": bool}[kind])
        else:
            leaves[label] = np.asarray(known) if isinstance(known, list) else known
    if any("[" in label or "." in label for label in leaves):
        raise DataError("this fit was made with nested arguments; fit the model again to predict with it.")
    with double_precision():
        request = replace(
            owner.request,
            sites=tuple(call["sites"]),
            flat=tuple(call["flat"]),
            fixed=call["fixed"] or owner.request.fixed,
        )
        arguments = read_arguments(request.model, (), leaves)
        program = Program(request, arguments)
        if sorted(program.row_model.start) != sorted(fit.parameters):
            raise DataError(
                f"the model given has the parameters {names(program.row_model.start)}, but the saved fit {names(fit.parameters)}."
            )
        from robustly.fit.newton import Optimum
        from robustly.fit.passes import passes
        from robustly.model.conjugacy import detect

        rows = make_rows(
            [leaf for leaf, row in zip(arguments.leaves, program.is_row) if row],
            [label for label, row in zip(arguments.labels, program.is_row) if row],
        )
        model, _ = detect(program.row_model, rows) if program.size else (program.row_model, "")
        from robustly.approx import default_approximation

        optimum = Optimum(fit.vector, fit.objective, np.zeros_like(fit.vector), fit.curve, fit.history, fit.outcome)
        seen = {"evidence": fit.evidence, "state": np.zeros(0), "strain": np.zeros(0)}
        found = Found(optimum, passes(model, default_approximation(model)), rows, seen)
        return ProgramSource(found, rows, program, arguments, owner)
