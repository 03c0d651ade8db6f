"""How sure are the estimates? Full posterior draws of the parameters, with every row's own value integrated out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly.errors import RobustlyError
from robustly.fit.passes import Passes
from robustly.precision import double_precision
from robustly.rows.arrays import Rows


@dataclass(frozen=True, eq=False)
class Draws:
    """Posterior draws: natural values by name, with axes (chain, draw, …), and the vectors they came from."""

    values: dict[str, np.ndarray]
    vectors: np.ndarray
    divergences: int

    def __getitem__(self, name: str) -> np.ndarray:
        """Draws of one parameter, chains put end to end."""
        value = self.values[name]
        return value.reshape(-1, *value.shape[2:])

    def keys(self) -> Any:
        return self.values.keys()


def log_posterior(passes: Passes, rows: Rows, state: np.ndarray, log_prior: Any) -> Any:
    """The log density of the parameter vector given all rows, as one traceable function."""
    chunks = [(data, weight, np.asarray(state[place])) for place, data, weight in rows.chunks()]
    from robustly.rows.arrays import pad

    stacked = jax.tree.map(
        lambda *a: jnp.stack([jnp.asarray(x) for x in a]),
        *[(data, weight, pad(s, len(weight))) for data, weight, s in chunks],
    )
    parameters = passes.model.parameters

    def log_density(vector: Any, kept: Any) -> Any:
        def one(chunk: Any) -> Any:
            data, weight, start = chunk
            settled = passes._settle(jax.lax.stop_gradient(vector), data, start)
            evidence, _ = passes._evidences(vector, data, settled)
            return jnp.sum(jnp.where(weight > 0, weight * jnp.where(weight > 0, evidence, 0.0), 0.0))

        total = one(jax.tree.map(lambda a: a[0], kept)) if len(chunks) == 1 else jnp.sum(jax.lax.map(one, kept))
        theta = parameters.natural(vector)
        return total + passes.model.log_hyperprior(theta) + log_prior(theta) + parameters.log_volume(vector)

    return log_density, stacked


def nuts(
    passes: Passes,
    rows: Rows,
    state: np.ndarray,
    start: np.ndarray,
    covariance: np.ndarray,
    log_prior: Any,
    num_samples: int,
    num_warmup: int,
    num_chains: int,
    key: Any,
    compiled: dict[Any, Any],
) -> Draws:
    """NUTS on the integrated posterior, started at the estimate and scaled by its covariance."""
    from numpyro.infer import MCMC, NUTS

    parameters = passes.model.parameters
    scale = covariance if np.all(np.isfinite(covariance)) else np.eye(len(start))
    half = np.linalg.cholesky(scale + 1e-12 * np.trace(scale) / max(len(start), 1) * np.eye(len(start)))
    place = ("nuts", len(rows), num_samples, num_warmup, num_chains)
    with double_precision():
        log_density, kept = log_posterior(passes, rows, state, log_prior)
        if place not in compiled:
            # Whitened by the estimate's covariance the posterior is close to a standard normal: short, straight paths.
            def run(run_key: Any, centre: Any, factor: Any, data: Any) -> Any:
                kernel = NUTS(
                    potential_fn=lambda white: -log_density(centre + factor @ white, data),
                    target_accept_prob=0.8,
                    max_tree_depth=8,
                )
                sampler = MCMC(
                    kernel,
                    num_warmup=num_warmup,
                    num_samples=num_samples,
                    num_chains=num_chains,
                    chain_method="vectorized",
                    progress_bar=False,
                )
                first = jnp.zeros((num_chains, len(start)) if num_chains > 1 else (len(start),))
                sampler.run(run_key, init_params=first, extra_fields=("diverging",))
                white = sampler.get_samples(group_by_chain=True)
                vectors = centre + white @ factor.T
                natural = jax.vmap(jax.vmap(parameters.natural))(vectors)
                return vectors, natural, jnp.sum(sampler.get_extra_fields()["diverging"])

            compiled[place] = jax.jit(run)
        vectors, natural, diverged = compiled[place](key, jnp.asarray(start), jnp.asarray(half), kept)
        return Draws({name: np.asarray(value) for name, value in natural.items()}, np.asarray(vectors), int(diverged))


def to_inference_data(fit: Any, draws: Draws | None, num_samples: int, seed: int) -> Any:
    """An ArviZ InferenceData with posterior draws and integrated log likelihoods."""
    try:
        import arviz
    except ImportError as error:
        raise RobustlyError('to_arviz() needs ArviZ: pip install "robustly[arviz]".') from error
    source = fit._need("to_arviz")
    if draws is None:
        rng = np.random.default_rng(seed)
        covariance = fit._free_covariance("information")
        vectors = rng.multivariate_normal(fit.vector, covariance, size=(1, num_samples))
        origin = "normal approximation at the estimate"
    else:
        vectors, origin = draws.vectors, "NUTS with the rows' own values integrated out"
    values = source.natural_by_name(vectors)
    log_likelihood = source.evidence_at(vectors.reshape(-1, vectors.shape[-1]))
    shape = (*vectors.shape[:2], log_likelihood.shape[-1])
    data = arviz.from_dict(posterior=values, log_likelihood={"rows": log_likelihood.reshape(shape)})
    data.posterior.attrs["draws_from"] = origin
    return data
