"""One pass over the rows of a model that states its :class:`~robustly.model.row.View`, such as a regression's linear predictor.

The numbers that rows see of the parameters are computed, and rows' derivatives in them carried back to the vector, by plain
linear algebra; only what happens within rows is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly._runtime.compiled import one_thread
from robustly._runtime.lasting import lasting_name
from robustly._runtime.precision import double_precision
from robustly.approx.base import Approximation
from robustly.approx.moments import second_order
from robustly.fit.passes import Chunk, ChunkPass, weighted_quantiles
from robustly.model.row import Row, RowModel, View, sent_back
from robustly.rows.store import Data


def pairs(size: int) -> list[tuple[int, int]]:
    """The entries of a symmetric matrix on and below its diagonal."""
    return [(i, j) for i in range(size) for j in range(i + 1)]


class RowKernel:
    """What happens within rows, compiled: functions of the numbers that a view has made of the parameters.

    Numbers are a tuple of arrays by row, or of single values where all rows share them. Get it from :func:`row_kernel`.
    """

    def __init__(self, model: RowModel, approx: Approximation) -> None:
        approx.check(model)
        self.model, self.approx = model, approx
        _ = model.parameters  # read now, as above
        self._kept: dict[Any, Callable[..., Any]] = {}
        self.samplers: dict[Any, dict[Any, Any]] = {}
        """Compiled samplers of posteriors, by what else they depend on."""

    def __reduce__(self) -> Any:
        return row_kernel, (self.model, self.approx)

    def by_row(
        self, function: Callable[..., Any], numbers: tuple[Array, ...], *more: Any, often: bool = False
    ) -> Callable[..., Any]:
        """``function(kernel, numbers, row, state, …)`` of one row for all; `more` says along which axes the rest runs.

        `often`: see :func:`~robustly._runtime.compiled.one_thread`.
        """
        axes = tuple(0 if np.ndim(number) else None for number in numbers)
        place = (function, axes, more, often)
        if place not in self._kept:
            name = lasting_name(self.model.made_by, self.approx, *place[:3]) if self.model.made_by else None
            each = jax.vmap(partial(function, self), (axes, 0, 0, *more))
            self._kept[place] = one_thread(each, name, often=often, older=True)
        return self._kept[place]

    def curves(
        self,
        numbers: tuple[Array, ...],
        row: Data,
        state: Array,
        rough: bool,
        held: tuple[int, ...] = (),
        often: bool = False,
    ) -> tuple[Any, Any, Any, Any]:
        """Every row's evidence, its slopes and curvatures (as :func:`pairs` orders them) in the numbers, and its state.

        They are zero in numbers that are `held`.
        """
        # What a search asks for again and again is compiled well where the approximation says that this pays.
        often = often or self.approx.repays_compiling
        return self.by_row(RowCurves(held), numbers, None, often=often)(numbers, row, state, rough)

    def expected(self, numbers: tuple[Array, ...], row: Data, state: Array, at: tuple[Any, ...]) -> tuple[Any, ...]:
        """As :meth:`curves`, of what EM maximises: the expected log density under posteriors found at the numbers `at`."""
        axes = tuple(0 if np.ndim(number) else None for number in numbers)
        return self.by_row(RowKernel._expected, numbers, axes)(numbers, row, state, at)

    def _expected(self, numbers: tuple[Array, ...], row: Row, state: Array, at: Array) -> tuple[Any, Any, Any, Any]:
        some = lambda *given: self.approx.expected(self.model, given, at, row, state.astype(float))
        value, slope, curve = second_order(some, numbers)
        return value, jnp.stack(slope), jnp.stack([curve[i, j] for i, j in pairs(len(numbers))]), state

    def values(self, numbers: tuple[Array, ...], row: Data, state: Array) -> tuple[Any, Any]:
        """Every row's evidence alone, and its state."""
        return self.by_row(RowKernel._value, numbers)(numbers, row, state)

    def _value(self, numbers: tuple[Array, ...], row: Row, state: Array) -> tuple[Any, Any]:
        state = jax.lax.stop_gradient(self.approx.find_mode(self.model, numbers, row, state.astype(float)))
        return self.approx.evidence(self.model, numbers, row, state), state

    def posterior(self, numbers: tuple[Array, ...], row: Data, state: Array, levels: Array) -> tuple[Any, Any, Any]:
        """Mean, standard deviation and quantiles of every row's own value."""
        return self.by_row(RowKernel._posterior, numbers, None)(numbers, row, state, levels)

    def _posterior(self, numbers: tuple[Array, ...], row: Row, state: Array, levels: Array) -> tuple[Any, Any, Any]:
        state = self.approx.find_mode(self.model, numbers, row, state.astype(float))
        u, log_share = self.approx.points(self.model, numbers, row, state)
        share = jnp.exp(log_share)
        natural = self.model.parameters.natural(numbers)
        own = jax.vmap(lambda point: self.model.local(point, natural, row)[0])(u)
        mean = share @ own
        sd = jnp.sqrt(jnp.maximum(share @ (own - mean) ** 2, 0.0))
        return mean, sd, weighted_quantiles(own, share, levels)


