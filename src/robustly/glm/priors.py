"""How are rows' own values spread around what is common? Normal, Laplace or Student t: densities, and their pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from robustly.glm.law import Array, OwnValues

if TYPE_CHECKING:
    import jax

PRIORS = ("normal", "laplace", "student_t")
LOG_2PI = float(np.log(2.0 * np.pi))
NO_SPREAD = "the rows show no spread of their {} beyond chance, so the classical model is returned (spread = 0)."
PRIOR_SYMBOLS = {"normal": "N(m_i, spread²)", "laplace": "Laplace(m_i, spread)", "student_t": "t_dof(m_i, spread)"}


def spread_values(
    prior: str, away: Array, own: str, spread: float, dof: float | None = None, **others: float
) -> OwnValues:
    """Distances of the rows' own values from what is common, with their fitted prior."""
    from scipy import stats

    laws = {"normal": stats.norm, "laplace": stats.laplace}
    law = laws[prior](scale=spread) if prior in laws else stats.t(dof, scale=spread)
    width = max(4.0 * spread, 1.05 * float(np.abs(away).max(initial=0.0)))
    return OwnValues(
        away,
        law.pdf,
        low=-width,
        high=width,
        axis=f"a row's own {own}, less the common one",
        prior=f"fitted prior, spread {spread:.3g}",
    )


def log_prior(kind: str, away: jax.Array, log_scale: jax.Array, log_dof: Any = None) -> jax.Array:
    """Log density of a row's own value at a distance from its centre."""
    import jax.numpy as jnp

    if kind == "normal":
        return -0.5 * (away * jnp.exp(-log_scale)) ** 2 - log_scale - 0.5 * LOG_2PI
    if kind == "laplace":
        return -jnp.abs(away) * jnp.exp(-log_scale) - log_scale - float(np.log(2.0))
    return log_student_t(away, log_scale, log_dof) - 0.5 * LOG_2PI


def log_student_t(away: jax.Array, log_scale: jax.Array, log_dof: Any) -> jax.Array:
    """Student's t, up to the constant of the normal."""
    import jax.numpy as jnp

    half = 0.5 * jnp.exp(log_dof)
    constant = student_constant(log_dof) - log_scale
    return constant - (half + 0.5) * jnp.log1p((away * jnp.exp(-log_scale)) ** 2 / (2.0 * half))


def student_constant(log_dof: Any) -> jax.Array:
    """The log density of Student's t at its centre, less that of the normal; both of scale one."""
    import jax.numpy as jnp
    from jax.scipy.special import gammaln

    half = 0.5 * jnp.exp(log_dof)
    # The two gamma functions cancel almost entirely when the law is nearly normal.
    some = jnp.minimum(half, 1e4)
    exact = gammaln(some + 0.5) - gammaln(some) - 0.5 * jnp.log(some)
    return jnp.where(half < 1e4, exact, -0.125 / half)
