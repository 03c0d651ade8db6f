"""Which numbers are fitted? Named values with constraints, seen as one unconstrained vector.

Row models speak of natural values (a scale is positive, a probability lies between 0 and 1); searches want a vector
without walls. :class:`Parameters` goes back and forth, and carries derivatives along for standard errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.special import expit

from robustly._runtime.precision import in_double_precision
from robustly.errors import ModelError, names

Theta = Mapping[str, Array]


class _AsItIs:
    """The map of a number without limits to the vector."""

    def __call__(self, value: Array) -> Array:
        return value

    inv = __call__

    def log_abs_det_jacobian(self, value: Array, image: Array) -> Array:
        return jnp.zeros(())


def _map_to(limit: Any) -> Any:
    """From the vector to values within a NumPyro constraint; None is no constraint."""
    if limit is None:
        return _AsItIs()
    from numpyro.distributions import biject_to

    return biject_to(limit)


class Parameters:
    """Named parameters: start values in natural form, a constraint for each, and the map to a flat vector."""

    @in_double_precision
    def __init__(
        self,
        start: Mapping[str, Any],
        limits: Mapping[str, Any] | None = None,
        fixed: Mapping[str, Any] | None = None,
    ) -> None:
        limits = dict(limits or {})
        self.fixed = {name: jnp.asarray(value, dtype=float) for name, value in (fixed or {}).items()}
        unknown = [name for name in limits if name not in start]
        if unknown:
            raise ModelError(f"constraints name {names(unknown)}, but the parameters are {names(start)}.")
        self.names = tuple(start)
        self.limits = {name: limits.get(name) for name in self.names}
        self.shapes = {name: np.shape(value) for name, value in start.items()}
        self._transforms = {name: _map_to(limit) for name, limit in self.limits.items()}
        self.places: dict[str, slice] = {}
        self._free_shapes: dict[str, tuple[int, ...]] = {}
        parts, place = [], 0
        for name in self.names:
            value = np.asarray(start[name], dtype=float)
            free = np.asarray(self._transforms[name].inv(value))
            if not np.isfinite(free).all():
                raise ModelError(f'the start value of "{name}", {value}, is not inside {self.limits[name]}.')
            self._free_shapes[name] = free.shape
            self.places[name] = slice(place, place + free.size)
            place += free.size
            parts.append(free.reshape(-1))
        self.start = np.concatenate(parts) if parts else np.zeros(0)
        self.size = place

    def natural(self, vector: Array) -> Theta:
        """The values a row model sees, from the search's vector, fixed ones included.

        A tuple is taken as it is: numbers that a view has made, one for each name.
        """
        if isinstance(vector, tuple):
            return dict(zip(self.names, vector, strict=True))
        return self.fixed | {
            name: self._transforms[name](vector[self.places[name]].reshape(self._free_shapes[name]))
            for name in self.names
        }

    def natural_of_many(self, vectors: np.ndarray) -> Theta:
        """:meth:`natural` of vectors along leading axes."""
        lead, found = vectors.shape[:-1], {}
        for name, transform in self._transforms.items():
            free = vectors[..., self.places[name]].reshape(-1, *self._free_shapes[name])
            kind = _scale(self.limits[name])
            value = jax.vmap(transform)(free) if kind == "mixed" else _BY_SCALE[kind](free)
            found[name] = value.reshape(*lead, *value.shape[1:])
        return {name: jnp.broadcast_to(value, (*lead, *value.shape)) for name, value in self.fixed.items()} | found

    def vector(self, theta: Mapping[str, Any]) -> np.ndarray:
        """The search's vector at natural values."""
        parts = []
        for name in self.names:
            free = self._transforms[name].inv(
                jnp.broadcast_to(jnp.asarray(theta[name], dtype=float), self.shapes[name])
            )
            parts.append(np.asarray(free).reshape(-1))
        return np.concatenate(parts) if parts else np.zeros(0)

    def log_volume(self, vector: Array) -> Array:
        """log |d natural / d vector|: turns a density of natural values into one of the vector."""
        total = jnp.zeros(())
        for name in self.names:
            free = vector[self.places[name]].reshape(self._free_shapes[name])
            total = total + jnp.sum(self._transforms[name].log_abs_det_jacobian(free, self._transforms[name](free)))
        return total

    def flat(self, theta: Mapping[str, Any]) -> Array:
        """All natural values end to end, in the order of :attr:`labels`."""
        if not self.names:
            return jnp.zeros(0)
        return jnp.concatenate([jnp.reshape(theta[name], -1) for name in self.names])

    @property
    def labels(self) -> list[str]:
        """``"w[0]"``, ``"w[1]"``, ``"b.scale"`` …: a name for every natural number."""
        found = []
        for name in self.names:
            shape = self.shapes[name]
            if shape == ():
                found.append(name)
            else:
                found += [f"{name}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
        return found

    @property
    def free_labels(self) -> list[str]:
        """A name for every entry of the vector: those of the natural numbers, or where these are more, what they are entries of."""
        if len(self.labels) == self.size:
            return self.labels
        return [name for name, place in self.places.items() for _ in range(place.stop - place.start)]

    @cached_property
    def constrained(self) -> np.ndarray:
        """Which entries of the vector stand for a constrained value (on a log or similar scale)."""
        mask = np.zeros(self.size, dtype=bool)
        for name in self.names:
            mask[self.places[name]] = not _is_real(self.limits[name])
        return mask

    @property
    def scales(self) -> list[str]:
        """For every natural number, the scale its vector entry is on: ``real``, ``log``, ``logit`` or ``mixed``."""
        found = []
        for name in self.names:
            kind = _scale(self.limits[name])
            found += [kind] * int(np.prod(self.shapes[name], dtype=int))
        return found

    def jacobian(self, vector: Array) -> np.ndarray:
        """d flat natural values / d vector."""
        scales = self.scales
        if "mixed" in scales:
            return np.asarray(jax.jacobian(lambda v: self.flat(self.natural(v)))(jnp.asarray(vector)))
        x = np.asarray(vector, dtype=float)
        with np.errstate(over="ignore"):
            logistic = 0.25 / np.cosh(0.5 * x) ** 2
            slopes = {"real": np.ones_like(x), "log": np.exp(x), "logit": logistic}
        return np.diag([slopes[scale][i] for i, scale in enumerate(scales)]) if scales else np.zeros((0, 0))

    def numbers(self, vector: Array) -> dict[str, np.ndarray]:
        """Natural values as plain arrays."""
        if "mixed" in self.scales:
            return {name: np.asarray(value)[()] for name, value in self.natural(jnp.asarray(vector)).items()}
        x = np.asarray(vector, dtype=float)
        return {
            name: _BY_SCALE[_scale(self.limits[name])](x[self.places[name]].reshape(self.shapes[name]))[()]
            for name in self.names
        }


_BY_SCALE: dict[str, Any] = {"real": lambda value: value, "log": np.exp, "logit": expit}


def _is_real(limit: Any) -> bool:
    return _scale(limit) == "real"


def _scale(limit: Any) -> str:
    if limit is None:
        return "real"
    from numpyro.distributions import constraints

    while isinstance(limit, constraints.independent):
        limit = limit.base_constraint
    if limit in (constraints.real, constraints.real_vector):
        return "real"
    if limit in (constraints.positive, constraints.nonnegative):
        return "log"
    return "logit" if limit is constraints.unit_interval else "mixed"
