"""NumPyro's AutoLaplaceApproximation by SVI on the same model as `numpyro_nuts`.

It climbs to the joint mode of locals and spread, where the spread is too small, so look at its errors before its times.
"""

from benchmarks.rivals.numpyro_nuts import model

SOLVES = ("poisson_lognormal",)
PACKAGES = ("jax", "numpyro")
STEPS, STEP_SIZE = 2000, 0.02


def prepare(problem):
    """NumPyro compiles anew in every `SVI.run`, so the loop is compiled here, once, as a user who repeats it would."""
    import jax
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoLaplaceApproximation
    from numpyro.optim import Adam

    guide = AutoLaplaceApproximation(model)
    svi = SVI(model, guide, Adam(STEP_SIZE), Trace_ELBO())
    x, y = problem.data["x"], problem.data["y"]
    start = svi.init(jax.random.key(0), x, y)

    @jax.jit
    def climb(state, x, y):
        state = jax.lax.fori_loop(0, STEPS, lambda _, state: svi.update(state, x, y)[0], state)
        return guide.median(svi.get_params(state))

    def again():
        median = jax.block_until_ready(climb(start, x, y))
        return {name: median[name] for name in ("w", "loc", "scale")}

    return again


def fit(problem):
    return prepare(problem)()
