r"""What is the model of one row? A few plain functions; everything else in the package is made from them.

A row model says how a row's own value (its *local*, :math:`\beta_i`) is spread, :math:`p(\beta_i \mid \theta)`, and how
the row's data follow from it, :math:`p(x_i \mid \beta_i, \theta)`. NumPyro programs, conjugate pairs and regression
families are all turned into one. The functions see a single row; approximations vectorize them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly.errors import ModelError
from robustly.model.parameters import Parameters, Theta

if TYPE_CHECKING:
    from robustly.model.conjugacy import Conjugacy
    from robustly.model.wide_curvature import Curve

Local = Any
# What a model's functions read of one row: the arrays of its entries, as they came.
Row: TypeAlias = Array | tuple[Array, ...] | Mapping[str, Array]
Scalar: TypeAlias = Array
# The value of a row's discrete latent, where it has one.
Latent: TypeAlias = Array | None


class View(Protocol):
    """How parameters enter a row, where a model states it: the few numbers of each row, and the way back.

    A regression's coefficients reach a row only through its linear predictor. The model's functions then see these numbers
    in place of the parameters, so that a pass over the rows is a matrix product, the rows' own work, and another product.
    """

    def at(self, vector: np.ndarray) -> Any:
        """What a pass needs of a parameter vector, made once a pass."""
        ...

    def enter(self, at: Any, data: Any) -> tuple[tuple[Any, ...], Any]:
        """What rows see of the parameters (arrays by row, single values where all see the same), and what goes back."""
        ...

    def seen(self, data: Any) -> Any:
        """What the model's functions get as ``row``."""
        ...

    def pull_back(self, entered: Any, slope: np.ndarray, curve: np.ndarray, weight: np.ndarray) -> dict[str, Any]:
        """Weighted sums of the rows' slopes and curvatures in their numbers, with what :meth:`enter` kept for it.

        Rows of weight zero do not count, whatever they hold. What :attr:`by_row` names is not summed.
        """
        ...

    @property
    def by_row(self) -> tuple[str, ...]:
        """What of :meth:`pull_back` stays a number a row."""
        ...

    def gather(self, sums: Mapping[str, Any]) -> tuple[np.ndarray, Curve]:
        """Slope and curvature in the vector, from the sums over all rows and what stays by row."""
        ...


