"""How many of the rows listed are false, and how many of the strayed rows are found? A simulation with Monte-Carlo errors.

    python benchmarks/outliers.py linear --sets 200 --out benchmarks/results/outliers.json

Cells that the file already has are not run again.

Every cell plants a share of strayed rows of a size and a side into rows of a core, fits the estimator a user would call, and
counts: realised false discovery rate at nominal .05 (the mean over sets of false rows per row listed), power (the share of
planted rows found), sets in which any row is listed, mean squared error of the coefficients (of the estimator, and of the law with a
wide part fitted as the answer), and how many rows with a probability of .8 to .9 are truly bad. The rival for measurements is
statsmodels' bisquare fit with BH on MAD-scaled residuals. Times are medians over sets in CPU seconds, so that compiling is left out.

With ``--errors`` only coefficients are compared, of the estimator alone: so an earlier release can be run on the same sets.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import robustly as rb

FDR = 0.05
COLUMNS = np.array([1.0, -1.0, 0.5])


def planted(rng: np.random.Generator, n: int, share: float, side: str) -> tuple[np.ndarray, np.ndarray]:
    bad = rng.choice(n, round(share * n), replace=False)
    return bad, rng.choice([-1.0, 1.0], len(bad)) if side == "both" else np.ones(len(bad))


def linear(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    X = rng.normal(size=(n, 3))
    noise = rng.normal(size=n) if core == "normal" else rng.standard_t(3.0, n)
    y = 1.0 + X @ COLUMNS + noise
    bad, sign = planted(rng, n, share, side)
    y[bad] += size * sign
    return X, y, None, bad


def counts(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    X = rng.normal(size=(n, 3))
    eta = 3.0 + X @ (0.5 * COLUMNS)
    if core == "log-normal":
        eta = eta + 0.5 * rng.normal(size=n)
    bad, sign = planted(rng, n, share, side)
    eta[bad] += size * sign
    return X, rng.poisson(np.exp(eta)).astype(float), None, bad


def binomial(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    X = rng.normal(size=(n, 3))
    eta = X @ (0.5 * COLUMNS)
    bad, sign = planted(rng, n, share, side)
    eta[bad] += size * sign
    return X, rng.binomial(20, 1.0 / (1.0 + np.exp(-eta))).astype(float), np.full(n, 20.0), bad


def gamma(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    X = rng.normal(size=(n, 3))
    eta = 1.0 + X @ (0.5 * COLUMNS)
    bad, sign = planted(rng, n, share, side)
    eta[bad] += size * sign
    return X, rng.gamma(5.0, np.exp(eta) / 5.0), None, bad


def negative_binomial(
    rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str
) -> tuple[Any, ...]:
    X = rng.normal(size=(n, 3))
    eta = 3.0 + X @ (0.5 * COLUMNS)
    bad, sign = planted(rng, n, share, side)
    eta[bad] += size * sign
    return X, rng.poisson(np.exp(eta) * rng.gamma(5.0, 0.2, n)).astype(float), None, bad


def labels(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    X = rng.normal(size=(n, 3))
    eta = X @ (2.0 * COLUMNS)
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-eta))).astype(float)
    able = np.flatnonzero(np.abs(eta) > 3.0) if core == "far" else np.arange(n)
    bad = rng.choice(able, round(share * n), replace=False)
    y[bad] = 1.0 - y[bad]
    return X, y, None, bad


def _glm(family: str) -> Callable[..., Any]:
    return lambda X, y, trials: rb.RobustGLM(family).fit(X, y, **({} if trials is None else {"trials": trials}))


def rates(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    """Counts about 5 with some that are `size` times as high; on both sides, counts about 20 with rates times or over `size`."""
    mean = 5.0 if side == "one" else 20.0
    own = mean * rng.gamma(4.0, 0.25, n)
    x = rng.poisson(own).astype(float)
    bad, sign = planted(rng, n, share, side)
    x[bad] = rng.poisson(mean * size if side == "one" else own[bad] * size**sign, len(bad))
    return np.zeros((n, 0)), x, None, bad


def places(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    x = rng.normal(size=n)
    bad, sign = planted(rng, n, share, side)
    x[bad] += size * sign
    return np.zeros((n, 0)), x, None, bad


def clusters(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    """Three normal clusters in two columns, and noise all over the box they lie in, stretched by `size`."""
    X = rng.normal(size=(n, 2)) * [1.0, 0.5] + 8.0 * np.array([[0, 0], [1, 0], [0, 1]])[rng.integers(3, size=n)]
    bad, _ = planted(rng, n, share, "one")
    low, high = X.min(axis=0), X.max(axis=0)
    X[bad] = 0.5 * (low + high) + size * (high - low) * (rng.random((len(bad), 2)) - 0.5)
    return X, np.zeros(n), None, bad


def assays(rng: np.random.Generator, n: int, share: float, size: float, side: str, core: str) -> tuple[Any, ...]:
    """Batches with tolerances of their own, of which some are off by `size`."""
    dose, tolerance = rng.normal(size=n), 0.3 + 0.3 * rng.normal(size=n)
    bad, sign = planted(rng, n, share, side)
    tolerance[bad] += size * sign
    dead = rng.binomial(40, 1.0 / (1.0 + np.exp(-1.5 * (dose - tolerance))))
    return dose, dead, np.full(n, 40), bad


def assay(dose: Any, n: Any, dead: Any = None) -> None:
    import numpyro
    import numpyro.distributions as dist

    slope = numpyro.sample("slope", dist.LogNormal(0.0, 1.0))
    tolerance = numpyro.sample("tolerance", dist.Normal(0.0, 1.0))
    with numpyro.plate("batch", dose.shape[0]):
        numpyro.sample("dead", dist.Binomial(n, logits=slope * (dose - tolerance)), obs=dead)


class WrappedMixture:
    """A mixture, asked as fits are."""

    coef_ = np.zeros(0)

    def __init__(self, model: Any) -> None:
        self.result_, self.judgement = self, Judged()
        self.outliers, self.outlier_probability = model.outliers, model.outlier_probabilities_


class Judged:
    """A mixture has no doubts."""

    doubt = ""


class Wrapped:
    """A fit that is not an estimator's, with no coefficients to compare."""

    coef_ = np.zeros(0)

    def __init__(self, fit: Any) -> None:
        self.result_ = fit


