"""NumPyro's NUTS on the localized Poisson regression written by hand."""

from itertools import count

from benchmarks.rivals._nuts import compiled_nuts

SOLVES = ("poisson_lognormal",)
PACKAGES = ("jax", "numpyro")


def model(x, y=None):
    """Every row has an intercept of its own; weak priors on the rest."""
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    loc = numpyro.sample("loc", dist.Normal(0.0, 10.0))
    scale = numpyro.sample("scale", dist.HalfNormal(5.0))
    with numpyro.plate("rows", x.shape[0]):
        b = numpyro.sample("b", dist.Normal(loc, scale))
        numpyro.sample("y", dist.Poisson(jnp.exp(b + x @ w)), obs=y)


def prepare(problem):
    import jax
    import numpy as np
    from numpyro.diagnostics import effective_sample_size

    run, seeds = compiled_nuts(model), count()

    def again():
        draws = run(jax.random.key(next(seeds)), problem.data["x"], problem.data["y"])
        means = {name: np.asarray(draws[name]).mean((0, 1)) for name in ("w", "loc", "scale")}
        return {**means, "effective_samples": effective_sample_size(np.asarray(draws["scale"]))}

    return again


def fit(problem):
    return prepare(problem)()