@dataclass(frozen=True)
class RowCurves:
    """What :meth:`RowKernel.curves` gives of one row."""

    held: tuple[int, ...]

    def __call__(
        self, kernel: RowKernel, numbers: tuple[Array, ...], row: Row, state: Array, rough: Any
    ) -> tuple[Any, Any, Any, Any]:
        model, approx = kernel.model, kernel.approx
        state = jax.lax.stop_gradient(approx.find_mode(model, numbers, row, state.astype(float)))

        def finish(u: Array, some: Sequence[Any]) -> Any:
            # What is held is not differentiated: the derivatives of a Student t in its degrees of freedom are half of a pass.
            moved = (jax.lax.stop_gradient(one) if i in self.held else one for i, one in enumerate(some))
            return model.log_joint(u, model.parameters.natural(tuple(moved)), row, None)

        found = approx.moments(model, finish, numbers, row, None, state, rough)
        curve = jnp.stack([found.curve[i, j] for i, j in pairs(len(numbers))])
        return found.evidence, found.score, curve, state


def row_kernel(model: RowModel, approx: Approximation) -> RowKernel:
    """The compiled functions of this model's rows, made once and kept as long as the model."""
    known = model.compiled.get((RowKernel, approx))
    return known or model.compiled.setdefault((RowKernel, approx), RowKernel(model, approx))


def view_pass(view: View, curves: Callable[..., tuple[Any, Any, Any, Any]], kernel: RowKernel) -> ChunkPass:
    """A pass of a model that states its view; theta is (what the view makes of the vector, what else `curves` takes).

    `curves` is :meth:`RowKernel.curves`, or one that gives the same some other way.
    """

    def begin(theta: Any, data: Data, count: int) -> np.ndarray:
        return kernel.approx.start_at(kernel.model, view.seen(data), view.enter(theta[0], data)[0], count)

    def run(theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
        at, more = theta
        with np.errstate(all="ignore"):  # Places too far out are told by values that are not finite.
            more = view.enter(more, data)[0] if curves == kernel.expected else more
            numbers, entered = view.enter(at, data)
            # Of one type from the first pass on: of two, every program would be compiled twice.
            state = None if state is None else np.asarray(state, np.float32)
            *parts, state = curves(numbers, view.seen(data), state, more)
            value, slope, curve = (np.asarray(part) for part in parts)
            sums, by_row = sent_back(view, entered, value, slope, curve, weight)
        # A warm start needs no more digits, and this is the one thing kept by row from pass to pass.
        return sums, by_row, None if state is None else np.asarray(state).astype(np.float32)

    return ChunkPass(run, begin, (view_pass, (view, curves, kernel)))


def view_values(view: View, kernel: RowKernel) -> ChunkPass:
    """As :func:`view_pass`, for evidences alone; theta is what the view makes of the vector."""

    def begin(theta: Any, data: Data, count: int) -> np.ndarray:
        return kernel.approx.start_at(kernel.model, view.seen(data), view.enter(theta, data)[0], count)

    def run(theta: Any, data: Data, weight: Array, state: Array) -> Chunk:
        with np.errstate(all="ignore"):
            value, state = kernel.values(view.enter(theta, data)[0], view.seen(data), np.asarray(state, np.float32))
            total = np.where(weight > 0, weight * np.asarray(value), 0.0).sum()
        return {"value": total}, {"evidence": value}, np.asarray(state).astype(np.float32)

    return ChunkPass(run, begin, (view_values, (view, kernel)))


@dataclass(frozen=True, eq=False)
class KernelPass:
    """A pass over what the kernel says of rows: ``run(numbers, row, state)``, and what ``finish(data, weight, found)`` makes of it.

    Without `finish` it comes by row, under the numbers of its parts.
    """

    view: View
    kernel: RowKernel
    run: Callable[..., Any]
    more: tuple[Any, ...] = ()
    finish: Callable[[Data, np.ndarray, tuple[Any, ...]], dict[str, Any]] | None = None

    def __call__(self, theta: Any, data: Data, weight: np.ndarray, state: Any) -> Chunk:
        with double_precision(), np.errstate(all="ignore"):
            numbers, _ = self.view.enter(theta, data)
            row = self.view.seen(data)
            if state is None:
                state = self.kernel.approx.start_at(self.kernel.model, row, numbers, len(weight))
            found = self.run(numbers, row, np.asarray(state, dtype=np.float32), *self.more)
            found = found if isinstance(found, tuple) else (found,)
            if self.finish is None:
                return {}, {str(i): part for i, part in enumerate(found)}, None
            return self.finish(data, weight, tuple(np.asarray(part) for part in found)), {}, None
