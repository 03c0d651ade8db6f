"""Our side: a conjugate pair's own fit."""

SOLVES = ("counts", "normal_t", "beta_binomial")
PACKAGES = ("jax", "numpyro", "robustly")


def prepare(problem):
    from robustly import conjugate

    pair = {
        "counts": conjugate.GammaPoisson,
        "normal_t": conjugate.NormalInverseGamma,
        "beta_binomial": conjugate.BetaBinomial,
    }[problem.kind]()
    names = {"counts": ("y",), "normal_t": ("y",), "beta_binomial": ("y", "trials")}[problem.kind]
    wanted = {
        "counts": ("concentration", "rate"),
        "normal_t": ("loc", "scale", "dof"),
        "beta_binomial": ("concentration1", "concentration0"),
    }[problem.kind]

    def again():
        fit = pair.fit(*(problem.data[name] for name in names))
        known = {**fit.hyperparameters, **fit.derived}
        estimates = {name: float(known[name]) for name in wanted}
        return {**estimates, "passes": len(fit.history), "outcome": str(fit.outcome)}

    return again


def fit(problem):
    return prepare(problem)()
