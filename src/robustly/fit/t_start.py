r"""Where does a fit of a mixture start? Near the clusters, not near the outliers.

``"robust"`` makes several trimmed k-means starts (Cuesta-Albertos, Gordaliza & Matrán 1997) on a sample of rows with
columns brought to one scale, lets each climb for a few steps with heavy tails, and keeps the best one that is not about to
collapse. Seeds are drawn as in
k-means++, but never from the tenth of the rows that is farthest from the seeds so far: an outlier is always far. The other
starts are scikit-learn's, draw for draw.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.cluster import KMeans, kmeans_plusplus

from robustly.errors import ModelError
from robustly.fit.t_components import EMPTY, Components, Rules, run_ecm
from robustly.model import scale_matrices
from robustly.rows.store import Rows, sample_places

STARTS = ("robust", "kmeans", "k-means++", "random", "random_from_data")
TRIES, SAMPLE, TRIMMED = 12, 3000, 0.1
# Rows that tell scales and a rough start, where there are more.
MANY = 1 << 17
FIRST_STEPS, FIRST_DOF = 40, 4.0
# Least variance of a component in any direction, beside the variance of all rows in that direction.
FLAT = 1e-4
# A component with less than this share of the rows and more than the volume of all of them is made of outliers.
SPARSE = 0.2


def column_spread(X: np.ndarray | Rows) -> np.ndarray:
    """A scale for each column that outliers do not move: quartiles, else the standard deviation, else the size; never 0."""
    X = some_rows(X)
    low, high = np.quantile(X, [0.25, 0.75], axis=0)
    spread = (high - low) / 1.349
    # Unit-free: a column is constant when it varies by less than its last digits.
    size = np.abs(X).max(axis=0, initial=0.0)
    deviation = X.std(axis=0)
    spread = np.where(spread > 1e-12 * size, spread, deviation)
    varies = spread > 1e-12 * size
    others = spread[varies].min() if varies.any() else 0.0
    # A constant column says nothing; any scale will do, and one like the others' keeps the matrices well conditioned.
    fallback = np.where(size > 0, size, 1.0) if others == 0 else np.full(len(spread), others)
    return np.where(varies, spread, np.maximum(fallback, np.finfo(float).tiny ** 0.25))


def some_rows(X: np.ndarray | Rows) -> np.ndarray:
    """The rows, or of many a sample of them: the same ones wherever they live."""
    if isinstance(X, Rows):
        return X.sample(MANY, 0).data[0]
    return X if len(X) <= MANY else X[sample_places(MANY, len(X), 0)]


def _rows_at(X: np.ndarray | Rows, place: np.ndarray) -> np.ndarray:
    """Rows by their numbers, in the order drawn."""
    if not isinstance(X, Rows):
        return X[place]
    order = np.argsort(place)
    found = X.take(place[order]).data[0]
    return found[np.argsort(order)]


def make_start(
    X: np.ndarray | Rows,
    size: int,
    how: str,
    rules: Rules,
    random: np.random.RandomState,
    given: dict[str, Any],
    dof: float,
) -> Components:
    """Components to climb from; values in `given` (weights, means, precisions) replace those found."""
    if how == "robust":
        # Nothing is searched for that is given.
        found = (
            _robust(X, size, rules, random, dof)
            if given.get("means") is None
            else _around_means(X, given["means"], rules, dof)
        )
    else:
        if isinstance(X, Rows):
            raise ModelError(f'init_params="{how}" needs rows in memory; "robust" and means_init take them anywhere.')
        found = from_shares(X, _shares(X, size, how, random), rules, dof)
    return with_given(found, given)


def with_given(found: Components, given: dict[str, Any]) -> Components:
    """The same components with a user's start values in place."""
    changes: dict[str, Any] = {}
    if given.get("weights") is not None:
        changes["weights"] = given["weights"]
    if given.get("means") is not None:
        changes["means"] = given["means"]
    if given.get("precisions") is not None:
        changes["factors"] = scale_matrices.factor_of_precisions(found.kind, given["precisions"])
        changes["covariances"] = scale_matrices.covariances_of(found.kind, changes["factors"])
    return replace(found, **changes)


