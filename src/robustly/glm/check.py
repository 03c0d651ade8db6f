"""Is a user's own family fit for use? Derivatives, support, distribution function, and a simulate-and-recover run."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.errors import ModelError
from robustly.glm.families import Family

PREDICTORS = np.linspace(-2.0, 2.0, 9)
DRAWS = 4000


def check_family(family: Family, *, seed: int = 0) -> None:
    """Raise a :class:`~robustly.errors.ModelError` that says what is wrong with a family, or return in silence.

    Checked at predictors from −2 to 2: drawn responses are accepted and have finite log density and two finite
    derivatives; the mean responds to the predictor; draws agree with `mean` and, where it is known, with `cdf`
    (false alarms below one in a million); and a simulated regression gives its slope back within six standard errors.

    Example:
        >>> from robustly.glm.families import Poisson
        >>> check_family(Poisson())
    """
    if not isinstance(family, Family):
        raise ModelError(f"check_family takes an instance of robustly.Family; got {family!r}.")
    rng = np.random.default_rng(seed)
    values = (1.0,) * len(family.nuisance)
    predictor = np.repeat(PREDICTORS, DRAWS // len(PREDICTORS))
    ones = np.ones(len(predictor))
    y = _try("draw responses", lambda: family.draw(rng, predictor, values, ones))
    if y.shape != predictor.shape:
        raise ModelError(f"one response a predictor is needed, but shape {y.shape} was drawn for {predictor.shape}.")
    _try("accept the responses it draws", lambda: family.check_response(y, ones))
    _check_derivatives(family, y, predictor, values)
    _check_moments(family, y, predictor, values, ones)
    _check_recovery(family, rng, values)


def _check_derivatives(family: Family, y: np.ndarray, predictor: np.ndarray, values: tuple[float, ...]) -> None:
    import jax

    with double_precision():
        density = lambda m, one: family.log_prob(one, 1.0, m, *values)
        each = [density, jax.grad(density), jax.grad(jax.grad(density))]
        found = [_try("give a log density", lambda f=f: np.asarray(jax.vmap(f)(predictor, y))) for f in each]
        step = 1e-5
        near = np.asarray(jax.vmap(density)(predictor + step, y)) - np.asarray(jax.vmap(density)(predictor - step, y))
    for what, numbers in zip(("log density", "slope", "curvature"), found):
        if not np.all(np.isfinite(numbers)):
            row = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise ModelError(
                f"the {what} of {family} is {numbers[row]} at response {y[row]} and predictor {predictor[row]}. "
                "Write the density so that it stays finite and can be differentiated twice."
            )
    off = np.abs(near / (2 * step) - found[1])
    if np.any(off > 1e-4 * (1.0 + np.abs(found[1]))):
        row = int(np.argmax(off))
        raise ModelError(
            f"the slope of {family}'s log density at y = {y[row]}, predictor {predictor[row]} is {found[1][row]:.6g}, "
            f"but differences say {near[row] / (2 * step):.6g}. Does it jump, or stop a gradient?"
        )


def _check_moments(
    family: Family, y: np.ndarray, predictor: np.ndarray, values: tuple[float, ...], ones: np.ndarray
) -> None:
    mean = np.asarray(family.mean(predictor, values, ones))
    sd = np.sqrt(np.asarray(family.variance(predictor, values, ones)))
    finite = np.isfinite(mean) & np.isfinite(sd) & (sd > 0)
    z = float(np.sum((y - mean)[finite] / sd[finite]) / np.sqrt(max(finite.sum(), 1)))
    if abs(z) > 5.5:
        raise ModelError(f"draws of {family} are {z:.1f} standard errors away from its mean. One of the two is wrong.")
    if np.ptp(mean[finite]) == 0:
        raise ModelError(f"the mean of {family} does not change with the predictor, so there is nothing to regress on.")
    try:
        below = np.asarray(family.cdf(y, predictor, values, ones))
        under = np.asarray(family.cdf(y - 1.0, predictor, values, ones)) if family.discrete else below
    except (ModelError, NotImplementedError):
        return
    middle = 0.5 * (below + under)
    off = float((middle - 0.5).mean() * np.sqrt(12.0 * len(y)))
    if abs(off) > 5.5:
        raise ModelError(
            f"draws of {family} do not follow its cdf ({off:.1f} standard errors). One of the two is wrong."
        )


def _check_recovery(family: Family, rng: np.random.Generator, values: tuple[float, ...]) -> None:
    from robustly.glm.fit import fit_glm
    from robustly.model.linear import read_design

    x = np.linspace(-1.0, 1.0, 1000)
    y = family.draw(rng, 0.3 + 0.5 * x, values, np.ones(1000))
    fit: Any = _try(
        "be fitted to data drawn from it",
        lambda: fit_glm(read_design(x[:, None], y, ["x"]), family, local=None, hyperprior=None),
    )
    away = (fit.coefficients["x"] - 0.5) / fit.standard_errors["x"]
    if not abs(away) < 6.0:
        raise ModelError(
            f"a regression simulated from {family} with slope 0.5 gives {fit.coefficients['x']:.3g} back, {away:.1f} "
            "standard errors off. The density and the draws do not belong together."
        )


def _try(what: str, act: Any) -> Any:
    try:
        return act()
    except Exception as error:
        raise ModelError(f"the family cannot {what}: {type(error).__name__}: {error}") from error
