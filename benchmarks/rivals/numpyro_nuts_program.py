"""NumPyro's NUTS on `robust.program`: the localized model as the package writes it, locals sampled with the rest."""

from itertools import count

from benchmarks.rivals._nuts import compiled_nuts
from benchmarks.rivals.robustly_localize import arguments, program
from benchmarks.rivals.robustly_posterior import summarize

SOLVES = ("poisson_lognormal",)
PACKAGES = ("jax", "numpyro", "robustly")


def prepare(problem):
    import jax

    import robustly as rb

    model, site = program(problem.kind)
    run, seeds = compiled_nuts(rb.localize(model, site).program), count()

    def again():
        return summarize(run(jax.random.key(next(seeds)), *arguments(problem)), site)

    return again


def fit(problem):
    return prepare(problem)()
