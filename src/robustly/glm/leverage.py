r"""How is a row kept from pulling a fit by its columns alone? By a weight that falls with its robust distance from the others.

No law that works row by row on the response resists rows with outlying columns. A weight on a row's log likelihood does,
whatever its response: :math:`w_i = \min(1, (c / d_i^2)^2)` with :math:`d_i` the distance of its columns from their robust centre
(minimum covariance determinant, Rousseeuw & Van Driessen 1999) and :math:`c` the .975 quantile of :math:`\chi^2`. This is a
generalised M-estimator in the manner of Mallows, not a model: good leverage points, which say most about a slope, lose their
say as well, and standard errors treat the weights as given.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.errors import DataError, ModelError
from robustly.model.linear import Design

QUANTILE = 0.975
# Scikit-learn's algorithm draws subsets at random; the same rows get the same weights.
SEED = 0


def weighed_by_columns(design: Design, given: Any) -> tuple[Design, tuple[str, ...]]:
    """The design with the weights asked for, ``"mcd"`` or a number a row, and what to say about them."""
    if given is None:
        return design, ()
    n = len(design)
    if isinstance(given, str):
        if given != "mcd":
            raise ModelError(f'x_weights is None, "mcd" or a number a row; got {given!r}.')
        weight = mcd_weights(design)
    else:
        weight = np.asarray(given, dtype=float)
        if weight.shape != (n,):
            raise DataError(f"x_weights has shape {weight.shape}, but there are {n} rows. Give one number a row.")
        bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
        if bad.size:
            raise DataError(f"x_weights holds {weight[bad[0]]} in row {bad[0]}; weights are numbers of at least 0.")
    low = int((weight < 0.5).sum())
    note = (
        f"rows are weighted by their columns (x_weights): {low} of {n} count less than half. Standard errors take the weights "
        "as given."
    )
    return design.weighed(design.rows.weight * weight), (note,)


def mcd_weights(design: Design) -> np.ndarray:
    """Weights by robust distances of the rows' columns; columns that do not vary or hold few values say nothing here."""
    import warnings

    from scipy.stats import chi2
    from sklearn.covariance import MinCovDet

    if design.sparse:
        raise ModelError('x_weights="mcd" needs a dense matrix of columns. Give numbers, or X.toarray().')
    columns = np.asarray(design.matrix)
    # Most rows of a 0/1 column are alike, so that a robust scale of it is 0.
    varied = [j for j in range(columns.shape[1]) if np.subtract(*np.quantile(columns[:, j], [0.75, 0.25])) > 0]
    varied = [j for j in varied if len(np.unique(columns[:, j])) > 2]
    if not varied:
        raise ModelError(
            'x_weights="mcd" needs a column that varies over most rows; there is none. Give numbers instead.'
        )
    if len(columns) < 3 * len(varied):
        raise ModelError(
            f'x_weights="mcd" needs three rows a column; got {len(columns)} rows and {len(varied)} columns that vary. '
            "Give numbers instead."
        )
    chosen = columns[:, varied]
    middle = np.median(chosen, axis=0)
    spread = np.median(np.abs(chosen - middle), axis=0)
    chosen = (chosen - middle) / np.where(spread > 0, spread, 1.0)
    with warnings.catch_warnings():
        # Ties in columns make some subsets singular, which the algorithm says and survives.
        warnings.simplefilter("ignore")
        distance = MinCovDet(random_state=SEED).fit(chosen).mahalanobis(chosen)
    return np.minimum(1.0, (chi2(len(varied)).ppf(QUANTILE) / np.maximum(distance, 1e-12)) ** 2)
