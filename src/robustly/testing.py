"""Is an extension what it has to be? Numerical checks of what users add, to be called from their own tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly._runtime.precision import in_double_precision
from robustly.approx.check import check_approximation
from robustly.approx.climb import climb
from robustly.approx.grid import line_points
from robustly.conjugate.fitting import ConjugatePair
from robustly.errors import ModelError
from robustly.glm.check import check_family, check_law
from robustly.model.row import RowModel
from robustly.result.listed import list_counts, list_line
from robustly.rows.check import check_rows

__all__ = ["check_approximation", "check_family", "check_law", "check_pair", "check_row_model", "check_rows"]

MOST_COUNTS = 1 << 18


@in_double_precision
def check_pair(
    pair: ConjugatePair, *data: Any, theta: Mapping[str, Any] | None = None, tolerance: float = 1e-6, **companions: Any
) -> dict[str, float]:
    """Verify a conjugate pair numerically, at a few parameter values.

    Looks at whether the predictive density adds up to one over its support (for counts and single numbers), whether a
    stable `evidence` of the pair's own equals A(η + s) − A(η) + log h, and, if the pair names its `law` and
    `likelihood`, whether prior × likelihood = evidence × posterior at every value of the local.

    Args:
        pair: the pair to check.
        data: a few rows as `fit` takes them (three to ten are plenty); companions by name if they are keywords.
        theta: parameter values to check at; without it three are drawn around the pair's start for these rows.
        tolerance: largest difference allowed, of logs.

    Returns:
        The largest difference found by each check.

    Raises:
        ModelError: naming the check that failed, the row, and by how much.

    Example:
        >>> import robustly as rb
        >>> from robustly.conjugate import GammaPoisson
        >>> from robustly.testing import check_pair
        >>> sorted(check_pair(GammaPoisson(), [0, 3, 1, 7]))
        ['closed form', 'integrates to one', 'posterior']
    """
    from robustly.conjugate.problem import model_of
    from robustly.rows.distinct import make_table

    columns = {name: np.asarray(c, dtype=float) for name, c in pair.read(*data, **companions).items()}
    if not columns:
        raise ModelError("check_pair needs a few rows of data: check_pair(pair, x).")
    model = model_of(pair, columns)
    if theta is not None:
        vectors = [model.parameters.vector({**pair.fixed, **theta})]
    else:
        centre = model.parameters.vector({**pair.start(make_table(columns, None)), **pair.fixed})
        noise = np.random.default_rng(0).normal(size=(2, len(centre)))
        vectors = [centre, *(centre + 0.4 * noise)]
    found: dict[str, float] = {}
    for vector in vectors:
        values = model.theta(jnp.asarray(vector))
        for name, gap in _checks(pair, values, columns).items():
            _judge(pair, name, gap, tolerance)
            found[name] = max(found.get(name, 0.0), float(np.max(gap)))
    return found


def _checks(pair: ConjugatePair, theta: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    data = {name: jnp.asarray(column) for name, column in columns.items()}
    evidence = np.asarray(jax.vmap(lambda row: pair.evidence(theta, row))(data))
    plain = np.asarray(jax.vmap(lambda row: ConjugatePair.evidence(pair, theta, row))(data))
    gaps = {"closed form": np.abs(evidence - plain) / (1.0 + np.abs(plain))}
    if pair.support in ("count", "real", "positive"):
        gaps["integrates to one"] = _mass_gaps(pair, theta, columns)
    if pair.law(_natural(pair, theta, columns)) is not None:
        gap = _posterior_gaps(pair, theta, columns, evidence)
        if gap is not None:
            gaps["posterior"] = gap
    return gaps


def _natural(pair: ConjugatePair, theta: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
    data = {name: jnp.asarray(column) for name, column in columns.items()}
    full = lambda row: tuple(jnp.asarray(part, dtype=float) for part in pair.natural(theta, row))
    return tuple(np.asarray(part) for part in jax.vmap(full)(data))


def _posterior_gaps(
    pair: ConjugatePair, theta: Mapping[str, Any], columns: Mapping[str, np.ndarray], evidence: np.ndarray
) -> np.ndarray | None:
    """|log prior + log likelihood − log evidence − log posterior| at values the posterior holds likely."""
    plain = {name: np.asarray(value) for name, value in theta.items()}
    data = {name: jnp.asarray(column) for name, column in columns.items()}
    full = lambda row: tuple(jnp.asarray(part, dtype=float) for part in pair.posterior_natural(theta, row))
    after = tuple(np.asarray(part) for part in jax.vmap(full)(data))
    before = _natural(pair, theta, columns)
    x = pair.observed(columns)
    worst = np.zeros(len(evidence))
    rng = np.random.default_rng(1)
    for i in range(len(evidence)):
        row = {name: column[i] for name, column in columns.items()}
        laws: Any = [pair.law(tuple(part[i] for part in eta)) for eta in (before, after)]
        prior, posterior = laws
        if pair.likelihood(np.asarray(posterior.mean()), plain, row) is None:
            return None
        shape = np.shape(posterior.mean())
        for local in posterior.rvs(size=(5, *shape), random_state=rng):
            law: Any = pair.likelihood(local, plain, row)
            seen = (
                law.logpmf(x[i]) if hasattr(law, "logpmf") and not hasattr(law, "logpdf") else _log_density(law, x[i])
            )
            gap = np.squeeze(prior.logpdf(local)) + np.squeeze(seen) - evidence[i] - np.squeeze(posterior.logpdf(local))
            worst[i] = max(worst[i], abs(float(gap)) / (1.0 + abs(float(evidence[i]))))
    return worst


def _log_density(law: Any, x: Any) -> Any:
    discrete = hasattr(law, "dist") and not hasattr(law.dist, "pdf")
    return law.logpmf(x) if discrete else law.logpdf(x)


def _mass_gaps(pair: ConjugatePair, theta: Mapping[str, Any], columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """How far the predictive of every row's companions is from a total of one."""
    first, *rest = columns
    logged = bool(np.any(pair.observed(columns) != columns[first]))
    beside = {name: jnp.asarray(columns[name]) for name in rest}
    each = jax.jit(
        lambda values: jax.vmap(lambda row, some: jax.vmap(lambda x: pair.evidence(theta, {first: x, **row}))(some))(
            beside, values
        )
    )
    # A column of logs is integrated over x = exp(log x): one more factor. It holds no more than a double can be the
    # exponential of.
    log_density = lambda values: np.asarray(each(jnp.asarray(values))) + (values if logged else 0.0)
    rows = len(columns[first])
    if pair.support == "count":
        limits = columns.get("trials")
        listed = list_counts(log_density, rows, limits=limits, first=1 << 10, most=MOST_COUNTS)
        # A power-law tail may hold a little mass beyond the last count listed; too much mass is never right.
        beyond = 1e-2 if limits is None and listed.values.shape[1] >= MOST_COUNTS else 0.0
        return np.maximum(listed.total - 1.0, np.maximum(1.0 - listed.total - beyond, 0.0))
    positive = pair.support == "positive" and not logged
    place = (lambda t: (np.exp(t),) * 2) if positive else lambda t: (np.sinh(t), np.cosh(t))
    ends = (-7.2, 7.2) if logged else (-250.0, 250.0)
    return np.abs(list_line(log_density, place, rows, ends, points=40_001).total - 1.0)


