"""statsmodels' classical models: what is paid, and lost, without localizing. Its intercept is not our `loc`."""

SOLVES = ("poisson_lognormal", "logistic", "student_t_regression")
PACKAGES = ("statsmodels", "statsmodels.api")


def fit(problem):
    import statsmodels.api as sm

    x, y = problem.data["x"], problem.data["y"]
    if problem.kind == "student_t_regression":
        return {"w": sm.RLM(y, x).fit().params}
    if problem.kind == "logistic":
        coefficients = sm.Logit(y, sm.add_constant(x)).fit(disp=0).params
        return {"w": coefficients[1:], "loc": coefficients[0]}
    coefficients = sm.GLM(y, sm.add_constant(x), sm.families.Poisson()).fit().params
    return {"w": coefficients[1:], "intercept": coefficients[0]}
