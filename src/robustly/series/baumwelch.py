r"""How is a hidden Markov model with t states fitted? EM over the chain, Newton in the degrees of freedom.

The probabilities of the states at each row come from the forward and backward recursions; given them, means, shapes and ν move
as in a t mixture (:mod:`robustly.fit.t_components`). A step that does not raise the log likelihood is taken again as plain EM, which
cannot lower it but for the floor on covariances. Where columns are missing every step is plain EM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from robustly.errors import FitError
from robustly.fit.t_components import Components, Rules, update_components
from robustly.series import emissions, recursions
from robustly.series.emissions import Pattern


@dataclass(frozen=True)
class Chain:
    """The parameters of a hidden Markov model."""

    start: np.ndarray
    transition: np.ndarray
    states: Components


@dataclass(frozen=True)
class HMMRules:
    """What stays the same over a fit."""

    emission: Rules
    params: str
    tol: float
    max_iter: int


@dataclass(frozen=True)
class HMMRun:
    """Where one start led."""

    chain: Chain
    log_likelihood: float
    history: list[float]
    converged: bool


@dataclass(frozen=True)
class Expected:
    """What a pass over the rows says at the current parameters."""

    log_likelihood: float
    share: np.ndarray
    moves: np.ndarray


def expect_states(patterns: list[Pattern], ends: np.ndarray, chain: Chain) -> Expected:
    """Likelihood, probabilities of the states at each row, expected transitions."""
    density = emissions.densities(patterns, chain.states, int(ends[-1]))
    share = np.empty_like(density)
    likelihood = recursions.forward(density, chain.start, chain.transition, ends, share)
    moves = np.zeros_like(chain.transition)
    recursions.backward(chain.transition, ends, share, moves)
    return Expected(float(likelihood), share, moves)


def run_baum_welch(patterns: list[Pattern], ends: np.ndarray, start: Chain, rules: HMMRules) -> HMMRun:
    """EM steps until the log likelihood per row moves by less than ``rules.tol``."""
    steps = int(ends[-1])
    whole = all(len(pattern.columns) == start.states.means.shape[1] for pattern in patterns)
    held, seen = start, expect_states(patterns, ends, start)
    if not np.isfinite(seen.log_likelihood):
        raise FitError("the rows have no probability under the start values. Check startprob_ and transmat_ for zeros.")
    history: list[float] = []
    converged = False
    for _ in range(rules.max_iter):
        sums = emissions.expected_sums(patterns, held.states, seen.share, rules.emission.fit_dof)
        ahead = _step(held, seen, sums, ends, rules, quick=whole)
        there = expect_states(patterns, ends, ahead)
        if whole and rules.emission.fit_dof and not there.log_likelihood >= seen.log_likelihood:
            ahead = _step(held, seen, sums, ends, rules, quick=False)
            there = expect_states(patterns, ends, ahead)
        change = (there.log_likelihood - seen.log_likelihood) / steps
        held, seen = ahead, there
        history.append(seen.log_likelihood)
        if abs(change) < rules.tol:
            converged = True
            break
    return HMMRun(held, seen.log_likelihood, history, converged)


def _step(
    held: Chain, seen: Expected, sums: emissions.MixtureSums, ends: np.ndarray, rules: HMMRules, *, quick: bool
) -> Chain:
    first = np.concatenate([[0], ends[:-1]])
    start, transition, states = held.start, held.transition, held.states
    if "s" in rules.params:
        start = seen.share[first].sum(axis=0)
        start = start / start.sum()
    if "t" in rules.params:
        rows = seen.moves.sum(axis=1, keepdims=True)
        transition = np.where(rows > 0, seen.moves / np.where(rows > 0, rows, 1.0), transition)
    if "m" in rules.params or "c" in rules.params:
        moved = update_components(states, sums, int(ends[-1]), rules.emission, quick=quick)
        if "m" not in rules.params:
            moved = replace(moved, means=states.means)
        if "c" not in rules.params:
            moved = replace(moved, covariances=states.covariances, factors=states.factors)
        states = moved
    return Chain(start, transition, states)
