"""Clusters of well-known sets with a tenth of uniform noise thrown in, and pictures of them.

Seeds are fixed; `benchmarks/mixtures.py` shows the same over ten draws.
"""

import warnings

import numpy as np
import pytest
from mixture_rows import clusters, real, with_noise
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

import robustly as rb


def agreement(make, name, seeds=3):
    """Agreement with the groups of the clean rows: of a fit to these, and of fits with noise."""
    X, labels, size = real(name)
    clean = make(size).fit(X).predict(X)
    truth = clean if labels is None else labels
    noisy = [make(size).fit(with_noise(X, np.random.default_rng(seed))).predict(X) for seed in range(seeds)]
    return adjusted_rand_score(truth, clean), np.mean([adjusted_rand_score(truth, found) for found in noisy])


def chosen(make, X, most):
    return 1 + int(np.argmin([make(k).fit(X).bic(X) for k in range(1, most + 1)]))


def plain(size):
    return GaussianMixture(size, n_init=3, random_state=0)


def robust(size):
    return rb.RobustGaussianMixture(size, tied_dof=True, random_state=0)


@pytest.mark.parametrize("name", ["faithful", "iris", "crabs"])
def test_noise_leaves_robust_clusters_where_they_were(name):
    clean, noisy = agreement(robust, name)
    assert noisy >= 0.95 * clean
    assert clean >= {"faithful": 1.0, "iris": 0.85, "crabs": 0.75}[name]


@pytest.mark.parametrize("name", ["faithful", "iris"])
def test_the_same_noise_breaks_gaussian_clusters(name):
    clean, noisy = agreement(plain, name)
    assert noisy < 0.85 * clean


def test_with_a_dof_for_each_component_clusters_stay_too():
    clean, noisy = agreement(lambda size: rb.RobustGaussianMixture(size, random_state=0), "iris")
    assert noisy >= 0.95 * clean


def test_bic_counts_clusters_where_the_gaussian_one_counts_noise():
    X, _, _ = real("faithful")
    for seed in range(3):
        noisy = with_noise(X, np.random.default_rng(seed))
        assert chosen(robust, noisy, 4) == 2
        assert chosen(plain, noisy, 4) > 2
    assert chosen(robust, X, 4) == chosen(plain, X, 4) == 2


def test_pictures_show_components_and_outliers(rng):
    X, _ = clusters(rng)
    noisy = with_noise(X, rng)
    model = robust(3).fit(noisy)
    figure = rb.mixture.plot_mixture(model, noisy)
    axis = figure.axes[0]
    assert len(axis.patches) == 6  # two ellipses each
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts[-1] == f"{len(model.outliers())} outliers"
    assert sum("ν" in text or "normal" in text for text in texts) == 3
    # An ellipse lies along its component: its long axis is the first direction of the matrix.
    heaviest = np.argmax(model.weights_)
    values, vectors = np.linalg.eigh(model.covariances_[heaviest])
    drawn = axis.patches[0]
    np.testing.assert_allclose(drawn.get_center(), model.means_[heaviest])
    assert drawn.width / drawn.height == pytest.approx(np.sqrt(values[1] / values[0]))
    along = np.array([np.cos(np.radians(drawn.angle)), np.sin(np.radians(drawn.angle))])
    assert abs(along @ vectors[:, 1]) == pytest.approx(1.0)
    with pytest.raises(rb.DataError, match="not two different ones of the 2 columns"):
        rb.mixture.plot_mixture(model, noisy, columns=(0, 2))


def test_the_bic_curve_marks_the_best_of_both_kinds():
    X, _, _ = real("faithful")
    noisy = with_noise(X, np.random.default_rng(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rb.ConvergenceWarning)
        figure = rb.mixture.plot_bic(noisy, [1, 2, 3], robust(1))
    marks = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_linestyle() == "None"]
    assert marks == [2, 3]
    with pytest.raises(rb.DataError, match="components is empty"):
        rb.mixture.plot_bic(noisy, [])
