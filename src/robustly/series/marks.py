r"""Which steps do not belong, and is each an outlier or a break? Probabilities from a two-part law of the disturbances.

A heavy-tailed law has no line between what belongs and what does not. For probabilities the sites' disturbances are therefore
given a *contaminated* law, a core and a wide part,

.. math:: (1 - \pi_s)\, N(0, \sigma_s^2) + \pi_s\, N(0, \sigma_s^2 + \tau_s^2),

with a mark :math:`z_{st}` for the wide part, :math:`\pi_s \sim \mathrm{Beta}(1, 30)` integrated out, flat priors on standard
deviations, and :math:`\log\tau_s` normal about five times the standard error with which the disturbance of a single step is
seen. Marks, standard deviations and widths are drawn together by Metropolis moves in which the states are always integrated out:

- all marks at once, each turned over with its exact conditional probability given all others, which one smoothing pass gives
  for every step (see :mod:`robustly.series.leaveout`), accepted or not as a whole;
- one mark moved to a neighbouring step or to another site, so that "an outlier here" and "a break there" compete;
- all marks of two neighbouring steps drawn anew from their joint conditional law, at places that looked doubtful early on: an
  outlier is also a break forth and one back;
- one mark turned over together with a new standard deviation of its site: a level that jumps once, or one that wanders;
- a random walk of the standard deviations and widths.

The probability of a mark is the mean of its conditional probabilities over the chain, so its Monte-Carlo error is small.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, expit

from robustly.series.disturbances import Disturbances, Smoothed

SHARE_PRIOR = (1.0, 30.0)
WIDTH, WIDTH_SPREAD = 5.0, 0.6
BURN, KEPT, SWAPS = 200, 600, 2
# Every so many draws the marks themselves are kept, for questions about several steps at once.
THIN = 3
# Two neighbouring steps are drawn anew every so many sweeps, where a mark's chance was ever above this while the chain settled.
REDRAWN, DOUBTFUL = 6, 0.3
TRADES, TRADED = 2, 1.5
# Sweeps by the length of the series: short ones are cheap.
PASSES, MOST_KEPT = 120_000, 800
CERTAIN = 1e-12


@dataclass(frozen=True)
class Marks:
    """Probabilities of the wide part, (S, T), of each site's disturbance; and what the chain held on average."""

    probability: np.ndarray
    error: np.ndarray
    """Monte-Carlo standard errors, by batches, (S, T)."""
    core: np.ndarray
    """Posterior mean standard deviations of the cores, (S,)."""
    width: np.ndarray
    """Posterior mean of τ, (S,)."""
    share: np.ndarray
    """Posterior mean of π, (S,)."""
    accepted: dict[str, float]
    drawn: np.ndarray
    """Marks of the chain's draws, (draws, S, T)."""


def log_odds(
    seen: Smoothed, marked: np.ndarray, width: np.ndarray, variances: np.ndarray, active: np.ndarray
) -> np.ndarray:
    """log odds of each mark given all others, (S, T), but for marks that several numbers share, where it is close."""
    found = np.full(marked.shape, -np.inf)
    for s in range(len(marked)):
        change = np.where(marked[s], -1.0, 1.0) * width[s] ** 2
        u, d = seen.score[s], seen.information[s]
        grown = np.maximum(1.0 + change * d, 1e-12)
        ratio = (-0.5 * np.log(grown) + 0.5 * change * u**2 / grown).sum(axis=0)
        n, others = int(active[s].sum()), int(marked[s].sum()) - marked[s]
        prior = np.log(others + SHARE_PRIOR[0]) - np.log(n - 1 - others + SHARE_PRIOR[1])
        found[s] = np.where(active[s], np.where(marked[s], -ratio, ratio) + prior, -np.inf)
    return found


