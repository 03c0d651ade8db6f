"""Which responses does a regression's law predict, if only its density is known? Listed, some rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from robustly.glm.families import Binomial
from robustly.glm.law import Array, Law
from robustly.glm.row_model import approximation, evidence_of
from robustly.result.listed import Listed, joined_lists, list_counts, list_line

ROWS_AT_ONCE = 64


def list_responses(law: Law, phi: Sequence[float], m: Array, trials: Array) -> Listed:
    """Responses of rows with these predictors, by the density of the law."""
    cuts = [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(m), ROWS_AT_ONCE)]
    return joined_lists([_listed_some(law, phi, m[cut], trials[cut]) for cut in cuts])


def _listed_some(law: Law, phi: Sequence[float], m: Array, trials: Array) -> Listed:
    def log_density(y: Array) -> Array:
        flat = (np.broadcast_to(part[:, None], y.shape).ravel() for part in (m, trials))
        each, counted = (np.array(part) for part in flat)
        found = evidence_of(law, approximation(law, None), (each, *phi), y.ravel(), counted).reshape(y.shape)
        return np.where(np.isfinite(found), found, -np.inf)

    family = law.family
    if family.discrete:
        return list_counts(log_density, len(m), limits=trials if isinstance(family, Binomial) else None)
    nuisance = law.nuisance(phi)
    with np.errstate(all="ignore"):
        centre = np.asarray(family.mean(m, nuisance, trials))[:, None]
        width = np.sqrt(np.asarray(family.variance(m, nuisance, trials)))[:, None]
    if _is_positive(law):
        return list_line(log_density, lambda t: (centre * np.exp(t),) * 2, len(m), (-300.0, 60.0))
    return list_line(log_density, lambda t: (centre + width * np.sinh(t), width * np.cosh(t)), len(m), (-40.0, 40.0))


def _is_positive(law: Law) -> bool:
    ones = (1.0,) * len(law.family.nuisance)
    support: Any = law.family.distribution(0.0, *ones).support
    return bool(np.all(np.asarray(support(np.array([1.0])))) and not np.any(np.asarray(support(np.array([-1.0])))))
