"""scikit-learn's plain Poisson regression, without a penalty, by its Newton solver. It has no standard errors."""

SOLVES = ("poisson_lognormal",)
PACKAGES = ("sklearn", "sklearn.linear_model")


def fit(problem):
    from sklearn.linear_model import PoissonRegressor

    model = PoissonRegressor(alpha=0.0, solver="newton-cholesky").fit(problem.data["x"], problem.data["y"])
    return {"w": model.coef_, "intercept": model.intercept_}
