"""scikit-learn's GaussianMixture, the same number of steps from the same start."""

SOLVES = ("t_mixture",)
PACKAGES = ("sklearn.mixture",)


def fit(problem):
    import warnings

    import numpy as np
    from sklearn.mixture import GaussianMixture

    start, unit = problem.data["start"], problem.data["unit"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is asked for a fixed number of steps
        model = GaussianMixture(
            len(start),
            weights_init=np.full(len(start), 1 / len(start)),
            means_init=start,
            precisions_init=np.tile(unit, (len(start), 1, 1)),
            init_params="random_from_data",
            random_state=0,
            max_iter=20,
            tol=0.0,
        ).fit(problem.data["y"])
    return {"means": model.means_, "passes": model.n_iter_}
