"""Is a user's own family or law fit for use? Derivatives, mass, distribution function, limits, a simulate-and-recover run."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly._runtime.precision import double_precision
from robustly.errors import ModelError
from robustly.glm.families import Binomial, Family
from robustly.glm.law import Law
from robustly.glm.listed import list_responses
from robustly.glm.local import Classical
from robustly.glm.row_model import approximation, evidence_of, row_model

PREDICTORS = np.linspace(-2.0, 2.0, 9)
DRAWS = 4000
# Where the shared numbers of a law are looked at, on their free scale.
FREE_VALUES = (-0.7, 0.0, 0.4)
LAW_PREDICTORS = np.array([-0.5, 0.3, 1.2])


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
    from robustly.model.read_design import read_design

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


def check_law(law: Law, *, tolerance: float = 1e-6) -> dict[str, float]:
    """Verify a law of one row numerically, at a few predictors and shared numbers.

    Looks at whether `natural`, `free` and `slope` of each shared number belong together; whether the density of a row adds up
    to one over all responses; for a law that is not closed, whether the joint density integrates over the row's own value to
    that density; whether slopes and curvatures are finite and slopes agree with differences; whether the law is the classical
    one where its `limits` say so; and whether it says what it is in words.

    Args:
        law: an instance, such as ``MyLaw(robustly.glm.Poisson())``.
        tolerance: largest difference allowed in log densities.

    Returns:
        The largest difference found by each check.

    Raises:
        ModelError: naming the check that failed, the place, and by how much.

    Example:
        >>> from robustly.glm.local import LocalLabel
        >>> from robustly.glm import Bernoulli
        >>> sorted(check_law(LocalLabel(Bernoulli())))
        ['adds up to one', 'limit', 'shared numbers', 'slope']
    """
    if not isinstance(law, Law):
        raise ModelError(f"check_law takes an instance of robustly.glm.Law, made from a family; got {law!r}.")
    _check_words(law)
    found = {"shared numbers": _check_shared(law)}
    rng, gaps = np.random.default_rng(0), []
    for free in FREE_VALUES:
        phi = tuple(free + 0.1 * i for i in range(len(law.names)))
        trials = np.full(
            len(LAW_PREDICTORS), 1.0 if law.family.yes_or_no or not isinstance(law.family, Binomial) else 3.0
        )
        mass = list_responses(law, phi, LAW_PREDICTORS, trials).total
        # A power-law tail may hold a little mass beyond the last count listed; too much mass is never right.
        beyond = 1e-2 if law.family.discrete and not isinstance(law.family, Binomial) else 0.0
        off = np.maximum(mass - 1.0, np.maximum(1.0 - mass - beyond, 0.0))
        gaps.append(_law_gap(law, "adds up to one", off, phi, max(tolerance, 1e-6)))
    found["adds up to one"] = max(gaps)
    nuisance = law.nuisance(phi) if len(law.nuisance_places) == len(law.family.nuisance) else None
    y = law.family.draw(rng, LAW_PREDICTORS, nuisance or (1.0,) * len(law.family.nuisance), trials)
    value, off = _law_slopes(law, phi, y, trials)
    found["slope"] = _law_gap(law, "slope", off, phi, 1e-5)
    if not law.closed:
        brute = _integrated_joint(law, phi, y, trials) + law.family.log_base(y, trials)
        found["joint"] = _law_gap(law, "joint", np.abs(value - brute), phi, tolerance)
    if law.at_boundary and nuisance is not None:
        found["limit"] = _check_limit(law, phi, y, trials)
    return found


LAW_ADVICE = {
    "shared numbers": "free() must be the inverse of natural(), within bounds(), and slope() its derivative",
    "adds up to one": "densities must add up to one over all responses; row holds the response and its trials, and what a "
    "family keeps in log_base() is left out",
    "joint": "the joint density over a row's own value must be smooth, with one mode, and fall to both sides",
    "slope": "the log density must have two finite derivatives in the predictor and the shared numbers",
    "limit": "near `limits` the law must be the family with nothing local",
}


def _law_gap(law: Law, check: str, gap: Any, phi: Any, allowed: float) -> float:
    gap = np.ravel(gap)
    bad = np.flatnonzero(~(gap <= allowed))
    if bad.size:
        at = ", ".join(f"{name} = {float(law.natural(name, value)):.3g}" for name, value in zip(law.names, phi))
        raise ModelError(
            f"{type(law).__name__} fails the check “{check}” at {at or 'any predictor'}, by {gap[bad[0]]:.2g} "
            f"(allowed {allowed:.2g}): {LAW_ADVICE[check]}."
        )
    return float(gap.max(initial=0.0))


def _check_words(law: Law) -> None:
    told = law.describe()
    empty = [part for part in ("name", "local", "symbols") if not getattr(told, part, "")]
    if empty:
        raise ModelError(
            f"describe() of {type(law).__name__} leaves {' and '.join(empty)} empty. Say it in a few words."
        )
    if len(set(law.names)) != len(law.names) or not all(isinstance(name, str) and name for name in law.names):
        raise ModelError(f"names of {type(law).__name__} must be different texts; got {law.names!r}.")
    if law.local is not None and (not law.at_boundary or not law.boundary_text):
        raise ModelError(
            f"{type(law).__name__} does not say where it is the classical model. Give its class "
            'limits = {name: value}, such as {"spread": 0.0}, with one of its names.'
        )


def _check_shared(law: Law) -> float:
    worst = 0.0
    for name in law.names:
        low, high = law.bounds(name)
        for value in FREE_VALUES:
            natural = float(law.natural(name, value))
            slope = (float(law.natural(name, value + 1e-6)) - float(law.natural(name, value - 1e-6))) / 2e-6
            off = [abs(law.free(name, natural) - value), abs(law.slope(name, value) - slope) / (1.0 + abs(slope))]
            if not low < natural < high:
                off.append(np.inf)
            worst = max(worst, _law_gap(law, "shared numbers", off, (value,) * len(law.names), 1e-7))
    return worst


def _law_slopes(law: Law, phi: Any, y: np.ndarray, trials: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Evidence of rows, and how far its slopes are off; infinitely where a derivative is not finite."""
    from robustly.fit.view_passes import row_kernel

    kernel = row_kernel(row_model(law), approximation(law, None))
    step = 1e-4

    def curves(numbers: Any) -> Any:
        row = (y, trials)
        state = kernel.approx.start_at(kernel.model, row, numbers, len(y))
        return kernel.curves(numbers, row, np.asarray(state, np.float32), False)

    numbers = (LAW_PREDICTORS, *phi)
    with double_precision():
        value, slope, curve = (np.asarray(part) for part in curves(numbers)[:3])
        off = []
        for i in range(len(numbers)):
            moved = [tuple(n + side * step * (j == i) for j, n in enumerate(numbers)) for side in (1, -1)]
            up, down = (np.asarray(curves(there)[0]) for there in moved)
            off.append(np.abs((up - down) / (2 * step) - slope[:, i]) / (1.0 + np.abs(slope[:, i])))
    finite = np.all(np.isfinite(curve), axis=1) & np.all(np.isfinite(slope), axis=1)
    return value + law.family.log_base(y, trials), np.where(finite, np.max(off, axis=0), np.inf)


