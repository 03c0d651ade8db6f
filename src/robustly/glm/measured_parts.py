r"""How does the evidence of a measurement in two parts change with its numbers, to second order? In closed form.

A row is of the core, or shifted above it, or below: three densities of one kind, each of an error and a log scale, and of the
degrees of freedom of a heavy-tailed core (:mod:`robustly.glm.part_moments` puts them together). Rows differ in the error alone, so that
shifts, scales and gamma functions are found once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly.approx.moments import second_order
from robustly.glm.part_moments import PartDensity, Rates, RowPart, log_shares, moments_of_parts
from robustly.glm.priors import student_constant

# Of which a density is a function: the error, the log scale, the log degrees of freedom.
ERROR, SCALE, DOF = range(3)


def normal_error(off: Any, log_scale: Any) -> PartDensity:
    """A normal log density, without its constant."""
    inverse = jnp.exp(-log_scale)
    z = off * inverse
    curve = {(ERROR, ERROR): -(inverse**2), (ERROR, SCALE): 2.0 * z * inverse, (SCALE, SCALE): -2.0 * z**2}
    return PartDensity(-0.5 * z**2 - log_scale, (-z * inverse, z**2 - 1.0), curve)


def student_error(off: Any, log_scale: Any, log_dof: Any) -> PartDensity:
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
    return PartDensity(constant - log_scale - 0.5 * more * grown, slope, curve)


def measured_moments(y: Any, numbers: Sequence[Any]) -> tuple[Any, Any, Any]:
    """A row's evidence with its slope and curvature in its numbers.

    These are the predictor, the log scale, the log degrees of freedom of a core with heavy tails, the logarithms of variation and
    width of the shifts, and the log odds of the share of rows that strayed.
    """
    m, scale, *dof, variation, width, share = (jnp.asarray(number, dtype=float) for number in numbers)
    names = ("m", "scale", *("dof" for _ in dof), "variation", "width", "share")
    density = (lambda off, scale: student_error(off, scale, dof[0])) if dof else normal_error
    grown, wider = jax.nn.sigmoid(2.0 * (width + variation)), 0.5 * jax.nn.softplus(2.0 * (width + variation))
    bent = {SCALE: 2.0 * grown * (1.0 - grown)}
    (log_strayed, strayed), (log_core, belongs) = log_shares(share)
    core: dict[str, Rates] = {"m": {ERROR: -1.0}, "scale": {SCALE: 1.0}, "dof": {DOF: 1.0}}
    parts = [RowPart(density(y - m, scale), log_core, {"share": belongs}, core, {})]
    for side in (1.0, -1.0):
        shift = side * jnp.exp(width + scale)
        parts.append(
            RowPart(
                density(y - m - shift, scale + wider),
                log_strayed - float(np.log(2.0)),
                {"share": strayed},
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
    return moments_of_parts(names, parts)
