"""From any row model and its rows to a :class:`~robustly.result.fit.Fit`, and what can be asked of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly._runtime.precision import in_double_precision
from robustly.approx import QMC, Approximation, Quadrature
from robustly.errors import ModelError
from robustly.fit.draws import Draws, Posterior, regular_covariance
from robustly.fit.em import em
from robustly.fit.outcome import Stop, warn_unless_converged
from robustly.fit.passes import Passes, passes
from robustly.fit.problem import Found, RowProblem
from robustly.fit.search import search
from robustly.localized.judging import judge_precisions
from robustly.model.conjugacy import detect
from robustly.model.parameters import Theta
from robustly.model.row import RowModel
from robustly.model.wide_curvature import Curve
from robustly.result.estimates import Hyperparameters, nested
from robustly.result.fit import Fit
from robustly.result.laws import LEVELS, ByRow, RowPosterior
from robustly.result.outliers import JUDGED, Judgement
from robustly.result.source import FittedModel, Source
from robustly.rows.arrays import ArrayRows, make_rows, read_weights
from robustly.rows.store import Data, Rows
from robustly.rows.streamed import StreamedRows


class UnstatedModel:
    """A row model given as functions: it does not say how observations are drawn, and no file keeps functions."""

    kind = "fit"

    def predictive(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ByRow:
        raise ModelError(
            "a row model does not say how new observations are drawn; predictive() needs a NumPyro program."
        )

    def to_saved(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return {"call": {"sites": [], "rows": None, "plate": None}}, {}


class RowSource(Source):
    """What a fit can still ask of its rows, for any row model."""

    judged: Callable[[], Judgement] | None = None
    """What a law in two parts says of the rows, where one was asked for."""

    def __init__(self, found: Found, rows: Rows) -> None:
        self.found = found
        self.rows = rows
        self.compiled: dict[Any, Any] = {}
        if rows.here is None:
            self.keeps = ()

    @property
    def problem(self) -> RowProblem:
        assert isinstance(self.found.problem, RowProblem)
        return self.found.problem

    @property
    def passes(self) -> Passes:
        return self.problem.passes

    def _by_row(self, chunk_pass: Any, theta: Any) -> Mapping[str, np.ndarray]:
        return self.rows.map(chunk_pass, theta, keep=self.problem.slot).by_unit

    @property
    def vector(self) -> np.ndarray:
        return self.found.optimum.vector

    @in_double_precision
    def natural_by_name(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Natural values at many vectors (chain, draw, entry)."""
        found = self.passes.model.parameters.natural_of_many(np.asarray(vectors))
        return {name: np.asarray(value) for name, value in found.items()}

    def curve(self, seen: Curve) -> np.ndarray:
        return self.found.curve

    def evidence(self) -> np.ndarray:
        """log p(row) for every row."""
        return self.found.evidence

    @in_double_precision
    def scores(self) -> np.ndarray:
        """Slope of every row's evidence in the vector."""
        return self._by_row(self.passes.scores, self.vector)["score"]

    @in_double_precision
    def meat(self, weight: np.ndarray) -> np.ndarray:
        return self.rows.map(self.passes.scores, self.vector, keep=self.problem.slot).sums["meat"]

    @in_double_precision
    def evidence_at(self, vectors: np.ndarray) -> np.ndarray:
        """Evidence of every row at other vectors: (vector, row)."""
        return np.stack([self._by_row(self.passes.values, vector)["evidence"] for vector in vectors])

    @in_double_precision
    def integration_error(self) -> float:
        """Change of the log likelihood with twice the points a row."""
        finer = self.passes.approx.finer()
        if finer == self.passes.approx:
            if self.passes.approx.is_exact:
                return 0.0
            dim = self.passes.model.dim
            finer = Quadrature(101) if dim == 1 else Quadrature(9) if dim <= 3 else QMC(2048)
        compiled = passes(self.passes.model, finer)
        return abs(float(self.rows.map(compiled.values, self.vector).sums["value"]) - self.found.log_likelihood)

    def has_posterior(self, site: str) -> bool:
        return self.passes.model.dim > 0

    @in_double_precision
    def posterior(self, site: str | None) -> RowPosterior:
        """Means, standard deviations and quantiles of the rows' own values."""
        by_row = self._by_row(self.passes.posteriors, (self.vector, LEVELS))
        shape, part = self._shape_of(site)
        cut = lambda a: a[:, part].reshape(len(self.rows), *shape, *a.shape[2:])
        return RowPosterior(cut(by_row["mean"]), cut(by_row["sd"]), LEVELS, cut(by_row["quantile"]))

    def _shape_of(self, site: str | None) -> tuple[tuple[int, ...], slice]:
        return self.passes.model.local_shape, slice(None)

    def tail_probabilities(self) -> np.ndarray:
        raise ModelError("a row model does not say how observations are drawn, so it has no tail probabilities.")

    @in_double_precision
    def judge(self) -> Judgement | None:
        """By a core and a wide part where rows have precisions of their own; by tails elsewhere."""
        if self.judged is not None:
            return self.judged()
        model = self.passes.model
        theta = model.parameters.natural(jnp.asarray(self.vector))
        rows = self.rows
        if rows.here is None and len(rows) <= JUDGED:
            rows = rows.sample(len(rows), 0)
        if not isinstance(rows, ArrayRows | StreamedRows):
            return None  # by their tails: what judges is compiled here and cannot be sent
        return judge_precisions(model, rows, theta, self.compiled)

    def has_closed_tails(self) -> bool:
        return False

    def log_prior(self, theta: Theta) -> Array:
        """What is added to the hyperprior when a full posterior is drawn."""
        return jnp.zeros(())

    def sample_posterior(self, num_samples: int, key: Any, num_warmup: int, num_chains: int) -> Draws:
        """Draws of the parameters."""
        model = self.passes.model

        def log_prior(vector: Array, beside: Any) -> Array:
            theta = model.parameters.natural(vector)
            return model.log_hyperprior(theta) + self.log_prior(theta) + model.parameters.log_volume(vector)

        covariance = regular_covariance(self.found.optimum.curve)
        posterior = Posterior(self.problem, log_prior, self.vector, covariance, self.compiled)
        vectors, divergences = posterior.draw(num_samples, num_warmup, num_chains, key)
        return Draws(self.natural_by_name(vectors), vectors, divergences)


