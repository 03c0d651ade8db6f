r"""How is a row's local value integrated out? The common shape of every answer.

An :class:`Approximation` is a small frozen object. For one row it finds a state (usually the mode of the row's
posterior, kept from pass to pass as a warm start), and from it gives the evidence :math:`\log p(x_i \mid \theta)`,
weighted points of the posterior, and the expected log density that EM climbs. Most answers deal with one smooth
function; discrete row latents are summed over around them, outside the integral.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.special import logsumexp

from robustly.approx.grid import fine_points
from robustly.approx.moments import Finish, Moments, second_order
from robustly.model.parameters import Theta
from robustly.model.row import Latent, Row, RowModel


class Approximation(ABC):
    """A way to integrate a row's local value out. Subclasses are frozen dataclasses, compared by value."""

    is_bound: ClassVar[bool] = False
    """Whether the reported evidence is never above the true one (up to the accuracy of the arithmetic)."""
    is_exact: ClassVar[bool] = False

    @property
    def repays_compiling(self) -> bool:
        """Whether looks at few rows take so long that compiling them well, a second longer, is made up for."""
        return False

    def describe(self) -> str:
        """How a local is integrated, in words."""
        return repr(self)

    def check(self, model: RowModel) -> None:  # noqa: B027
        """Raise a ModelError when this answer does not fit the model."""

    @abstractmethod
    def start(self, model: RowModel) -> np.ndarray:
        """The state of a row before the first pass."""

    def start_at(self, model: RowModel, rows: Any, numbers: Sequence[Array], count: int) -> np.ndarray:
        """The states of so many rows before the first pass, nearer to what they will be where the model has a guess."""
        one = self.start(model)
        return np.broadcast_to(one, (count, *one.shape))

    @abstractmethod
    def find_mode(self, model: RowModel, vector: Array, row: Row, state: Array) -> Array:
        """The state at the current parameters, searched for from the last one; no derivative passes through it."""

    @abstractmethod
    def evidence(self, model: RowModel, vector: Array, row: Row, state: Array) -> Array:
        """log p(row), with exact first and second derivatives in `vector`."""

    def has_moments(self, model: RowModel) -> bool:
        """Whether derivatives come as posterior moments at fixed points, so that one look at the points gives all."""
        return False

    def has_coarse_rule(self, model: RowModel) -> bool:
        """Whether :meth:`moments` has fewer points to offer for a rough look."""
        return self.has_moments(model)

    def moments(
        self,
        model: RowModel,
        finish: Finish,
        numbers: Sequence[Array],
        row: Row,
        z: Latent,
        state: Array,
        rough: Array | bool,
    ) -> Moments:
        """Evidence of a row, with its slope and curvature in the few `numbers` by which parameters enter it.

        ``finish(u, numbers)`` is the log joint density. Where `rough`, a coarser rule will do. Without moments, numbers
        are all that parameters are, and the evidence is differentiated.
        """
        if self.has_moments(model):
            raise TypeError(f"{self!r} says that it has moments, and gives none.")
        value, slope, curve = second_order(lambda *some: self.evidence(model, some, row, state), tuple(numbers))
        return Moments(value, value, jnp.stack(slope), curve)

    @abstractmethod
    def anchor(self, model: RowModel, centre: Any, row: Any, state: Any) -> Any:
        """What :meth:`evidence_around` needs of a row, whose state was found at the parameters `centre`."""

    @abstractmethod
    def evidence_around(self, model: RowModel, vector: Array, row: Row, anchor: Any) -> Array:
        """log p(row) at parameters not far from where the anchor was set; cheap and smooth."""

    @abstractmethod
    def expected(self, model: RowModel, vector: Array, at: Array, row: Row, state: Array) -> Array:
        """EM's objective for one row: E log p(row, local | vector) under the posterior held at `at`."""

    @abstractmethod
    def points(self, model: RowModel, vector: Array, row: Row, state: Array) -> tuple[Any, Any]:
        """Points ``u`` (m, dim) and log weights (m,) that stand for the posterior of one row."""

    def coarser(self) -> Approximation:
        """The same answer with half the points, where that may still do; itself where there is nothing to save."""
        return self

    def for_draws(self, model: RowModel) -> Approximation:
        """What draws of the parameters can do with, whose log densities need agree to some hundredths only."""
        return self

    def finer(self) -> Approximation:
        """The same answer with twice the points, to see how far it is off; itself where there is nothing to refine."""
        return self