def from_shares(X: np.ndarray, share: np.ndarray, rules: Rules, dof: float) -> Components:
    """Weighted means and covariances of rows shared out (n, K)."""
    mass = share.sum(axis=0) + EMPTY
    means = share.T @ X / mass[:, None]
    scatter = []
    for k, mean in enumerate(means):
        chosen = np.flatnonzero(share[:, k])
        off = X[chosen] - mean
        weighed = off * share[chosen, k, None]
        scatter.append(
            weighed.T @ off if scale_matrices.has_matrices(rules.kind) else np.einsum("ij,ij->j", weighed, off)
        )
    covariances = scale_matrices.pooled(rules.kind, np.stack(scatter), mass, rules.floor)
    return Components(
        rules.kind,
        mass / mass.sum(),
        means,
        covariances,
        scale_matrices.factor(rules.kind, covariances),
        np.full(len(means), dof),
    )


def _shares(X: np.ndarray, size: int, how: str, random: np.random.RandomState) -> np.ndarray:
    """scikit-learn's starts, taking the same random numbers in the same order."""
    n = len(X)
    share = np.zeros((n, size))
    if how == "kmeans":
        share[np.arange(n), KMeans(n_clusters=size, n_init=1, random_state=random).fit(X).labels_] = 1.0
    elif how == "random":
        share = random.uniform(size=(n, size))
        share /= share.sum(axis=1, keepdims=True)
    elif how == "random_from_data":
        share[random.choice(n, size=size, replace=False), np.arange(size)] = 1.0
    elif how == "k-means++":
        share[kmeans_plusplus(X, size, random_state=random)[1], np.arange(size)] = 1.0
    else:
        raise ModelError(f"init_params is one of {', '.join(STARTS)}; got {how!r}.")
    return share


def _around_means(X: np.ndarray | Rows, means: np.ndarray, rules: Rules, dof: float) -> Components:
    X = some_rows(X)
    labels = _nearest(X / column_spread(X), means / column_spread(X))[0]
    return from_shares(X, np.eye(len(means))[labels], rules, dof)


def body(X: np.ndarray | Rows, rules: Rules) -> Components:
    """All rows as one component with heavy tails: where they are and how they spread, whatever the outliers do."""
    X = some_rows(X)
    start = from_shares(X, np.ones((len(X), 1)), rules, FIRST_DOF)
    return run_ecm(X, start, replace(rules, fit_dof=False, tol=1e-4, max_iter=FIRST_STEPS)).components


def _robust(X: np.ndarray | Rows, size: int, rules: Rules, random: np.random.RandomState, dof: float) -> Components:
    rows = some_rows(X) if len(X) <= SAMPLE else _rows_at(X, random.choice(len(X), SAMPLE, replace=False))
    everyone = body(rows, rules)
    if size == 1:
        return replace(everyone, dofs=np.full(1, dof))
    # One ν for all at first: with its own, a single component would take all outliers at once.
    first = replace(rules, tied_dof=True, tol=1e-4, max_iter=FIRST_STEPS)
    heavy = FIRST_DOF if rules.fit_dof else dof
    best, top = None, (False, -np.inf)
    for turn in range(TRIES):
        view = _view(rows, everyone, turn)
        # Where there are no outliers nothing should be cut off, so one try in three is plain k-means.
        trimmed = 0.0 if turn % 3 == 2 else TRIMMED
        labels = _kmeans(view, _seeds(view, size, random, trimmed), trimmed)
        share = np.zeros((len(rows), size))
        kept = labels >= 0
        share[np.flatnonzero(kept), labels[kept]] = 1.0
        found = run_ecm(rows, from_shares(rows, share, rules, heavy), first)
        value = (is_sound(found.components, everyone, len(rows)), found.log_likelihood)
        if best is None or value > top:
            best, top = found.components, value
    assert best is not None
    return best if rules.fit_dof else replace(best, dofs=np.full(size, dof))