def row_fit(
    found: Found,
    rows: Rows,
    source: RowSource,
    fitted: FittedModel,
    *,
    limits: dict[str, dict[str, Any]] | None = None,
    notes: tuple[str, ...] | None = None,
) -> Fit:
    """A result from what a search found."""
    (model, approx), optimum = found.problem.parts, found.optimum
    parameters = model.parameters
    numbers = parameters.numbers(optimum.vector)
    return Fit(
        parameters=numbers,
        labels=parameters.labels,
        vector=optimum.vector,
        jacobian=parameters.jacobian(optimum.vector),
        curve=optimum.curve,
        objective=optimum.value,
        evidence_by_row=None,
        summed_evidence=found.log_likelihood,
        weight=rows.weight,
        outcome=optimum.outcome,
        history=optimum.history,
        model=fitted,
        **told_apart(numbers, limits or {}),
        approximation=repr(approx),
        is_bound=approx.is_bound,
        scales=parameters.scales,
        source=source,
        notes=found.notes if notes is None else notes,
    )


def told_apart(parameters: Mapping[str, Any], limits: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Which numbers belong to the priors of local sites, and which all rows share."""
    return {
        "hyperparameters": Hyperparameters({**nested(parameters), **limits}),
        "shared": {name: value for name, value in parameters.items() if "." not in name},
        "limits": limits,
    }


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
            a single array. Or a store of rows, a :class:`~robustly.rows.store.Rows`: its `labels` name the entries of
            a row, which is a tuple where there are none.
        approx, method, weights, start, stop, chunk: as in ``localize(...).fit``; a store has chunks of its own.
    """
    if isinstance(data, Rows):
        if chunk is not None:
            raise ModelError(f"chunk={chunk} came with a store of rows, which cuts its rows itself. Leave chunk out.")
        rows = data if weights is None else data.weighed(read_weights(weights, len(data)))
        packed = _unpacking(model, rows.labels, lambda row: dict(zip(rows.labels, row)) if rows.labels else row, rows)
    else:
        leaves, tree = jax.tree.flatten(_as_arrays(data))
        labels = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(_as_arrays(data))[0]]
        rows = make_rows(leaves, labels, weights=weights, chunk=chunk)
        packed = _unpacking(model, tree, lambda row: jax.tree.unflatten(tree, row), rows)
    begin = None if start is None else packed.parameters.vector({**packed.start, **start})
    found = find(RowProblem(packed, rows, approx), method, stop, begin)
    fit = row_fit(found, rows, RowSource(found, rows), UnstatedModel())
    warn_unless_converged(fit.outcome)
    return fit


def _as_arrays(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: np.asarray(value) for name, value in data.items()}
    if isinstance(data, tuple):
        return tuple(np.asarray(value) for value in data)
    return np.asarray(data)


_UNPACKED: dict[tuple[int, Any], tuple[RowModel, RowModel]] = {}


def _unpacking(model: RowModel, tree: Any, row_of: Callable[[Data], Any], rows: Rows) -> RowModel:
    """The same model, reading rows from a flat tuple, with its conjugacy if it has one; looked for once."""
    known = _UNPACKED.get((id(model), tree))
    if known is not None and known[0] is model:
        return known[1]
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
    unpacked, _ = detect(replace(model, **changes), rows)
    if len(_UNPACKED) > 64:
        _UNPACKED.clear()
    _UNPACKED[(id(model), tree)] = (model, unpacked)
    return unpacked


def find(
    problem: RowProblem, method: str, stop: Stop | None, start: np.ndarray | None = None, report: Any = None
) -> Found:
    """The parameters, by the method asked for."""
    if method == "em":
        return em(problem, stop or Stop(1e-8, 5000), start=start, report=report)
    return search(problem, stop or Stop(), start=start, report=report)