FITS: dict[str, tuple[Callable[..., tuple[Any, ...]], Callable[..., Any], np.ndarray]] = {
    "linear": (linear, lambda X, y, trials: rb.RobustLinearRegression().fit(X, y), COLUMNS),
    "poisson": (counts, lambda X, y, trials: rb.RobustPoissonRegression().fit(X, y), 0.5 * COLUMNS),
    "binomial": (binomial, _glm("binomial"), 0.5 * COLUMNS),
    "gamma": (gamma, _glm("gamma"), 0.5 * COLUMNS),
    "negative_binomial": (negative_binomial, _glm("negative_binomial"), 0.5 * COLUMNS),
    "gamma_poisson": (rates, lambda X, y, trials: Wrapped(rb.conjugate.GammaPoisson().fit(y)), np.zeros(0)),
    "student_pair": (places, lambda X, y, trials: Wrapped(rb.conjugate.NormalInverseGamma().fit(y)), np.zeros(0)),
    "mixture": (
        clusters,
        lambda X, y, trials: WrappedMixture(rb.RobustGaussianMixture(3, tied_dof=True, random_state=0).fit(X)),
        np.zeros(0),
    ),
    "localize": (
        assays,
        lambda X, y, trials: Wrapped(rb.localize(assay, "tolerance", contaminated=True).fit(X, trials, y)),
        np.zeros(0),
    ),
    "labels": (labels, lambda X, y, trials: rb.RobustLogisticRegression(local="label").fit(X, y), 2.0 * COLUMNS),
}


PLAIN: dict[str, Callable[..., Any]] = {
    "localize": lambda X, y, trials: rb.localize(assay, "tolerance").fit(X, trials, y)
}
"""Fits without a wide part, of what is fitted with one: their times are beside each other."""

CONTAMINATED: dict[str, Callable[..., Any]] = {
    name: lambda X, y, trials, family=family: rb.RobustGLM(family, local="contaminated").fit(
        X, y, **({} if trials is None else {"trials": trials})
    )
    for name, family in (
        ("linear", "normal"),
        ("poisson", "poisson"),
        ("binomial", "binomial"),
        ("gamma", "gamma"),
        ("negative_binomial", "negative_binomial"),
    )
}


def cells(what: str, sizes: list[int]) -> list[tuple[int, float, float, str, str]]:
    """(rows, share, size, side, core)."""
    if what == "linear":
        grid = [(s, z, side) for s in (0.01, 0.05, 0.1) for z in (5.0, 10.0, 50.0) for side in ("both", "one")]
        clean = [(n, 0.0, 0.0, "both", "normal") for n in sizes]
        heavy = [(n, 0.05, 50.0, "both", "t3") for n in sizes] + [(n, 0.0, 0.0, "both", "t3") for n in sizes]
        return [*clean, *((n, *one, "normal") for n in sizes for one in grid), *heavy]
    if what == "gamma_poisson":
        one_sided = [(s, z, "one") for s, z in ((0.0, 0.0), (0.01, 20.0), (0.05, 20.0), (0.1, 20.0))]
        grid = [*one_sided, *((s, 8.0, "both") for s in (0.05, 0.1))]
        return [(n, *one, "clean") for n in sizes for one in grid]
    if what in ("mixture", "localize"):
        planted = (
            ((0.0, 0.0), (0.05, 1.0), (0.1, 1.0), (0.1, 3.0))
            if what == "mixture"
            else ((0.0, 0.0), (0.05, 3.0), (0.1, 3.0))
        )
        return [(n, s, z, "both", "clean") for n in sizes for s, z in planted]
    if what == "student_pair":
        return [(n, s, z, "both", "clean") for n in sizes for s, z in ((0.0, 0.0), (0.05, 10.0), (0.05, 50.0))]
    if what == "labels":
        return [(n, s, 0.0, "both", core) for n in sizes for core in ("random", "far") for s in (0.0, 0.05, 0.1)]
    cores = ("clean", "log-normal") if what == "poisson" else ("clean",)
    grid = [(0.0, 0.0), *((s, z) for s in (0.01, 0.05, 0.1) for z in (2.0, 4.0))]
    return [(n, s, z, "both", core) for n in sizes for core in cores for s, z in grid]


