"""What does a fitted mixture look like? Ellipses over two columns with the outliers marked, and BIC by components."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import clone

from robustly.errors import DataError
from robustly.mixture.estimator import RobustGaussianMixture
from robustly.mixture.fitted import FittedMixture, read_new_rows
from robustly.model import scale_matrices
from robustly.rows.anywhere import in_memory_if_stored

COLOURS = ("#4C72B0", "#DD8452", "#55A868", "#8172B3", "#937860", "#DA8BC3", "#64B5CD", "#CCB974")
OUTLIER = "#C44E52"
MOST_POINTS = 20_000


def plot_mixture(
    model: FittedMixture,
    X: Any,
    columns: tuple[int, int] = (0, 1),
    *,
    fdr: float = 0.05,
    levels: Iterable[float] = (0.5, 0.95),
    least_weight: float = 0.01,
) -> Any:
    """Rows of `X` over two columns, coloured by component, outliers as red crosses. Returns the figure.

    Ellipses hold the given shares of a component's *core*, the normal that outliers are judged by. Components with
    less than `least_weight` are not drawn. The legend gives weights and degrees of freedom.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Ellipse

    rows = np.asarray(read_new_rows(model, in_memory_if_stored(X)))
    size, dim = model.means_.shape
    if dim < 2 or len(set(columns)) != 2 or not all(0 <= c < dim for c in columns):
        raise DataError(f"columns={columns!r} are not two different ones of the {dim} columns, which count from 0.")
    pair = list(columns)
    label = model.predict(X)
    outlier = np.zeros(len(rows), dtype=bool)
    outlier[model.outliers(fdr=fdr, X=X)] = True
    # More points than this only make a blot; outliers are all drawn.
    shown = np.zeros(len(rows), dtype=bool)
    shown[:: max(1, -(-len(rows) // MOST_POINTS))] = True
    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    axis = figure.subplots()
    shapes = scale_matrices.matrices(model.covariance_type, model.covariances_, size, dim)
    order = np.argsort(-model.weights_, kind="stable")
    for place, k in enumerate(k for k in order if model.weights_[k] >= least_weight):
        colour = COLOURS[place % len(COLOURS)]
        mine = rows[(label == k) & ~outlier & shown]
        axis.scatter(mine[:, pair[0]], mine[:, pair[1]], s=9, color=colour, alpha=0.55, linewidths=0)
        core = model.core_spread_[k] * shapes[k][np.ix_(pair, pair)]
        values, vectors = np.linalg.eigh(core)
        tilt = np.degrees(np.arctan2(vectors[1, 1], vectors[0, 1]))
        dof = model.dofs_[k]
        tails = "normal" if np.isinf(dof) else f"ν = {dof:.3g}"
        for level in levels:
            diameter = 2.0 * np.sqrt(stats.chi2(2).ppf(level))
            axis.add_patch(
                Ellipse(
                    tuple(model.means_[k][pair]),
                    diameter * np.sqrt(values[1]),
                    diameter * np.sqrt(values[0]),
                    angle=tilt,
                    fill=False,
                    color=colour,
                    lw=1.4,
                )
            )
        axis.plot([], [], color=colour, lw=1.4, label=f"{model.weights_[k]:.0%}, {tails}")
    apart = rows[outlier][:, pair]
    axis.scatter(apart[:, 0], apart[:, 1], s=26, marker="x", color=OUTLIER, lw=1.1, label=f"{outlier.sum()} outliers")
    names = getattr(model, "feature_names_in_", [f"column {c}" for c in range(dim)])
    axis.set_xlabel(str(names[pair[0]]))
    axis.set_ylabel(str(names[pair[1]]))
    axis.legend(fontsize=8, frameon=False, loc="best")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def plot_bic(X: Any, components: Iterable[int] = range(1, 9), model: RobustGaussianMixture | None = None) -> Any:
    """BIC of mixtures with each number of components, and of Gaussian ones beside them. Returns the figure.

    `model` has the other settings. The lowest point of each line is marked; where the Gaussian line goes on falling it
    is spending components on outliers.
    """
    from matplotlib.figure import Figure

    counts = sorted({int(k) for k in components})
    if not counts:
        raise DataError("components is empty; give the numbers of components to try, as range(1, 9).")
    base = RobustGaussianMixture(random_state=0) if model is None else model
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axis = figure.subplots()
    for dof, name, colour in ((base.dof, "t components", COLOURS[0]), (np.inf, "Gaussian components", COLOURS[1])):
        values = [clone(base).set_params(n_components=k, dof=dof).fit(X).bic(X) for k in counts]
        axis.plot(counts, values, marker="o", ms=4, color=colour, label=name)
        best = int(np.argmin(values))
        axis.plot(counts[best], values[best], marker="o", ms=11, mfc="none", mec=colour, mew=1.6, ls="none")
    axis.set_xticks(counts)
    axis.set_xlabel("components")
    axis.set_ylabel("BIC (lower is better)")
    axis.legend(fontsize=9, frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure
