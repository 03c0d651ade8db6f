"""From a program and its rows to a :class:`~robustly.fit.result.Fit`, and what can be asked of it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly.approx import Approximation
from robustly.errors import DataError, FitError, ModelError, names
from robustly.fit.boundary import RunawayWatch, heterogeneity
from robustly.fit.em import em
from robustly.fit.maximize import Found, maximize, settled
from robustly.fit.outcome import Outcome, Stop, warn_unless_converged
from robustly.fit.passes import Passes
from robustly.fit.result import Fit, RowPosterior
from robustly.fit.uncertainty import Draws, nuts
from robustly.localized.predictor import Predictor, without_observations
from robustly.model import hyper
from robustly.model.arguments import Arguments, read_arguments
from robustly.model.program import Program
from robustly.model.row import RowModel
from robustly.precision import double_precision, in_double_precision
from robustly.predict import Predictive
from robustly.rows.arrays import Rows, make_rows
from robustly.rows.reduce import over_rows

if TYPE_CHECKING:
    from robustly.localized.model import Localized

LEVELS = np.array([0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975, 0.99, 0.995, 0.999])
SURPRISE_DRAWS = 999
# A parameter that runs off for a smaller gain than this (in nats) has reached its limit.
NEGLIGIBLE = 1e-6


class RowSource:
    """What a fit can still ask of its rows, for any row model."""

    def __init__(self, found: Found, rows: Rows) -> None:
        self.found = found
        self.rows = rows
        self.compiled: dict[Any, Any] = {}

    @property
    def passes(self) -> Passes:
        return self.found.passes

    @property
    def vector(self) -> np.ndarray:
        return self.found.optimum.vector

    @in_double_precision
    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Natural values at many vectors (chain, draw, entry)."""
        parameters = self.passes.model.parameters
        found = jax.vmap(jax.vmap(parameters.natural))(jnp.asarray(vectors))
        return {name: np.asarray(value) for name, value in found.items()}

    @in_double_precision
    def scores(self) -> np.ndarray:
        """Slope of every row's evidence in the vector."""
        x = jnp.asarray(self.vector)
        return over_rows(self.passes.scores, self.rows, self.found.state, x)[1]["score"]

    @in_double_precision
    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        """Evidence of every row at other vectors: (vector, row)."""
        one = lambda v: over_rows(self.passes.values, self.rows, self.found.state, jnp.asarray(v))[1]["evidence"]
        return np.stack([one(vector) for vector in vectors])

    @in_double_precision
    def integration_error(self) -> float:
        """Change of the log likelihood with twice the points a row."""
        from robustly.fit.passes import passes

        finer = self.passes.approx.finer()
        if finer == self.passes.approx:
            if self.passes.approx.is_exact:
                return 0.0
            from robustly.approx import QMC, Quadrature

            dim = self.passes.model.dim
            finer = Quadrature(101) if dim == 1 else Quadrature(9) if dim <= 3 else QMC(2048)
        compiled = passes(self.passes.model, finer)
        sums, _ = over_rows(compiled.values, self.rows, compiled.begin(self.rows), jnp.asarray(self.vector))
        return abs(float(sums["value"]) - float(self.rows.weight @ self.found.evidence))

    def has_posterior(self, site: str) -> bool:
        return self.passes.model.dim > 0

    @in_double_precision
    def posterior(self, site: str) -> RowPosterior:
        """Means, standard deviations and quantiles of the rows' own values."""
        x = jnp.asarray(self.vector)
        by_row = over_rows(self.passes.posteriors, self.rows, self.found.state, x, jnp.asarray(LEVELS))[1]
        shape, part = self._shape_of(site)
        cut = lambda a: a[:, part].reshape(len(self.rows), *shape, *a.shape[2:])
        return RowPosterior(cut(by_row["mean"]), cut(by_row["sd"]), LEVELS, cut(by_row["quantile"]))

    def _shape_of(self, site: str) -> tuple[tuple[int, ...], slice]:
        return self.passes.model.local_shape, slice(None)

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise ModelError(
            "a row model does not say how new observations are drawn; predictive() needs a NumPyro program."
        )

    def tail_probabilities(self) -> np.ndarray:
        raise ModelError("a row model does not say how observations are drawn, so it has no tail probabilities.")

    def log_prior(self, theta: Any) -> Any:
        """What is added to the hyperprior when a full posterior is drawn."""
        return jnp.zeros(())

    def describe(self) -> dict[str, Any]:
        return {"sites": [], "rows": None, "plate": None}

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        """NUTS draws of the parameters."""
        curve = self.found.optimum.curve
        values, vectors = np.linalg.eigh(-curve)
        covariance = (vectors / np.maximum(np.abs(values), 1e-8 * np.abs(values).max())) @ vectors.T
        return nuts(
            self.passes,
            self.rows,
            self.found.state,
            self.vector,
            covariance,
            self.log_prior,
            num_samples,
            num_warmup,
            num_chains,
            key,
            self.compiled,
        )


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
    from robustly.model.trace import inside

    return inside(program.trace[name], program.plate)


