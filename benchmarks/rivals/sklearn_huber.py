"""scikit-learn's HuberRegressor: robust to outlying responses, with a tuning constant instead of fitted tails."""

SOLVES = ("student_t_regression",)
PACKAGES = ("sklearn.linear_model",)


def fit(problem):
    from sklearn.linear_model import HuberRegressor

    model = HuberRegressor(fit_intercept=False, max_iter=1000).fit(problem.data["x"], problem.data["y"])
    return {"w": model.coef_}
