"""From a program and its rows to a :class:`~robustly.result.fit.Fit`: the search, and the limit in which rows do not differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from robustly._runtime.settings import check_real, check_whole
from robustly.errors import FitError, ModelError, did_you_mean, names
from robustly.fit.limits import NO_TOP, RunawayWatch, endless, heterogeneity
from robustly.fit.outcome import Stop
from robustly.fit.problem import Found, RowProblem
from robustly.fit.search import search
from robustly.localized.by_group import GroupedProgramSource
from robustly.localized.contaminated import contaminated, fit_two_parts
from robustly.localized.rows import find, row_fit
from robustly.localized.source import ProgramSource
from robustly.model.group import grouped_model
from robustly.model.program import hyper
from robustly.model.program.arguments import Arguments
from robustly.model.program.read import Program
from robustly.model.program.trace import inside
from robustly.model.program.whole import WholeProgram
from robustly.model.row import RowModel
from robustly.result.fit import Fit
from robustly.result.outliers import Judgement
from robustly.rows.arrays import make_rows
from robustly.rows.groups import Grouping
from robustly.rows.store import Rows

if TYPE_CHECKING:
    from robustly.localized.model import Localized

CONTAMINATED = "two parts"
NO_SHARE = "no share of rows that do not belong does better than none, so the prior has one part."
# A parameter that runs off for a smaller gain than this (in nats) has reached its limit.
NEGLIGIBLE = 1e-6
# Nats a row, beyond which an objective is looked at once more: rows of 1e100 have them, and those that are only far off have not.
ABSURD = 1e12


def fit_program(
    owner: Localized,
    program: Program,
    model: RowModel,
    detected: str,
    arguments: Arguments,
    rows: Rows,
    options: Mapping[str, Any],
    groups: Grouping | None = None,
) -> Fit:
    """Fit a program that has been read; falls back to its classical model when the rows do not differ."""
    law = None
    if owner.contaminated:
        law = owner.compiled.get((CONTAMINATED, id(model))) or contaminated(program, model)
        owner.compiled[(CONTAMINATED, id(model))] = law
    start = start_vector(model, options.get("start"))
    problem = ProgramProblem(model, rows, options["approx"])
    problem.limit = _SharedValue(owner, program, arguments, rows, groups) if _can_degenerate(program) else None
    with _progress(options.get("progress", False)) as report:
        found = find(problem, options["method"], stop_of(options), start, report)
    judged = None
    if law is not None:
        plain, (found, judged) = found, fit_two_parts(law, found, rows, options["approx"], stop_of(options))
        if found is plain:
            found = replace(found, notes=(*found.notes, NO_SHARE))
    if found.outcome.kind == "unbounded" or not np.isfinite(found.value):
        raise FitError(found.outcome.text if np.isfinite(found.value) else NO_TOP.format(f"ended at {found.value}"))
    if found.outcome.kind == "boundary":
        assert problem.limit is not None
        return problem.limit.as_fit(found, judged)
    notes = (*found.notes, detected) if program.size else found.notes
    if isinstance(program, WholeProgram):
        notes = (*notes, f"the program was run on all rows at once, as one row does not do: {program.reason}")
    source = _source(found, rows, program, arguments, owner, groups)
    source.judged = judged
    fit = row_fit(found, rows, source, source.model, notes=notes)
    if abs(found.value) > ABSURD * len(rows):
        _refuse_rounded_away(fit.evidence)
    return _of_groups(fit, groups)


def _source(
    found: Found, rows: Rows, program: Program, arguments: Arguments, owner: Localized, groups: Grouping | None
) -> ProgramSource | GroupedProgramSource:
    if groups is None:
        return ProgramSource(found, rows, program, arguments, owner)
    return GroupedProgramSource(found, rows, program, arguments, groups)


def _of_groups(fit: Fit, groups: Grouping | None) -> Fit:
    return fit if groups is None else replace(fit, unit=groups.name, row_count=groups.row_count)


def stop_of(options: Mapping[str, Any]) -> Stop:
    """Tolerance and step limit, by method."""
    default = Stop() if options["method"] == "direct" else Stop(1e-8, 5000)
    rtol, steps = options.get("rtol"), options.get("max_steps")
    return Stop(
        default.rtol if rtol is None else check_real("rtol", rtol, "a number above 0", 0.0, ends=False),
        default.max_steps if steps is None else check_whole("max_steps", steps, 1),
    )


def start_vector(model: RowModel, given: Mapping[str, Any] | None) -> np.ndarray | None:
    """A start for the search from natural values, where some are given."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ModelError(f"start= is a table of values by name, of {names(model.start)}; got {given!r}.")
    for name in given:
        if name not in model.start:
            raise ModelError(
                f'start= names "{name}", but the parameters are {names(model.start)}.' + did_you_mean(name, model.start)
            )
    return model.parameters.vector({**model.start, **given})


