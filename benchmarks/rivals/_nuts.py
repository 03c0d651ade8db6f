"""NumPyro's NUTS, 500 warm-up and 500 kept draws of one chain, compiled once.

`MCMC.run` without a progress bar compiles its loop anew in every call, even for the same sampler and the same data, and
that takes longer than the sampling. Under one `jit` around the run it does not, and the first run is faster too.
"""

WARMUP, DRAWS = 500, 500


def compiled_nuts(model):
    """A function of (key, *data) that returns draws by name, shaped (chain, draw, …)."""
    import jax
    from numpyro.infer import MCMC, NUTS

    @jax.jit
    def run(key, *data):
        sampler = MCMC(NUTS(model), num_warmup=WARMUP, num_samples=DRAWS, progress_bar=False)
        sampler.run(key, *data)
        return sampler.get_samples(group_by_chain=True)

    return run