def _integrated_joint(law: Law, phi: Any, y: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The log integral of each row's joint density over its own value: a trapezoid rule, ever closer to where the mass is."""
    import jax

    joint = lambda own, one, of, m: law.joint(own, (one, of), m, *phi)
    with double_precision():
        density = jax.jit(jax.vmap(jax.vmap(joint, (0, None, None, None))))
        low, high = np.full((len(y), 1), -40.0), np.full((len(y), 1), 40.0)
        for _ in range(4):
            t = low + (high - low) * np.linspace(0.0, 1.0, 4001)
            with np.errstate(all="ignore"):
                heights = np.asarray(density(np.sinh(t), y, trials, LAW_PREDICTORS)) + np.log(np.cosh(t))
            heights = np.where(np.isfinite(heights), heights, -np.inf)
            step = t[:, 1:2] - t[:, :1]
            total = np.logaddexp.reduce(heights, axis=1) + np.log(step[:, 0])
            kept = heights > heights.max(axis=1, keepdims=True) - 45.0
            low, high = (np.array([[f(row[k])] for row, k in zip(t, kept)]) for f in (np.min, np.max))
            low, high = low - step, high + step
    return total


def _check_limit(law: Law, phi: Any, y: np.ndarray, trials: np.ndarray) -> float:
    """How far the law is from the classical one close to its limit; it must come closer on the way."""
    plain = Classical(law.family)
    held = tuple(phi[law.names.index(name)] for name in plain.names)
    classical = evidence_of(plain, approximation(plain, None), (LAW_PREDICTORS, *held), y, trials)

    def gap(share: float) -> np.ndarray:
        there = list(phi)
        for name, limit in law.at_boundary.items():
            there[law.names.index(name)] = law.free(name, limit + share if np.isfinite(limit) else 1.0 / share)
        found = evidence_of(law, approximation(law, None), (LAW_PREDICTORS, *there), y, trials)
        return np.abs(found - classical)

    near = gap(1e-3)
    return _law_gap(law, "limit", np.where(near <= 0.3 * gap(1e-2) + 1e-9, near, np.inf), phi, 0.05)


def _try(what: str, act: Any) -> Any:
    try:
        return act()
    except Exception as error:
        raise ModelError(f"the family cannot {what}: {type(error).__name__}: {error}") from error