@dataclass
class _Chain:
    """The state of the chain and the moves that change it."""

    model: Disturbances
    unit: np.ndarray
    centre: np.ndarray
    """Means of log τ, (S,)."""
    free: np.ndarray
    """statsmodels' unconstrained parameters in units."""
    width: np.ndarray
    marked: np.ndarray
    random: np.random.Generator

    def __post_init__(self) -> None:
        self.params = self._natural(self.free)
        self.look()

    def _natural(self, free: np.ndarray) -> np.ndarray:
        return np.array(self.model.model.transform_params(free * self.unit), dtype=float)

    def factors(self, params: np.ndarray, width: np.ndarray, marked: np.ndarray) -> np.ndarray:
        own = np.array([max(params[site.parameter], np.finfo(float).tiny) for site in self.model.sites])
        return 1.0 + marked * (width**2 / own)[:, None]

    def log_prior(self, width: np.ndarray, marked: np.ndarray) -> float:
        count, n = marked.sum(axis=1), self.model.active.sum(axis=1)
        shares = betaln(count + SHARE_PRIOR[0], n - count + SHARE_PRIOR[1]).sum()
        return float(shares - 0.5 * np.sum(((np.log(width) - self.centre) / WIDTH_SPREAD) ** 2))

    def look(self) -> None:
        self.seen = self.model.smooth(self.params, self.factors(self.params, self.width, self.marked))
        self.posterior = self.seen.log_likelihood + self.log_prior(self.width, self.marked)
        self.odds = self._odds(self.seen, self.marked)
        self.moved = False

    def _odds(self, seen: Smoothed, marked: np.ndarray) -> np.ndarray:
        return log_odds(seen, marked, self.width, self.model.variances, self.model.active)

    def _log_turn(self, odds: np.ndarray, marked: np.ndarray, turned: np.ndarray) -> float:
        """log probability of proposing to turn over just these marks."""
        turn = np.clip(expit(np.where(marked, -odds, odds)), CERTAIN, 1.0 - CERTAIN)
        return float(np.where(turned, np.log(turn), np.log1p(-turn))[self.model.active].sum())

    @staticmethod
    def _log_single(odds: np.ndarray, marked: np.ndarray, turned: np.ndarray) -> float:
        """log probability of proposing to turn over just this mark."""
        chance = expit(np.where(marked, -odds, odds))
        return float(np.log(chance[turned][0] / chance.sum()))

    def turn(self) -> bool:
        """Turn over marks, each by its conditional probability; every other time a single one in proportion to it."""
        chance = expit(np.where(self.marked, -self.odds, self.odds))
        single = self.random.random() < 0.5
        if single:
            flat = chance.ravel() / chance.sum()
            turned = np.zeros(chance.size, dtype=bool)
            turned[self.random.choice(chance.size, p=flat)] = True
            turned = turned.reshape(chance.shape)
        else:
            turned = (self.random.random(chance.shape) < chance) & self.model.active
            if not turned.any():
                return True
        before = self.posterior, self.seen, self.odds, self.marked
        forth = (
            self._log_single(self.odds, self.marked, turned)
            if single
            else self._log_turn(self.odds, self.marked, turned)
        )
        self.marked = self.marked ^ turned
        self.look()
        back = (
            self._log_single(self.odds, self.marked, turned)
            if single
            else self._log_turn(self.odds, self.marked, turned)
        )
        if np.log(self.random.random()) < self.posterior - before[0] + back - forth:
            return True
        self.posterior, self.seen, self.odds, self.marked = before
        return False

    def swap(self) -> bool:
        """Move a mark to a step beside it or to another site."""
        on = np.argwhere(self.marked)
        if not len(on):
            return False
        s, t = on[self.random.integers(len(on))]
        to = self.random.integers(len(self.marked)), t + self.random.integers(-2, 3)
        if not 0 <= to[1] < self.model.steps or self.marked[to] or not self.model.active[to]:
            return False
        moved = self.marked.copy()
        moved[s, t], moved[to] = False, True
        value = self.model.log_likelihood(self.params, self.factors(self.params, self.width, moved))
        value += self.log_prior(self.width, moved)
        if np.log(self.random.random()) < value - self.posterior:
            self.marked, self.posterior, self.moved = moved, value, True
            return True
        return False

    def redraw(self, step: int) -> None:
        """Draw the marks that bear on two neighbouring values anew, all together."""
        sites = self.random.permutation(len(self.marked))[:2]
        bits = []
        for s in sites:
            # A break between two values is the disturbance of the earlier step.
            first = step - 1 if self.model.sites[s].is_break else step
            bits += [(s, t) for t in (first, first + 1) if 0 <= t < self.model.steps and self.model.active[s, t]]
        choices, values = [], []
        for pattern in itertools.product((False, True), repeat=len(bits)):
            marked = self.marked.copy()
            for place, on in zip(bits, pattern):
                marked[place] = on
            if np.array_equal(marked, self.marked):
                value = self.posterior
            else:
                value = self.model.log_likelihood(self.params, self.factors(self.params, self.width, marked))
                value += self.log_prior(self.width, marked)
            choices.append(marked)
            values.append(value)
        share = np.exp(np.array(values) - max(values))
        chosen = int(self.random.choice(len(choices), p=share / share.sum()))
        self.moved |= not np.array_equal(self.marked, choices[chosen])
        self.marked, self.posterior = choices[chosen], values[chosen]

    def trade(self, place: tuple[int, int]) -> bool:
        """Turn one mark over and at once give its site another standard deviation: a jump, or a level that wanders."""
        which = self.model.sites[place[0]].parameter
        change = TRADED * self.random.standard_normal()
        free = self.free.copy()
        free[which] *= np.exp(change)
        marked = self.marked.copy()
        marked[place] ^= True
        params = self._natural(free)
        value = self.model.log_likelihood(params, self.factors(params, self.width, marked)) + self.log_prior(
            self.width, marked
        )
        # Flat in the standard deviation itself, so a step in its logarithm counts that.
        if np.isfinite(value) and np.log(self.random.random()) < value - self.posterior + change:
            self.free, self.params, self.marked, self.posterior, self.moved = free, params, marked, value, True
            return True
        return False

    def walk(self, step: np.ndarray) -> bool:
        """Move standard deviations and widths by `step`."""
        k = len(self.free)
        free, width = self.free + step[:k], self.width * np.exp(step[k:])
        try:
            params = self._natural(free)
            value = self.model.log_likelihood(params, self.factors(params, width, self.marked))
        except (ValueError, np.linalg.LinAlgError):
            return False
        value += self.log_prior(width, self.marked)
        if np.isfinite(value) and np.log(self.random.random()) < value - self.posterior:
            self.free, self.width, self.params, self.posterior, self.moved = free, width, params, value, True
            return True
        return False


