"""glum's plain regressions: the fastest of the classical ones in Python. Standard errors are not among what it is asked for."""

SOLVES = ("poisson_lognormal", "logistic")
PACKAGES = ("glum",)


def fit(problem):
    from glum import GeneralizedLinearRegressor

    family = "poisson" if problem.kind == "poisson_lognormal" else "binomial"
    model = GeneralizedLinearRegressor(family=family, alpha=0).fit(problem.data["x"], problem.data["y"])
    return {"w": model.coef_, "intercept": model.intercept_}
