"""Our side: a NumPyro program, one of its sites localized, the prior of that site fitted."""

from math import sqrt

SOLVES = ("poisson_lognormal", "student_t_regression", "counts")
PACKAGES = ("jax", "numpyro", "robustly")


def program(kind):
    """The program a user would have written for this kind of problem, and the site to localize."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    def poisson(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)

    def linear(x, y=None):
        w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)

    def rates(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    return {
        "poisson_lognormal": (poisson, "b"),
        "student_t_regression": (linear, "precision"),
        "counts": (rates, "rate"),
    }[kind]


def arguments(problem):
    return tuple(problem.data[name] for name in ("x", "y") if name in problem.data)


def prepare(problem):
    import robustly as rb

    model, site = program(problem.kind)
    robust = rb.localize(model, site)

    def again():
        fit = robust.fit(*arguments(problem))
        return {**_estimates(fit, site, problem.kind), "passes": len(fit.history), "outcome": str(fit.outcome)}

    return again


def fit(problem):
    return prepare(problem)()


def _estimates(fit, site, kind):
    prior = {name: float(value) for name, value in fit.hyperparameters[site].items()}
    if kind == "student_t_regression":
        a, b = prior["concentration"], prior["rate"]
        prior = {"dof": 2 * a, "scale": sqrt(b / a)}
    return {**prior, **fit.shared}
