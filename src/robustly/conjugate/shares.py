"""Laws of shares and of counts over categories: Dirichlet, Pólya, and rows of one category."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats


class DirichletLaw:
    """Dirichlet laws by row; deviations and quantiles are those of single shares (betas)."""

    def __init__(self, alpha: np.ndarray) -> None:
        self.alpha = np.asarray(alpha)
        self.share = stats.beta(self.alpha, self.alpha.sum(axis=-1, keepdims=True) - self.alpha)

    def mean(self) -> np.ndarray:
        return self.alpha / self.alpha.sum(axis=-1, keepdims=True)

    def std(self) -> np.ndarray:
        return self.share.std()

    def ppf(self, level: Any) -> np.ndarray:
        return self.share.ppf(level)

    def cdf(self, value: Any) -> np.ndarray:
        return self.share.cdf(value)

    def logpdf(self, value: np.ndarray) -> np.ndarray:
        return np.array([stats.dirichlet(a).logpdf(value) for a in np.atleast_2d(self.alpha)])

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> np.ndarray:
        # Gammas of a small shape underflow to 0; in logs they do not: Gamma(a) = Gamma(a + 1)·U^(1/a).
        logs = np.log(random_state.gamma(np.broadcast_to(self.alpha + 1.0, size)))
        logs = logs + np.log(random_state.random(size)) / self.alpha
        logs = logs - logs.max(axis=-1, keepdims=True)
        return np.exp(logs) / np.exp(logs).sum(axis=-1, keepdims=True)


class PolyaLaw:
    """Counts of new rows over categories; deviations and quantiles are those of single categories (beta-binomials)."""

    def __init__(self, trials: np.ndarray, alpha: np.ndarray, limit: bool = False) -> None:
        self.trials, self.alpha, self.limit = np.asarray(trials).astype(int), alpha, limit
        n = self.trials[:, None]
        self.column = stats.binom(n, alpha) if limit else stats.betabinom(n, alpha, alpha.sum() - alpha)

    def mean(self) -> np.ndarray:
        return self.column.mean()

    def std(self) -> np.ndarray:
        return self.column.std()

    def ppf(self, level: Any) -> np.ndarray:
        return self.column.ppf(level)

    def cdf(self, value: Any) -> np.ndarray:
        return self.column.cdf(value)

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> np.ndarray:
        shares = np.broadcast_to(self.alpha, size) if self.limit else DirichletLaw(self.alpha).rvs(size, random_state)
        return random_state.multinomial(np.broadcast_to(self.trials, size[:-1]), shares)


class PureRows:
    """New rows that show one category each."""

    def __init__(self, trials: np.ndarray, mean: np.ndarray) -> None:
        self.trials, self.share = np.asarray(trials, dtype=float)[:, None], mean

    def mean(self) -> np.ndarray:
        return self.trials * self.share

    def std(self) -> np.ndarray:
        return self.trials * np.sqrt(self.share * (1 - self.share))

    def ppf(self, level: Any) -> np.ndarray:
        return np.where(level <= 1 - self.share, 0.0, self.trials)

    def cdf(self, value: Any) -> np.ndarray:
        return np.where(np.asarray(value) < self.trials, 1 - self.share, 1.0)

    def rvs(self, size: tuple[int, ...], random_state: np.random.Generator) -> np.ndarray:
        chosen = random_state.choice(len(self.share), p=self.share, size=size[:-1])
        return np.eye(len(self.share))[chosen] * self.trials