class Enumerating(Approximation):
    """Answers for one smooth function of the local value; discrete row latents are summed over around them."""

    def start(self, model: RowModel) -> np.ndarray:
        return np.zeros(self._stacked(model, (model.dim,)))

    def find_mode(self, model: RowModel, vector: Array, row: Row, state: Array) -> Array:
        theta = model.parameters.natural(vector)
        if model.latents is None:
            return self._find_mode(model, theta, row, None, state)
        return jax.vmap(lambda z, s: self._find_mode(model, theta, row, z, s))(jnp.asarray(model.latents), state)

    def evidence(self, model: RowModel, vector: Array, row: Row, state: Array) -> Array:
        each = lambda z, s: self._evidence(model, vector, row, z, s)
        if model.latents is None:
            return each(None, state)
        return logsumexp(jax.vmap(each)(jnp.asarray(model.latents), state))

    def anchor(self, model: RowModel, centre: Any, row: Any, state: Any) -> Any:
        each = lambda z, s: self._anchor(model, centre, row, z, s)
        if model.latents is None:
            return each(None, state)
        return jax.vmap(each)(jnp.asarray(model.latents), state)

    def evidence_around(self, model: RowModel, vector: Array, row: Row, anchor: Any) -> Array:
        each = lambda z, a: self._evidence_around(model, vector, row, z, a)
        if model.latents is None:
            return each(None, anchor)
        return logsumexp(jax.vmap(each)(jnp.asarray(model.latents), anchor))

    def expected(self, model: RowModel, vector: Array, at: Array, row: Row, state: Array) -> Array:
        if model.latents is None:
            return self._expected(model, vector, at, row, None, state)
        latents = jnp.asarray(model.latents)
        log_shares = jax.vmap(lambda z, s: self._evidence(model, at, row, z, s))(latents, state)
        shares = jax.lax.stop_gradient(jax.nn.softmax(log_shares))
        each = jax.vmap(lambda z, s: self._expected(model, vector, at, row, z, s))(latents, state)
        return jnp.sum(jnp.where(shares > 0, shares * each, 0.0))

    def points(self, model: RowModel, vector: Array, row: Row, state: Array) -> tuple[Any, Any]:
        theta = model.parameters.natural(vector)
        if model.latents is None:
            u, weight = self._points(model, theta, row, None, state)
        else:
            latents = jnp.asarray(model.latents)
            u, weight = jax.vmap(lambda z, s: self._points(model, theta, row, z, s))(latents, state)
            if (moved := model.moved) is not None:
                u = jax.vmap(lambda z, some: jax.vmap(lambda one: moved(one, theta, row, z))(some))(latents, u)
            u, weight = u.reshape(-1, model.dim), weight.reshape(-1)
        return u, weight - logsumexp(weight)

    @abstractmethod
    def _find_mode(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> Array: ...

    @abstractmethod
    def _evidence(self, model: RowModel, vector: Array, row: Row, z: Latent, state: Array) -> Array: ...

    def _anchor(self, model: RowModel, centre: Any, row: Any, z: Any, state: Any) -> Any:
        return state

    def _evidence_around(self, model: RowModel, vector: Array, row: Row, z: Latent, anchor: Any) -> Array:
        return self._evidence(model, vector, row, z, anchor)

    @abstractmethod
    def _expected(self, model: RowModel, vector: Array, at: Array, row: Row, z: Latent, state: Array) -> Array: ...

    def _points(self, model: RowModel, theta: Theta, row: Row, z: Latent, state: Array) -> tuple[Any, Any]:
        """Fine points of the true posterior around its mode; the state's first `dim` entries are the mode."""
        return fine_points(lambda u: model.log_joint(u, theta, row, z), state[: model.dim], model.dim)

    @staticmethod
    def _stacked(model: RowModel, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if model.latents is None else (len(model.latents), *shape)
