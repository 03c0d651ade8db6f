"""glum's plain regressions: the fastest of the classical ones in Python. Standard errors are not among what it is asked for."""

SOLVES = ("poisson_lognormal", "poisson_ridge", "logistic")
PACKAGES = ("glum",)


def fit(problem):
    from glum import GeneralizedLinearRegressor

    family = "binomial" if problem.kind == "logistic" else "poisson"
    # The penalty is of the mean over rows here, and of their sum on our side: both are the same prior, N(0, 1).
    alpha = 1.0 / len(problem.data["y"]) if problem.kind == "poisson_ridge" else 0.0
    model = GeneralizedLinearRegressor(family=family, alpha=alpha).fit(problem.columns, problem.data["y"])
    return {"w": model.coef_, "intercept": model.intercept_}
