r"""What data does the study draw? The paper's designs (section 5.1), and some that ask more of a robust model.

Five columns, each uniform on [−5, 5]; coefficients from a standard normal; 500 clean test rows from the true model;
training rows corrupted at a level. The paper does not say how many training rows there were: 500 here. Everything
random in a trial comes from (seed, experiment, repetition) for the truth and the test rows, which all levels of one
repetition share as in the paper, and from (seed, experiment, variant, level, repetition) for the training rows, so a
trial is the same whatever else is run, in whichever order and process.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from robustly.glm.families import draw_poisson

ROWS = 500
COLUMNS = 5
REACH = 5.0
NOISE = 0.02
GROSS = 5.0
"""How far the log rate of a grossly wrong count is off, up or down."""


@dataclass(frozen=True)
class Task:
    """One training set to be drawn and fitted: the unit of work, and of what is kept."""

    experiment: str
    variant: str
    level: float
    repetition: int


@dataclass(frozen=True)
class Trial:
    """Training rows, clean test rows, and the truth behind both."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    w: np.ndarray
    b: float


@dataclass(frozen=True)
class Variant:
    """One way to corrupt training rows: by name, in words, at levels of which 0 is clean."""

    name: str
    words: str
    axis: str
    levels: tuple[float, ...]


VARIANTS: dict[str, tuple[Variant, ...]] = {
    "linear": (
        Variant("sd", "σᵢ a standard deviation", "noise level k", (0, 0.25, 0.5, 1, 2, 4, 8)),
        Variant("variance", "σᵢ a variance", "noise level k", (0, 0.25, 0.5, 1, 2, 4, 8)),
    ),
    "logistic": (
        Variant(
            "near", "labels nearest the boundary flipped", "share of labels flipped", (0, 0.05, 0.1, 0.2, 0.3, 0.4)
        ),
        Variant("random", "labels flipped at random", "share of labels flipped", (0, 0.05, 0.1, 0.2, 0.3)),
        Variant(
            "far", "labels farthest from the boundary flipped", "share of labels flipped", (0, 0.05, 0.1, 0.2, 0.3)
        ),
    ),
    "poisson": (
        Variant("lognormal", "normal noise in the log rate", "noise σ", (0, 0.25, 0.5, 1, 1.5, 2)),
        Variant("gamma", "gamma noise on the rate", "variance of the rate's factor", (0, 0.25, 0.5, 1, 2)),
        Variant("gross", "some log rates off by ±5", "share of wrong counts", (0, 0.02, 0.05, 0.1, 0.2)),
    ),
}
PAPERS = {"linear": ("sd", "variance"), "logistic": ("near",), "poisson": ("lognormal",)}
"""The variants that are the paper's own."""


def variant_of(experiment: str, name: str) -> Variant:
    """A variant by its name."""
    return next(one for one in VARIANTS[experiment] if one.name == name)


def random_of(seed: int, *parts: str | float) -> np.random.Generator:
    """Random numbers that belong to a seed and a few names and numbers."""
    key = [zlib.crc32(p.encode()) if isinstance(p, str) else round(p * 1_000_000) for p in parts]
    return np.random.default_rng(np.random.SeedSequence([seed, *key]))


def draw(task: Task, seed: int) -> Trial:
    """The trial of a task."""
    truth = random_of(seed, task.experiment, task.repetition)
    w, b = truth.normal(size=COLUMNS), float(truth.normal())
    X_test = truth.uniform(-REACH, REACH, (ROWS, COLUMNS))
    rng = random_of(seed, task.experiment, task.variant, task.level, task.repetition)
    X = rng.uniform(-REACH, REACH, (ROWS, COLUMNS))
    respond = _RESPONSES[task.experiment]
    y_test = respond(truth, X_test @ w, b, task.variant, 0.0)
    return Trial(X, respond(rng, X @ w, b, task.variant, task.level), X_test, y_test, w, b)


def _draw_linear(rng: np.random.Generator, linear: np.ndarray, b: float, variant: str, level: float) -> np.ndarray:
    r""":math:`N(w^\top x + b, \sigma_i + 0.02)` with gamma :math:`\sigma_i`, the second argument read either way."""
    extra = rng.gamma(level, 1.0, len(linear)) if level > 0 else np.zeros(len(linear))
    scale = extra + NOISE if variant == "sd" else np.sqrt(extra + NOISE)
    return linear + b + scale * rng.normal(size=len(linear))


def _draw_logistic(rng: np.random.Generator, linear: np.ndarray, b: float, variant: str, level: float) -> np.ndarray:
    """Labels of the true model without intercept, a share of them flipped."""
    y = (rng.uniform(size=len(linear)) < expit(linear)).astype(float)
    number = round(level * len(y))
    order = rng.permutation(len(y)) if variant == "random" else np.argsort(np.abs(linear))
    flipped = order[len(y) - number :] if variant == "far" else order[:number]
    y[flipped] = 1.0 - y[flipped]
    return y


def _draw_poisson(rng: np.random.Generator, linear: np.ndarray, b: float, variant: str, level: float) -> np.ndarray:
    """Counts of the true model without intercept, their log rates disturbed."""
    disturbed = linear
    if level > 0 and variant == "lognormal":
        disturbed = linear + level * rng.normal(size=len(linear))
    elif level > 0 and variant == "gamma":
        disturbed = linear + np.log(rng.gamma(1.0 / level, level, len(linear)))
    elif level > 0:
        wrong = rng.permutation(len(linear))[: round(level * len(linear))]
        disturbed = linear.copy()
        disturbed[wrong] += GROSS * rng.choice([-1.0, 1.0], len(wrong))
    return draw_poisson(rng, disturbed)


_RESPONSES: dict[str, Callable[[np.random.Generator, np.ndarray, float, str, float], np.ndarray]] = {
    "linear": _draw_linear,
    "logistic": _draw_logistic,
    "poisson": _draw_poisson,
}