def mark_steps(
    model: Disturbances,
    params: np.ndarray,
    factors: np.ndarray,
    seed: int = 0,
    kept: int | None = None,
    burn: int = BURN,
) -> Marks:
    """Probabilities of outliers and breaks, from a chain that starts where the heavy-tailed fit ended."""
    kept = 20 * (int(np.clip(PASSES / model.steps, KEPT, MOST_KEPT)) // 20) if kept is None else kept
    random = np.random.default_rng(seed)
    params, marked = _first_marks(model, params, factors)
    free = np.array(model.model.untransform_params(params), dtype=float)
    unit = np.where(np.abs(free) > 0, np.abs(free), 1.0)
    seen = model.smooth(params, np.where(marked, factors, 1.0))
    width = WIDTH * np.array([_sight(one, active) for one, active in zip(seen.information, model.active)])
    chain = _Chain(model, unit, np.log(width), free / unit, width, marked, random)
    for _ in range(4):
        chain.marked = (chain.odds > 0) & model.active
        chain.look()
    k = len(free)
    size = len(free) + len(width)
    root = np.diag(np.concatenate([np.full(k, 0.15), np.full(len(width), 0.3)])) / np.sqrt(size)
    scale, trail = 1.0, []
    shape = marked.shape
    total, batches = np.zeros(shape), []
    sums = np.zeros((3, len(width)))
    counts = {"turn": 0.0, "swap": 0.0, "walk": 0.0}
    batch, drawn = np.zeros(shape), []
    early, doubtful, places = np.zeros(shape), np.zeros(0, dtype=int), np.zeros((0, 2), dtype=int)
    traded = 0
    for sweep in range(burn + kept):
        walked = chain.walk(scale * root @ random.standard_normal(size))
        swapped = sum(chain.swap() for _ in range(SWAPS))
        if len(doubtful) and sweep % REDRAWN == 0:
            chain.redraw(int(doubtful[random.integers(len(doubtful))]))
        for _ in range(TRADES if len(places) else 0):
            traded += chain.trade(tuple(places[random.integers(len(places))])) * (sweep >= burn)
        if chain.moved:
            chain.look()
        if sweep >= burn:
            chance = expit(chain.odds)
            total += chance
            batch += chance
            held = np.array([max(chain.params[site.parameter], 0.0) for site in model.sites])
            count, n = chain.marked.sum(axis=1), model.active.sum(axis=1)
            sums += np.array([np.sqrt(held), chain.width, (count + SHARE_PRIOR[0]) / (n + sum(SHARE_PRIOR))])
            if (sweep - burn) % THIN == 0:
                drawn.append(chain.marked.copy())
            if (sweep - burn + 1) % (kept // 20) == 0:
                batches.append(batch / (kept // 20))
                batch = np.zeros(shape)
        turned = chain.turn()
        if sweep >= burn:
            for name, value in (("turn", turned), ("swap", swapped / SWAPS), ("walk", walked)):
                counts[name] += value / kept
        else:
            scale *= np.exp((walked - 0.25) / np.sqrt(sweep + 1.0))
            early = np.maximum(early, expit(chain.odds))
            if sweep == burn - 1:
                places = np.argwhere(early > DOUBTFUL)
                doubtful = np.unique([t + model.sites[s].is_break for s, t in places])
            trail.append(np.concatenate([chain.free, np.log(chain.width)]))
            if sweep in (burn // 2, burn - 1):
                late = np.array(trail[len(trail) // 3 :])
                spread = np.cov(late.T).reshape(size, size) + 1e-8 * np.eye(size)
                root, scale = np.linalg.cholesky(spread), 2.38 / np.sqrt(size)
    counts["trade"] = traded / max(kept * TRADES, 1)
    error = np.std(batches, axis=0, ddof=1) / np.sqrt(len(batches))
    core, wide, share = sums / kept
    return Marks(total / kept, error, core, wide, share, counts, np.array(drawn))


def _sight(information: np.ndarray, active: np.ndarray) -> float:
    """The standard error with which a single disturbance is seen: the median over steps."""
    known = information.max(axis=0)[active]
    known = known[known > 0]
    return float(1.0 / np.sqrt(np.median(known))) if len(known) else 1.0


def _first_marks(model: Disturbances, params: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The core's variances, where the middle of the steps has them, and steps whose fitted variance is many times that."""
    params, marked = params.copy(), np.zeros(factors.shape, dtype=bool)
    for s, site in enumerate(model.sites):
        middle = float(np.median(factors[s][site.active]))
        params[site.parameter] *= middle
        marked[s] = site.active & (factors[s] > max(20.0 * middle, np.quantile(factors[s][site.active], 0.9)))
    return params, marked


def near(drawn: np.ndarray, within: int) -> np.ndarray:
    """For every step, how often some mark lies within so many steps of it; `drawn` is (draws, T)."""
    found = drawn.copy()
    for shift in range(1, within + 1):
        found[:, shift:] |= drawn[:, :-shift]
        found[:, :-shift] |= drawn[:, shift:]
    return found.mean(axis=0)


def apart(order: np.ndarray, within: int) -> np.ndarray:
    """Steps in their order without those within so many steps of an earlier one."""
    kept: list[int] = []
    for step in order:
        if all(abs(int(step) - one) > within for one in kept):
            kept.append(int(step))
    return np.array(kept, dtype=int)