def bisquare(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Rows that BH lists on the residuals of a bisquare fit, scaled by their median absolute deviation."""
    import statsmodels.api as sm
    from scipy.stats import norm
    from statsmodels.robust.scale import mad

    from robustly.result.outliers import benjamini_hochberg

    fit = sm.RLM(y, sm.add_constant(X), M=sm.robust.norms.TukeyBiweight()).fit()
    return benjamini_hochberg(2.0 * norm.sf(np.abs(fit.resid) / mad(fit.resid, center=0)), FDR)


def judged(fit: Any) -> tuple[np.ndarray, np.ndarray]:
    return fit.outliers(fdr=FDR), fit.outlier_probability


def run(what: str, cell: tuple[int, float, float, str, str], sets: int, seed: int, errors: bool) -> dict[str, Any]:
    make, fit_one, truth = FITS[what]
    n, share, size, side, core = cell
    seen: dict[str, list[float]] = {}
    took: dict[str, list[float]] = {}
    note = lambda name, value: seen.setdefault(name, []).append(float(value))
    within, right, doubts = 0, 0, 0

    def timed(name: str, run: Callable[..., Any], *given: Any) -> Any:
        began = time.process_time()
        found = run(*given)
        took.setdefault(name, []).append(time.process_time() - began)
        return found

    for one in range(sets):
        rng = np.random.default_rng([seed, one, n, int(1000 * share), int(size), len(side), len(core)])
        X, y, trials, bad = make(rng, n, share, size, side, core)
        is_bad = np.isin(np.arange(n), bad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = timed("fit", fit_one, X, y, trials)
            note("squared error", np.sum((np.ravel(model.coef_) - truth) ** 2))
            if errors:
                continue
            fit = model.result_
            if what in PLAIN:
                timed("plain", PLAIN[what], X, y, trials)
            found, probability = timed("judging", judged, fit)
            if what in CONTAMINATED:
                other = timed("contaminated", CONTAMINATED[what], X, y, trials)
                note("squared error contaminated", np.sum((np.ravel(other.coef_) - truth) ** 2))
        doubts += bool(fit.judgement.doubt)
        lists = {"ours": found} | ({"bisquare": bisquare(X, y)} if what == "linear" else {})
        for name, rows in lists.items():
            note(f"fdr {name}", 0.0 if not len(rows) else 1.0 - is_bad[rows].mean())
            note(f"any {name}", len(rows) > 0)
            if len(bad):
                note(f"power {name}", np.isin(bad, rows).mean())
        sure = (probability >= 0.8) & (probability < 0.9)
        within, right = within + int(sure.sum()), right + int(is_bad[sure].sum())
    found_here: dict[str, Any] = {"what": what, "rows": n, "share": share, "size": size, "side": side, "core": core}
    for name, values in seen.items():
        error = float(np.std(values) / np.sqrt(len(values)))
        found_here[name] = [round(float(np.mean(values)), 4), round(error, 4)]
    found_here |= {"sets": sets, "seed": seed}
    if not errors:
        found_here |= {"rows at .8-.9": within, "of them bad": right, "doubtful sets": doubts}
    return found_here | {f"cpu {name}": round(float(np.median(values)), 4) for name, values in took.items()}


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("what", choices=FITS)
    ask.add_argument("--sets", type=int, default=100)
    ask.add_argument("--rows", type=int, nargs="+", default=[100])
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--only", default="", help="keep cells whose text holds this")
    ask.add_argument("--errors", action="store_true", help="only compare coefficients")
    ask.add_argument("--out", type=Path, default=None)
    given = ask.parse_args()
    key = lambda one: [one[name] for name in ("what", "rows", "share", "size", "side", "core")]
    for cell in cells(given.what, given.rows):
        done = [] if given.out is None or not given.out.exists() else json.loads(given.out.read_text())
        if given.only not in str(cell) or [given.what, *cell] in [key(one) for one in done]:
            continue
        found = run(given.what, cell, given.sets, given.seed, given.errors)
        print(json.dumps(found), flush=True)
        if given.out is not None:
            given.out.write_text(json.dumps([*done, found], indent=1) + "\n")


if __name__ == "__main__":
    main()
