r"""How does the evidence of a measurement in two parts change with its numbers, to second order? In closed form.

A row is of the core, or shifted above it, or below: three densities of one kind, each of an error and a log scale, and of the
degrees of freedom of a heavy-tailed core. With :math:`A_k` the log of a part's density times its share and :math:`p_k` its
probability given the row,

.. math:: \nabla \ell = \sum_k p_k \nabla A_k, \qquad
          \nabla^2 \ell = \sum_k p_k [\nabla^2 A_k + (\nabla A_k - \nabla \ell)(\nabla A_k - \nabla \ell)^\top] .

Rows differ in the error alone, so that shifts, scales and gamma functions are found once for all of them. Differentiating the whole
row by row takes up to ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from robustly.approx.moments import second_order
from robustly.glm.priors import student_constant

# Of which a density is a function: the error, the log scale, the log degrees of freedom.
ERROR, SCALE, DOF = range(3)
Rates = Mapping[int, Any]
"""How these move; what is not named stays."""


class ErrorDensity(NamedTuple):
    """A log density of an error, with its slope and, above the diagonal, its curvature in what it is a function of."""

    value: Any
    slope: tuple[Any, ...]
    curve: Mapping[tuple[int, int], Any]

    def along(self, rates: Rates) -> Any:
        return sum(rate * self.slope[place] for place, rate in rates.items())

    def across(self, one: Rates, other: Rates, bend: Rates) -> Any:
        """The second derivative along two directions, which themselves may bend."""
        pairs = [(min(i, j), max(i, j), a * b) for i, a in one.items() for j, b in other.items()]
        return sum(rate * self.curve[i, j] for i, j, rate in pairs) + self.along(bend)


def normal_error(off: Any, log_scale: Any) -> ErrorDensity:
    """A normal log density, without its constant."""
    inverse = jnp.exp(-log_scale)
    z = off * inverse
    curve = {(ERROR, ERROR): -(inverse**2), (ERROR, SCALE): 2.0 * z * inverse, (SCALE, SCALE): -2.0 * z**2}
    return ErrorDensity(-0.5 * z**2 - log_scale, (-z * inverse, z**2 - 1.0), curve)


def student_error(off: Any, log_scale: Any, log_dof: Any) -> ErrorDensity:
    """Student's t, up to the constant of the normal."""
    constant, (rise,), bend = second_order(student_constant, (log_dof,))
    dof, inverse = jnp.exp(log_dof), jnp.exp(-log_scale)
    more, z = dof + 1.0, off * inverse
    total = dof + z**2
    out, inside, pull, grown = z**2 / total, dof / total, z * inverse / total, jnp.log1p(z**2 / dof)
    slope = (-more * pull, more * out - 1.0, rise - 0.5 * dof * grown + 0.5 * more * out)
    curve = {
        (ERROR, ERROR): -more * inverse**2 * (inside - out) / total,
        (ERROR, SCALE): 2.0 * more * pull * inside,
        (ERROR, DOF): -dof * pull * (1.0 - more / total),
        (SCALE, SCALE): -2.0 * more * out * inside,
        (SCALE, DOF): dof * out - more * out * inside,
        (DOF, DOF): bend[0, 0] - 0.5 * dof * grown + dof * out - 0.5 * more * out * inside,
    }
    return ErrorDensity(constant - log_scale - 0.5 * more * grown, slope, curve)


class MeasuredPart(NamedTuple):
    """One of the places a row may be from."""

    density: ErrorDensity
    log_share: Any
    tilt: Any
    """The slope of the log share in the log odds of the share of rows that strayed."""
    moves: Mapping[str, Rates]
    """By the name of a number, how what the density is a function of moves with it."""
    bends: Mapping[tuple[str, str], Rates]


def measured_moments(y: Any, numbers: Sequence[Any]) -> tuple[Any, Any, Any]:
    """A row's evidence with its slope and curvature in its numbers.

    These are the predictor, the log scale, the log degrees of freedom of a core with heavy tails, the logarithms of variation and
    width of the shifts, and the log odds of the share of rows that strayed.
    """
    m, scale, *dof, variation, width, share = (jnp.asarray(number, dtype=float) for number in numbers)
    names = ("m", "scale", *("dof" for _ in dof), "variation", "width", "share")
    density = (lambda off, scale: student_error(off, scale, dof[0])) if dof else normal_error
    grown, wider = jax.nn.sigmoid(2.0 * (width + variation)), 0.5 * jax.nn.softplus(2.0 * (width + variation))
    strayed, bent = jax.nn.sigmoid(share), {SCALE: 2.0 * grown * (1.0 - grown)}
    core: dict[str, Rates] = {"m": {ERROR: -1.0}, "scale": {SCALE: 1.0}, "dof": {DOF: 1.0}}
    parts = [MeasuredPart(density(y - m, scale), jax.nn.log_sigmoid(-share), -strayed, core, {})]
    for side in (1.0, -1.0):
        shift = side * jnp.exp(width + scale)
        parts.append(
            MeasuredPart(
                density(y - m - shift, scale + wider),
                jax.nn.log_sigmoid(share) - float(np.log(2.0)),
                1.0 - strayed,
                core
                | {
                    "scale": {ERROR: -shift, SCALE: 1.0},
                    "variation": {SCALE: grown},
                    "width": {ERROR: -shift, SCALE: grown},
                },
                {
                    ("scale", "scale"): {ERROR: -shift},
                    ("scale", "width"): {ERROR: -shift},
                    ("variation", "variation"): bent,
                    ("variation", "width"): bent,
                    ("width", "width"): {ERROR: -shift} | bent,
                },
            )
        )
    # A row that one part makes impossible must not stop the search.
    heights = [jnp.maximum(part.density.value + part.log_share, -1e300) for part in parts]
    top = jnp.max(jnp.stack(heights))
    # Far out the logarithm of their sum is lost in the rounding of the largest: shares are taken of the sum itself.
    shares = [jnp.exp(height - top) for height in heights]
    total = sum(shares)
    value, chances = top + jnp.log(total), [share / total for share in shares]
    expected = lambda terms: sum(jnp.where(chance > 0, chance * term, 0.0) for chance, term in zip(chances, terms))
    slopes = [
        [part.tilt if name == "share" else part.density.along(part.moves.get(name, {})) for name in names]
        for part in parts
    ]
    mean = [expected(along) for along in zip(*slopes)]
    curve = [[jnp.zeros(())] * len(names) for _ in names]
    for i, one in enumerate(names):
        for j, other in enumerate(names[i:], i):
            own = [
                part.density.across(
                    part.moves.get(one, {}), part.moves.get(other, {}), part.bends.get((one, other), {})
                )
                for part in parts
            ]
            apart = [(slope[i] - mean[i]) * (slope[j] - mean[j]) for slope in slopes]
            curve[i][j] = curve[j][i] = expected([a + b for a, b in zip(own, apart)])
    curve[-1][-1] = curve[-1][-1] - strayed * (1.0 - strayed)
    return value, jnp.stack(mean), jnp.stack([jnp.stack(line) for line in curve])