def make_fit(found: Found, rows: Rows, source: RowSource, **more: Any) -> Fit:
    """A result from what a search found."""
    model, optimum = found.passes.model, found.optimum
    parameters = model.parameters
    return Fit(
        parameters=parameters.numbers(optimum.vector),
        labels=parameters.labels,
        vector=optimum.vector,
        jacobian=parameters.jacobian(optimum.vector),
        curve=optimum.curve,
        objective=optimum.value,
        evidence=found.evidence,
        weight=rows.weight,
        outcome=optimum.outcome,
        history=optimum.history,
        approximation=repr(found.passes.approx),
        is_bound=found.passes.approx.is_bound,
        scales=parameters.scales,
        source=source,
        **{"notes": found.notes, **more},
    )


@in_double_precision
def fit_rows(
    model: RowModel,
    data: Any,
    *,
    approx: Approximation | None = None,
    method: str = "direct",
    weights: Any = None,
    start: Mapping[str, Any] | None = None,
    stop: Stop | None = None,
    chunk: int | None = None,
) -> Fit:
    """Fit a :class:`RowModel` given directly.

    Args:
        model: the functions of one row.
        data: arrays whose leading axis counts rows: a dictionary (then ``row["name"]`` is one row's entry), a tuple, or
            a single array.
        approx, method, weights, start, stop, chunk: as in ``localize(...).fit``.
    """
    leaves, tree = jax.tree.flatten(_as_arrays(data))
    labels = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(_as_arrays(data))[0]]
    rows = make_rows(leaves, labels, weights=weights, chunk=chunk)
    packed = _unpacking(model, tree)
    found = _search(
        packed,
        rows,
        approx,
        method,
        stop,
        None if start is None else packed.parameters.vector({**packed.start, **start}),
    )
    fit = make_fit(found, rows, RowSource(found, rows))
    warn_unless_converged(fit.outcome)
    return fit


def _as_arrays(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: np.asarray(value) for name, value in data.items()}
    if isinstance(data, tuple):
        return tuple(np.asarray(value) for value in data)
    return np.asarray(data)


_UNPACKED: dict[tuple[int, Any], tuple[RowModel, RowModel]] = {}


def _unpacking(model: RowModel, tree: Any) -> RowModel:
    """The same model, reading rows from a flat tuple."""
    known = _UNPACKED.get((id(model), tree))
    if known is not None and known[0] is model:
        return known[1]
    row_of = lambda row: jax.tree.unflatten(tree, row)
    changes: dict[str, Any] = {}
    if model.latents is None:
        changes["log_likelihood"] = lambda local, theta, row: model.log_likelihood(local, theta, row_of(row))
    else:
        changes["log_likelihood"] = lambda local, theta, row, z: model.log_likelihood(local, theta, row_of(row), z)
    if model.log_prior is not None:
        log_prior = model.log_prior
        changes["log_prior"] = lambda local, theta, row: log_prior(local, theta, row_of(row))
    for name in ("prior", "center"):
        function = getattr(model, name)
        if function is not None:
            changes[name] = lambda theta, row, function=function: function(theta, row_of(row))
    if model.transform is not None:
        transform = model.transform
        changes["transform"] = lambda u, theta, row: transform(u, theta, row_of(row))
    if model.joint is not None:
        joint = model.joint
        changes["joint"] = lambda u, theta, row, z=None: joint(u, theta, row_of(row), z)
    unpacked = replace(model, **changes)
    if len(_UNPACKED) > 64:
        _UNPACKED.clear()
    _UNPACKED[(id(model), tree)] = (model, unpacked)
    return unpacked


def _search(
    model: RowModel,
    rows: Rows,
    approx: Approximation | None,
    method: str,
    stop: Stop | None,
    start: np.ndarray | None,
    watch: Any = None,
    report: Any = None,
) -> Found:
    if method == "em":
        return em(model, rows, approx, stop=stop or Stop(1e-8, 5000), start=start, report=report)
    return maximize(model, rows, approx, stop=stop or Stop(), start=start, watch=watch, report=report)


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
        found = _search(model, rows, options["approx"], options["method"], stop, start, watch, report)
        if degenerate and found.optimum.outcome.kind != "converged":
            limit = _classical_limit(owner, program, arguments, rows, found)
            if limit is not None:
                return limit
            watch = RunawayWatch(walled, labels, NEGLIGIBLE)
            found = _search(model, rows, options["approx"], "direct", stop, found.optimum.vector, watch, report)
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
    common = Program(replace(program.request, sites=(), flat=sites, fixed=None), arguments)
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
        found = Found(
            optimum, passes(model, default_approximation(model)), fit.evidence, np.zeros((0,)), np.zeros((0,))
        )
        return ProgramSource(found, rows, program, arguments, owner)
