"""Our side: draws of the hyperparameters with the rows' locals integrated out. The fit before them counts as cold."""

from itertools import count

from benchmarks.rivals.robustly_localize import arguments, program

SOLVES = ("poisson_lognormal",)
PACKAGES = ("jax", "numpyro", "robustly")
DRAWS = 500


def prepare(problem):
    import jax

    import robustly as rb

    model, site = program(problem.kind)
    fit, seeds = rb.localize(model, site).fit(*arguments(problem)), count()

    def again():
        return summarize(fit.sample_posterior(DRAWS, key=jax.random.key(next(seeds))), site)

    return again


def fit(problem):
    return prepare(problem)()


def summarize(draws, site):
    """Posterior means of the prior's loc and scale, and the effective sample size of the scale."""
    import numpy as np
    from numpyro.diagnostics import effective_sample_size

    found = {name: np.asarray(_draws(draws, site, name), dtype=float) for name in ("loc", "scale")}
    scale = found["scale"].reshape((1, -1)) if found["scale"].ndim == 1 else found["scale"]
    means = {name: values.mean() for name, values in found.items()}
    return {**means, "effective_samples": float(effective_sample_size(scale))}


def _draws(draws, site, name):
    """One hyperparameter's draws, from nested or flat names, in a dict or an ArviZ container."""
    draws = getattr(draws, "posterior", draws)
    if site in draws and not hasattr(draws[site], "shape"):
        return draws[site][name]
    for flat in (f"{site}_{name}", f"{site}.{name}", f"{site}/{name}", name):
        if flat in draws:
            return draws[flat]
    raise KeyError(f"no draws of {site}'s {name} among {', '.join(map(str, draws))}")
