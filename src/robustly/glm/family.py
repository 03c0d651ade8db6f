r"""What does a family have to say of one row? The interface, and how a user's own fills it.

A user's own family needs only :meth:`Family.distribution`; everything else follows from it by autodiff.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from robustly.errors import ModelError, SupportError

if TYPE_CHECKING:
    import jax
    from numpyro.distributions import Distribution

Array = np.ndarray


class Family(ABC):
    """How one row's response is distributed. Subclass it, say :meth:`distribution`, and use it everywhere.

    Example:
        >>> import numpyro.distributions as dist
        >>> class Geometric(Family):
        ...     "Failures before the first success; the predictor is the log odds of success."
        ...     def distribution(self, predictor):
        ...         return dist.GeometricLogits(predictor)
        >>> Geometric().mean(np.zeros(1), (), np.ones(1))
        array([1.])
    """

    nuisance: ClassVar[tuple[str, ...]] = ()
    """Names of positive parameters that are fitted along; `distribution` gets their values after the predictor."""
    least: ClassVar[float] = -np.inf
    """The least response of a measured quantity that is taken with a probability above zero, such as a sum of nothing."""
    yes_or_no: ClassVar[bool] = False
    """Whether a response is one of two classes, so that its mean is the probability of the second."""

    @abstractmethod
    def distribution(self, predictor: jax.Array, *nuisance: jax.Array) -> Distribution:
        """The NumPyro distribution of one row's response."""

    # ------------------------------------------------------------------ densities, in JAX

    def log_prob(self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array) -> jax.Array:
        """Log density of one response, up to :meth:`log_base`."""
        return self.distribution(predictor, *nuisance).log_prob(y)

    def log_prob_strayed(
        self, y: jax.Array, trials: jax.Array, predictor: jax.Array, *nuisance: jax.Array
    ) -> jax.Array:
        """As :meth:`log_prob`, of a response whose predictor is its own: without the spread that the family gives predictors."""
        return self.log_prob(y, trials, predictor, *nuisance)

    def log_base(self, y: Array, trials: Array) -> Array:
        """What the log density holds of the responses alone, by row."""
        return np.zeros(len(y))

    @property
    def constant_base(self) -> float | None:
        """What :meth:`log_base` gives of every response, where it is the same."""
        return 0.0 if type(self).log_base is Family.log_base else None

    # ------------------------------------------------------------------ moments and tails, in NumPy, by row

    @property
    def discrete(self) -> bool:
        """Whether responses are counted rather than measured."""
        return bool(self._at(np.zeros(1)).support.is_discrete)

    def mean(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.asarray(self._at(predictor, nuisance).mean)

    def variance(self, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        return np.asarray(self._at(predictor, nuisance).variance)

    def cdf(self, y: Array, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        """P(response ≤ y)."""
        try:
            return np.asarray(self._at(predictor, nuisance).cdf(y))
        except NotImplementedError:
            raise ModelError(
                f"the distribution of {self} has no cdf, so tails and quantiles are unknown. Give its class a cdf."
            ) from None

    def draw(self, rng: np.random.Generator, predictor: Array, nuisance: Sequence[float], trials: Array) -> Array:
        """One response for every predictor."""
        import jax

        key = jax.random.key(int(rng.integers(2**31)))
        return np.asarray(self._at(predictor, nuisance).sample(key), dtype=float)

    def turn(self, y: Array, trials: Array, nuisance: Sequence[float]) -> tuple[Array, Array] | None:
        """Where, and how wide, the cdf at `y` falls from one to zero as the predictor grows; None when not known."""
        return None

    def _at(self, predictor: Array, nuisance: Sequence[float] | None = None) -> Any:
        from robustly._runtime.precision import double_precision

        with double_precision():
            values = (1.0,) * len(self.nuisance) if nuisance is None else nuisance
            return _InDouble(self.distribution(np.asarray(predictor, dtype=float), *values))

    # ------------------------------------------------------------------ responses

    def check_response(self, y: Array, trials: Array) -> tuple[str, ...]:
        """Refuse responses this family gives no probability; return notes on unusual ones."""
        from robustly._runtime.precision import double_precision

        with double_precision():
            good = np.asarray(self._at(np.zeros(len(y))).support(y))
        if not good.all():
            row = int(np.flatnonzero(~good)[0])
            raise SupportError(f"y holds {y[row]} in row {row}, which {self} gives no probability. Recode that row.")
        return ()

    def check_whole(self, y: Array) -> None:
        """Refuse responses that taken together leave something undetermined; rows are checked one by one before."""
        assert y.ndim == 1

    def start(self, y: Array, trials: Array) -> Array:
        """A rough predictor for every row, from its response alone."""
        return np.zeros(len(y))

    def nuisance_start(self, y: Array, trials: Array, residual: Array) -> tuple[float, ...]:
        """Rough values of the nuisance parameters; `residual` is what a least-squares start leaves of :meth:`start`."""
        return (1.0,) * len(self.nuisance)

    # ------------------------------------------------------------------ identity

    def _key(self) -> tuple[Hashable, ...]:
        return (type(self), *sorted(vars(self).items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Family) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({inside})"


class _InDouble:
    """A NumPyro distribution whose answers are computed in double precision."""

    def __init__(self, distribution: Any) -> None:
        self._distribution = distribution

    def __getattr__(self, name: str) -> Any:
        from robustly._runtime.precision import double_precision, in_double_precision

        with double_precision():
            found = getattr(self._distribution, name)
        return in_double_precision(found) if inspect.ismethod(found) else found


def refuse_rows(bad: Array, y: Array, why: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise SupportError(f"y holds {y[row]} in row {row}, {why}")