class ProgramProblem(RowProblem):
    """A program whose fitted priors may run to the limit in which all rows share one value."""

    limit: _SharedValue | None = None
    watched: RunawayWatch
    little: float = 0.5
    """A parameter that runs off for a smaller gain than this (in nats) makes the limit worth a look."""

    def watch(self) -> RunawayWatch:
        parameters = self.model.parameters
        little = self.little if self.limit is not None else NEGLIGIBLE
        self.watched = RunawayWatch(parameters.constrained, parameters.free_labels, little, self.log_prior_at)
        return self.watched

    def on(self, rows: Rows) -> ProgramProblem:
        other = ProgramProblem(self.model, rows, self.passes.approx)
        other.limit, other.little = None, NEGLIGIBLE
        return other

    def at_end(self, found: Found, climb: Any) -> Found:
        found = self._unless_endless(found)
        if found.outcome.kind == "unbounded":
            return found
        ended = found.with_outcome("limit", found.outcome.text) if found.outcome.kind == "end" else found
        if self.limit is None or self.little == NEGLIGIBLE:
            return ended
        answer = self.limit.answer(ended)
        if answer is not None:
            return answer
        patient = self.fresh()
        assert isinstance(patient, ProgramProblem)
        patient.little = NEGLIGIBLE
        again = climb(patient, found.vector)
        return again if again.outcome.converged else patient.at_end(again, climb)

    def _unless_endless(self, found: Found) -> Found:
        """A climb that broke off, told from one that had no top to come to."""
        kind, watched = found.outcome.kind, self.watched
        which = watched.ran_far | watched.rising if kind == "stalled" else watched.ran_far
        if not which.any() and kind in ("stalled", "max_steps"):
            which = endless(self, found.optimum)
        return found.with_outcome("unbounded", watched.unbounded(which).text) if which.any() else found


def _refuse_rounded_away(evidence: np.ndarray) -> None:
    """Rows that a search seemed to come to terms with, at values where nothing but rounding is left of them."""
    bad = np.flatnonzero(~np.isfinite(evidence))
    if bad.size:
        more = f" and {bad.size - 1} more" if bad.size > 1 else ""
        raise FitError(
            f"row {bad[0]}{more} has no finite evidence ({evidence[bad[0]]}) where the search ended. Look for extreme or impossible values "
            "there, or give the data in larger units."
        )


def _can_degenerate(program: Program) -> bool:
    """Whether all rows sharing one value is a limit of the fitted priors."""
    request = program.request
    if not request.sites or any((request.hyperprior or {}).values()):
        return False
    return all(not program.held[site] and not inside(program.trace[site], program.plate) for site in request.sites)


class _SharedValue:
    """The limit in which all rows share the localized values."""

    def __init__(
        self, owner: Localized, program: Program, arguments: Arguments, rows: Rows, groups: Grouping | None = None
    ) -> None:
        self.owner, self.program, self.arguments, self.rows = owner, program, arguments, rows
        self.groups = groups

    def answer(self, found: Found) -> Found | None:
        """The fit with shared values, if no spread of them does better."""
        sites = self.program.request.sites
        inside: RowProblem = found.problem  # type: ignore[assignment]
        common = self.owner.common_program(self.program, self.arguments)
        model = common.row_model if self.groups is None else grouped_model(common.row_model)
        centre = {
            name: value
            for name, value in inside.model.parameters.natural(jnp.asarray(found.vector)).items()
            if name in model.start
        }
        start = model.parameters.vector({**model.start, **_prior_centres(self.program, found), **centre})
        try:
            shared = search(RowProblem(model, self._rows_of(common)), Stop(), start=start)
        except FitError:
            return None
        if not shared.outcome.converged or shared.value < found.value - 1e-6:
            return None
        slices = model.parameters.places
        place = np.concatenate([np.arange(*slices[site].indices(model.parameters.size)) for site in sites])
        problem: RowProblem = shared.problem  # type: ignore[assignment]
        if np.linalg.eigvalsh(heterogeneity(problem, shared.vector, place)).max() > 1e-9:
            return None
        text = (
            f"the rows show no heterogeneity in {names(sites)}, so the classical model is returned, with one value for all "
            f"rows (its log likelihood is {shared.value - found.value:.1e} above the best spread tried)."
        )
        steps = len(found.optimum.history) + len(shared.optimum.history)
        return shared.with_outcome("boundary", text, steps)

    def _rows_of(self, common: Program) -> Rows:
        """The rows as the classical model sees them: of a program that is run whole they bring along what it needs."""
        if not common.is_whole or self.groups is not None or self.rows.here is None:
            return self.rows
        return make_rows(*common.row_data(self.arguments), weights=self.rows.weight, chunk=self.rows.here.chunk)

    def as_fit(self, found: Found, judged: Callable[[], Judgement] | None = None) -> Fit:
        """The classical model as a result."""
        common = self.owner.common_program(self.program, self.arguments)
        theta = common.row_model.parameters.natural(jnp.asarray(found.vector))
        rows = found.problem.rows if isinstance(found.problem, RowProblem) else self.rows
        source = _source(found, rows, common, self.arguments, self.owner, self.groups)
        source.judged = judged
        limits, notes = limits_of(self.program, theta), (found.outcome.text, *found.notes)
        return _of_groups(row_fit(found, rows, source, source.model, limits=limits, notes=notes), self.groups)


def limits_of(program: Program, shared: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the arguments of the localized priors tend to when all rows share one value."""
    found: dict[str, dict[str, Any]] = {}
    for site in program.request.sites:
        inner, _ = hyper.core(program.trace[site]["fn"])
        if type(inner) in hyper.LOCATION_SCALE or "scale_tril" in program.free[site]:
            found[site] = {
                name: np.asarray(shared[site])
                if name == "loc"
                else np.zeros_like(np.asarray(argument.value, dtype=float))
                for name, argument in program.free[site].items()
                if name in ("loc", "scale", "scale_tril")
            }
        else:
            found[site] = dict.fromkeys(program.free[site], np.inf)
    return found


def _prior_centres(program: Program, found: Found) -> dict[str, Any]:
    """A typical value of each localized site under the prior reached so far."""
    theta = found.problem.parts[0].parameters.natural(jnp.asarray(found.vector))
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