def _view(rows: np.ndarray, everyone: Components, turn: int) -> np.ndarray:
    """Rows in coordinates in which distances mean something: columns of one scale, or, every other turn, also uncorrelated.

    Clusters that are thin slices of one long cloud show only in the second.
    """
    if everyone.kind == "spherical":
        return rows * everyone.factors[0]
    white = scale_matrices.whitener(everyone.kind, everyone.factors, 1, rows.shape[1])[0]
    if white.ndim == 2 and turn % 2:
        return rows @ white
    diagonal = np.diagonal(scale_matrices.matrices(everyone.kind, everyone.covariances, 1, rows.shape[1])[0])
    return rows / np.sqrt(diagonal)


def is_sound(found: Components, everyone: Components, n: int) -> bool:
    """Whether every component looks like a cluster beside the body of all rows.

    The likelihood alone does not decide well between starts. It has no maximum: a component on a few rows in a plane
    makes it as large as one likes. And a component made of all outliers, wider than everything else together, often
    beats one more cluster. A start that leads to either is taken only if all do.
    """
    size, dim = found.means.shape
    if np.min(found.weights) * n < dim + 2:
        return False
    whole = scale_matrices.whitener(everyone.kind, everyone.factors, 1, dim)[0]
    for weight, shape in zip(found.weights, scale_matrices.matrices(found.kind, found.covariances, size, dim)):
        beside = whole.T @ shape @ whole if whole.ndim == 2 else np.outer(whole, whole) * shape
        variances = np.linalg.eigvalsh(beside)
        if variances[0] < FLAT or (weight < SPARSE and np.log(variances).mean() > 0.0):
            return False
    return True


def _seeds(X: np.ndarray, size: int, random: np.random.RandomState, trimmed: float) -> np.ndarray:
    """k-means++ that never takes one of the share of rows farthest from all seeds."""
    centre = np.median(X, axis=0)
    away = ((X - centre) ** 2).sum(axis=1)
    inner = away <= np.quantile(away, 1.0 - trimmed)
    seeds = [X[random.choice(np.flatnonzero(inner))]]
    nearest = ((X - seeds[0]) ** 2).sum(axis=1)
    while len(seeds) < size:
        chance = np.where(nearest <= np.quantile(nearest, 1.0 - trimmed), nearest, 0.0)
        total = chance.sum()
        # All rows left are copies of a seed: any will do.
        place = random.choice(len(X), p=chance / total) if total > 0 else random.randint(len(X))
        seeds.append(X[place])
        nearest = np.minimum(nearest, ((X - seeds[-1]) ** 2).sum(axis=1))
    return np.stack(seeds)


def _nearest(X: np.ndarray, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    distance = np.stack([((X - centre) ** 2).sum(axis=1) for centre in centres])
    label = distance.argmin(axis=0)
    return label, np.take_along_axis(distance, label[None], axis=0)[0]


def _kmeans(X: np.ndarray, centres: np.ndarray, trimmed: float) -> np.ndarray:
    """Labels after some rounds of k-means without the share of rows farthest from their centre, which get −1."""
    labels = np.zeros(len(X), dtype=np.int64)
    for _ in range(20):
        nearest, distance = _nearest(X, centres)
        fresh = np.where(distance <= np.quantile(distance, 1.0 - trimmed), nearest, -1)
        if np.array_equal(fresh, labels):
            break
        labels = fresh
        filled = [k for k in range(len(centres)) if np.any(labels == k)]
        centres = centres.copy()
        for k in filled:
            centres[k] = X[labels == k].mean(axis=0)
    return labels
