r"""How is a row's local value integrated out? The common shape of every answer.

An :class:`Approximation` is a small frozen object. For one row it *settles* a state (usually the mode of the row's
posterior, kept from pass to pass as a warm start), and from it gives the evidence :math:`\log p(x_i \mid \theta)`,
weighted points of the posterior, and the expected log density that EM climbs. Most answers deal with one smooth
function; discrete row latents are summed over around them, outside the integral.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from robustly.approx.grid import fine_points
from robustly.approx.moments import Moments
from robustly.model.parameter_cut import Narrow
from robustly.model.row import RowModel


class Approximation(ABC):
    """A way to integrate a row's local value out. Subclasses are frozen dataclasses, compared by value."""

    is_bound: ClassVar[bool] = False
    """Whether the reported evidence is never above the true one (up to the accuracy of the arithmetic)."""
    is_exact: ClassVar[bool] = False

    def check(self, model: RowModel) -> None:  # noqa: B027
        """Raise a ModelError when this answer does not fit the model."""

    @abstractmethod
    def start(self, model: RowModel) -> np.ndarray:
        """The state of a row before the first pass."""

    @abstractmethod
    def settle(self, model: RowModel, vector: Any, row: Any, state: Any) -> Any:
        """The state at the current parameters; no derivative passes through it."""

    @abstractmethod
    def evidence(self, model: RowModel, vector: Any, row: Any, state: Any) -> Any:
        """log p(row), with exact first and second derivatives in `vector`."""

    def is_fine(self, model: RowModel) -> bool:
        """Whether :meth:`moments` can be had, and integrates so well that derivatives may take its points as fixed."""
        return False

    def moments(
        self, model: RowModel, view: Narrow, theta: Any, scalars: Any, row: Any, z: Any, state: Any, rough: Any
    ) -> Moments:
        """Evidence and posterior moments of a row's derivatives in the `scalars` of ``view``; see :meth:`is_fine`.

        Where `rough`, with fewer points.
        """
        raise TypeError(f"{self!r} has no moments.")

    @abstractmethod
    def anchor(self, model: RowModel, centre: Any, row: Any, state: Any) -> Any:
        """What :meth:`evidence_around` needs of a row, settled at the parameters `centre`."""

    @abstractmethod
    def evidence_around(self, model: RowModel, vector: Any, row: Any, anchor: Any) -> Any:
        """log p(row) at parameters not far from where the anchor was set; cheap and smooth."""

    @abstractmethod
    def expected(self, model: RowModel, vector: Any, at: Any, row: Any, state: Any) -> Any:
        """EM's objective for one row: E log p(row, local | vector) under the posterior held at `at`."""

    @abstractmethod
    def points(self, model: RowModel, vector: Any, row: Any, state: Any) -> tuple[Any, Any]:
        """Points ``u`` (m, dim) and log weights (m,) that stand for the posterior of one row."""

    def coarser(self) -> Approximation:
        """The same answer with half the points, where that may still do; itself where there is nothing to save."""
        return self

    def finer(self) -> Approximation:
        """The same answer with twice the points, to see how far it is off; itself where there is nothing to refine."""
        return self


class Enumerating(Approximation):
    """Answers for one smooth function of the local value; discrete row latents are summed over around them."""

    def start(self, model: RowModel) -> np.ndarray:
        return np.zeros(self._stacked(model, (model.dim,)))

    def settle(self, model: RowModel, vector: Any, row: Any, state: Any) -> Any:
        theta = model.parameters.natural(vector)
        if model.latents is None:
            return self._settle(model, theta, row, None, state)
        return jax.vmap(lambda z, s: self._settle(model, theta, row, z, s))(jnp.asarray(model.latents), state)

    def evidence(self, model: RowModel, vector: Any, row: Any, state: Any) -> Any:
        each = lambda z, s: self._evidence(model, vector, row, z, s)
        if model.latents is None:
            return each(None, state)
        return logsumexp(jax.vmap(each)(jnp.asarray(model.latents), state))

    def anchor(self, model: RowModel, centre: Any, row: Any, state: Any) -> Any:
        each = lambda z, s: self._anchor(model, centre, row, z, s)
        if model.latents is None:
            return each(None, state)
        return jax.vmap(each)(jnp.asarray(model.latents), state)

    def evidence_around(self, model: RowModel, vector: Any, row: Any, anchor: Any) -> Any:
        each = lambda z, a: self._evidence_around(model, vector, row, z, a)
        if model.latents is None:
            return each(None, anchor)
        return logsumexp(jax.vmap(each)(jnp.asarray(model.latents), anchor))

    def expected(self, model: RowModel, vector: Any, at: Any, row: Any, state: Any) -> Any:
        if model.latents is None:
            return self._expected(model, vector, at, row, None, state)
        latents = jnp.asarray(model.latents)
        log_shares = jax.vmap(lambda z, s: self._evidence(model, at, row, z, s))(latents, state)
        shares = jax.lax.stop_gradient(jax.nn.softmax(log_shares))
        each = jax.vmap(lambda z, s: self._expected(model, vector, at, row, z, s))(latents, state)
        return jnp.sum(jnp.where(shares > 0, shares * each, 0.0))

    def points(self, model: RowModel, vector: Any, row: Any, state: Any) -> tuple[Any, Any]:
        theta = model.parameters.natural(vector)
        if model.latents is None:
            u, weight = self._points(model, theta, row, None, state)
        else:
            latents = jnp.asarray(model.latents)
            u, weight = jax.vmap(lambda z, s: self._points(model, theta, row, z, s))(latents, state)
            u, weight = u.reshape(-1, model.dim), weight.reshape(-1)
        return u, weight - logsumexp(weight)

    @abstractmethod
    def _settle(self, model: RowModel, theta: Any, row: Any, z: Any, state: Any) -> Any: ...

    @abstractmethod
    def _evidence(self, model: RowModel, vector: Any, row: Any, z: Any, state: Any) -> Any: ...

    def _anchor(self, model: RowModel, centre: Any, row: Any, z: Any, state: Any) -> Any:
        return state

    def _evidence_around(self, model: RowModel, vector: Any, row: Any, z: Any, anchor: Any) -> Any:
        return self._evidence(model, vector, row, z, anchor)

    @abstractmethod
    def _expected(self, model: RowModel, vector: Any, at: Any, row: Any, z: Any, state: Any) -> Any: ...

    def _points(self, model: RowModel, theta: Any, row: Any, z: Any, state: Any) -> tuple[Any, Any]:
        """Fine points of the true posterior around its mode; the state's first `dim` entries are the mode."""
        return fine_points(lambda u: model.log_joint(u, theta, row, z), state[: model.dim], model.dim)

    @staticmethod
    def _stacked(model: RowModel, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if model.latents is None else (len(model.latents), *shape)
