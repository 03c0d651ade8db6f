"""Our side: the ready estimators of generalized linear models, standard errors included."""

import warnings

SOLVES = ("poisson_lognormal", "poisson_ridge", "student_t_regression", "logistic")
PACKAGES = ("robustly",)


def fit(problem):
    from robustly.glm.estimators import RobustLinearRegression, RobustLogisticRegression, RobustPoissonRegression

    x, y = problem.columns, problem.data["y"]
    if problem.kind == "student_t_regression":
        model = RobustLinearRegression(fit_intercept=False).fit(x, y)
        found = {"w": model.coef_, "dof": model.dof_, "scale": model.scale_}
    elif problem.kind == "logistic":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 0/1 responses do not identify the spread, and every fit says so
            model = RobustLogisticRegression().fit(x, y)
        shrink = (model.attenuated_coef_ / model.coef_)[0, 0]
        found = {"w": model.attenuated_coef_[0], "loc": float(model.intercept_[0]) * shrink}
    else:
        model = RobustPoissonRegression(alpha=float(problem.kind == "poisson_ridge")).fit(x, y)
        found = {"w": model.coef_, "loc": model.intercept_, "scale": model.spread_}
    errors = model.result_.standard_errors
    passes = len(model.result_.history)
    return {**found, "largest_error": float(errors.max()), "passes": passes, "outcome": model.result_.outcome.kind}
