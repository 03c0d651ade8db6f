"""Our side: a mixture of t laws with degrees of freedom fitted, a fixed number of steps from a given start."""

SOLVES = ("t_mixture",)
PACKAGES = ("robustly.mixture",)


def fit(problem):
    import numpy as np

    from robustly.mixture import RobustGaussianMixture

    start, unit = problem.data["start"], problem.data["unit"]
    model = RobustGaussianMixture(
        len(start),
        weights_init=np.full(len(start), 1 / len(start)),
        means_init=start,
        precisions_init=np.tile(unit, (len(start), 1, 1)),
        init_params="random_from_data",
        random_state=0,
        max_iter=20,
        tol=0.0,
    ).fit(problem.data["y"])
    return {"means": model.means_, "dof": np.median(model.dofs_), "passes": model.n_iter_}