def _judge(pair: ConjugatePair, check: str, gap: np.ndarray, tolerance: float) -> None:
    advice = {
        "closed form": "its evidence is not A(η + s) − A(η) + log h: compare evidence() with log_normalizer(), "
        "statistic() and log_base()",
        "integrates to one": "its densities do not add up to one over the support: look at log_base() and `support`",
        "posterior": "prior × likelihood is not evidence × posterior: compare law() with log_normalizer(), and "
        "likelihood() with statistic() and log_base()",
    }
    bad = ~(gap <= tolerance)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ModelError(
            f"{type(pair).__name__} fails the check “{check}” in row {row}, by {gap[row]:.2g} (allowed {tolerance:g}): "
            f"{advice[check]}."
        )


@in_double_precision
def check_row_model(model: RowModel, data: Any) -> None:
    """Verify a row model numerically on a few rows: finite densities, slopes that exist, a prior that adds up to one.

    Args:
        model: the row model to check.
        data: rows as ``rb.fit_rows`` takes them.
    """
    rows = jax.tree.map(np.asarray, data)
    first = jax.tree.map(lambda a: jnp.asarray(a[0]), rows)
    theta = model.parameters.natural(jnp.asarray(model.parameters.start))
    z = None if model.latents is None else jnp.asarray(model.latents)[0]
    joint = lambda u, at: model.log_joint(u, at, first, z)
    value = joint(jnp.zeros(model.dim), theta)
    if jnp.shape(value) != () or not bool(jnp.isfinite(value)):
        raise ModelError(f"the log density of the first row at the start is {value}; it must be one finite number.")
    slope = jax.grad(lambda v: joint(jnp.zeros(model.dim), model.parameters.natural(v)))(
        jnp.asarray(model.parameters.start)
    )
    if not bool(jnp.all(jnp.isfinite(slope))):
        raise ModelError("the log density of the first row has no finite slope in the parameters at the start.")
    if model.dim != 1:
        return

    def prior(u: Any) -> Any:
        local, volume = model.local(u, theta, first)
        flat = (
            model.log_prior(local, theta, first)
            if model.log_prior is not None
            else model.prior(theta, first).log_prob(local)  # type: ignore[misc]
        )
        return jnp.sum(flat) + volume

    mode = climb(prior, jnp.zeros(1), 1)
    total = float(jax.scipy.special.logsumexp(line_points(prior, mode, 401)[1]))
    if abs(total) > 1e-4:
        raise ModelError(f"the prior of the local adds up to {np.exp(total):.6g} at the start values; it must be 1.")