def sent_back(
    view: View, entered: Any, value: np.ndarray, slope: np.ndarray, curve: np.ndarray, weight: np.ndarray
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What rows send back of their evidences, slopes and curvatures: sums, and what stays by row."""
    total = np.where(weight > 0, weight * value, 0.0).sum()
    sums = {"value": total, **view.pull_back(entered, slope, curve, weight)}
    return sums, {"evidence": value, **{name: sums.pop(name) for name in view.by_row}}


def no_hyperprior(theta: Theta) -> Scalar:
    """Nothing is believed of the parameters beforehand: maximum likelihood."""
    return jnp.zeros(())


@dataclass(frozen=True, eq=False)
class RowModel:
    r"""One row: its local value's prior, its likelihood, and the parameters to be fitted.

    Args:
        log_likelihood: ``(local, theta, row) -> scalar``, or ``(local, theta, row, z)`` with a discrete row latent.
        start: natural start values of all fitted parameters, by name; ``theta`` has the same names.
        log_prior: ``(local, theta, row) -> scalar``. Not needed when `prior` is given.
        prior: ``(theta, row) -> NumPyro distribution`` of the local; by part for a local that is a dictionary, each at
            typical values of the other parts if it follows them. With it, conjugacy can be detected.
        constraints: NumPyro constraints of parameters that are not simply real.
        local_shape: shape of the local value.
        local_support: NumPyro constraint of the local value; None is none.
        center: ``(theta, row) -> (loc, scale)`` of a location-scale prior. The local is then searched for as
            ``loc + scale * u``, which stays well behaved as the scale goes to zero.
        log_hyperprior: ``theta -> scalar``, what is believed of the parameters; its presence makes the fit a MAP.
        latents: values of the discrete row latent ``z``, one a row of this array; they are summed over.
        transform: ``(u, theta, row) -> (local, log volume)``, in place of `local_support` and `center`.
        joint: ``(u, theta, row, z) -> scalar``, prior, likelihood and log volume together, where one reading of the model
            can give all three.
        moved: ``(u, theta, row, z) -> u``, where `joint` reads `u` in a coordinate that differs with z: that of `transform`.
        fixed: natural values of parameters that are not fitted; ``theta`` has them too.
        closed: ``(theta, row) -> scalar``, the evidence in closed form, where there is one.
        guess: ``(rows, numbers) -> (local values, log widths or None)``, arrays by row: roughly where each row's posterior
            lies, for a first look; for a model that states its :class:`View`.
        peak: ``(theta, row) -> (loc, scale)`` of a prior with a peak that its tails do not follow; see
            :class:`~robustly.approx.two_centre.TwoCentre`.
        kink: ``theta -> scalar``, by how much the slope of the log prior falls at that peak, where it does.
        points_follow: whether integration points move along with the parameters. They may stay where parameters move the
            prior of the local, and the likelihood not against it.
        examples: a few rows, at which the structure of the model is looked at.
        made_by: a function and its arguments by which another process makes the same model again.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist, robustly as rb
        >>> counts = rb.RowModel(
        ...     prior=lambda theta, row: dist.Gamma(theta["shape"], theta["rate"]),
        ...     log_likelihood=lambda rate, theta, row: dist.Poisson(rate).log_prob(row["count"]),
        ...     start={"shape": 1.0, "rate": 1.0},
        ...     constraints={"shape": dist.constraints.positive, "rate": dist.constraints.positive},
        ...     local_support=dist.constraints.positive,
        ... )
        >>> fit = rb.fit_rows(counts, {"count": [3, 0, 1, 12, 2, 5, 0, 1]})
        >>> bool(fit.parameters["shape"] > 0)
        True
    """

    log_likelihood: Callable[..., Scalar]
    start: Mapping[str, Any]
    log_prior: Callable[[Local, Theta, Row], Scalar] | None = None
    prior: Callable[[Theta, Row], Any] | None = None
    constraints: Mapping[str, Any] = field(default_factory=dict)
    local_shape: tuple[int, ...] = ()
    local_support: Any = None
    center: Callable[[Theta, Row], tuple[Any, Any]] | None = None
    log_hyperprior: Callable[[Theta], Scalar] = no_hyperprior
    latents: Any = None
    transform: Callable[[Any, Theta, Row], tuple[Local, Scalar]] | None = None
    joint: Callable[..., Scalar] | None = None
    moved: Callable[[Any, Theta, Row, Any], Any] | None = None
    size: int | None = None
    conjugacy: Conjugacy | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    closed: Callable[[Theta, Row], Scalar] | None = None
    guess: Callable[[Any, Any], tuple[Any, Any]] | None = None
    peak: Callable[[Theta, Row], tuple[Any, Any]] | None = None
    kink: Callable[[Theta], Scalar] | None = None
    points_follow: bool = True
    examples: Any = None
    made_by: tuple[Callable[..., RowModel], tuple[Any, ...]] | None = None

    def __reduce__(self) -> Any:
        if self.made_by is None:
            raise ModelError("this model is made of functions of this process, and cannot be sent to others.")
        return self.made_by

    def __post_init__(self) -> None:
        if (
            self.log_prior is None
            and self.prior is None
            and self.joint is None
            and self.closed is None
            and self.dim > 0
        ):
            raise ModelError(
                "a RowModel needs log_prior(local, theta, row), or prior(theta, row) that gives a distribution."
            )
        takes = len(inspect.signature(self.log_likelihood).parameters)
        wants = 3 if self.latents is None else 4
        if takes != wants:
            shape = "(local, theta, row)" if wants == 3 else "(local, theta, row, z)"
            raise ModelError(f"log_likelihood takes {takes} arguments, but here it must be log_likelihood{shape}.")

    @cached_property
    def parameters(self) -> Parameters:
        """The fitted parameters as a flat vector and back."""
        return Parameters(self.start, self.constraints, self.fixed)

    @cached_property
    def compiled(self) -> dict[Any, Any]:
        """What was compiled of this model, by what else it depends on: forgotten when the model is."""
        return {}

    @cached_property
    def dim(self) -> int:
        """How many unconstrained numbers a row's local value has; 0 when nothing is local."""
        if self.size is not None:
            return self.size
        return int(np.prod(self._free_shape, dtype=int))

    @cached_property
    def _bijection(self) -> Any:
        from numpyro.distributions import biject_to

        return biject_to(self.local_support)

    @property
    def _free_shape(self) -> tuple[int, ...]:
        return self.local_shape if self.local_support is None else self._bijection.inverse_shape(self.local_shape)

    def local(self, u: Array, theta: Theta, row: Row) -> tuple[Local, Scalar]:
        """The local value at the unconstrained (and, where possible, whitened) `u`, with the log volume of the map."""
        if self.dim == 0:
            return None, jnp.zeros(())
        if self.transform is not None:
            return self.transform(u, theta, row)
        if self.center is not None:
            loc, scale = self.center(theta, row)
            u = u.reshape(self.local_shape)
            return loc + scale * u, jnp.sum(jnp.broadcast_to(jnp.log(scale), self.local_shape))
        u = u.reshape(self._free_shape)
        if self.local_support is None:
            return u, jnp.zeros(())
        value = self._bijection(u)
        return value, jnp.sum(self._bijection.log_abs_det_jacobian(u, value))

    def log_density(self, local: Local, theta: Theta, row: Row, z: Array | None = None) -> Scalar:
        """log p(row, local): prior and likelihood at a natural local value."""
        return self._density_here(local, theta, row, z)

    @cached_property
    def _density_here(self) -> Callable[..., Scalar]:
        from robustly.model.jaxpr_simplify import simplified

        return simplified(self._density)

    def _density(self, local: Local, theta: Theta, row: Row, z: Array | None) -> Scalar:
        likelihood = (
            self.log_likelihood(local, theta, row)
            if self.latents is None
            else self.log_likelihood(local, theta, row, z)
        )
        if self.dim == 0:
            return likelihood
        if self.log_prior is not None:
            return self.log_prior(local, theta, row) + likelihood
        assert self.prior is not None
        prior = self.prior(theta, row)
        if isinstance(prior, Mapping):
            return sum((jnp.sum(part.log_prob(local[name])) for name, part in prior.items()), likelihood)
        return jnp.sum(prior.log_prob(local)) + likelihood

    def log_joint(self, u: Array, theta: Theta, row: Row, z: Array | None = None, at: Theta | None = None) -> Scalar:
        r"""log p(row, u \mid theta). With `at`, `u` is read in the coordinates of the parameters `at`, which EM keeps fixed."""
        if at is None:
            return self._joint_here(u, theta, row, z)
        local, volume = self.local(u, at, row)
        return self.log_density(local, theta, row, z) + volume

    @cached_property
    def _joint_here(self) -> Callable[..., Scalar]:
        from robustly.model.jaxpr_simplify import simplified

        def joint(u: Array, theta: Theta, row: Row, z: Array | None) -> Scalar:
            if self.joint is not None and self.dim > 0:
                return self.joint(u, theta, row, z)
            local, volume = self.local(u, theta, row)
            return self._density(local, theta, row, z) + volume

        return simplified(joint)
