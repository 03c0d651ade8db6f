"""How sure are the estimates? Full posterior draws of the parameters, with every row's own value integrated out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly.errors import RobustlyError
from robustly.fit.passes import Passes
from robustly.model.parameters import Parameters
from robustly.precision import double_precision
from robustly.rows.arrays import Rows, pad


@dataclass(frozen=True, eq=False)
class Draws(Mapping[str, np.ndarray]):
    """Posterior draws by parameter, chains put end to end; `chains` has them apart, `vectors` where they came from."""

    chains: dict[str, np.ndarray]
    vectors: np.ndarray
    divergences: int

    def __getitem__(self, name: str) -> np.ndarray:
        value = self.chains[name]
        return value.reshape(-1, *value.shape[2:])

    def __iter__(self) -> Iterator[str]:
        return iter(self.chains)

    def __len__(self) -> int:
        return len(self.chains)


# (centre, chunks of rows with their states, whether to settle anew) -> log density of the vector
Density = Callable[[Any, Any, bool], Callable[[Any], Any]]

# A posterior sampled with points held at the estimate must agree this well (in nats) with one integrated anew.
AGREEMENT = 0.02
CHECKED_DRAWS = 6


def stack_chunks(rows: Rows, state: np.ndarray) -> Any:
    """All rows with their states as chunks along a leading axis."""
    chunks = [(data, weight, pad(np.asarray(state[place]), len(weight))) for place, data, weight in rows.chunks()]
    return jax.tree.map(lambda *parts: jnp.stack([jnp.asarray(part) for part in parts]), *chunks)


def log_posterior(passes: Passes, log_prior: Any, centre: Any, chunks: Any, settle: bool) -> Any:
    """The log density of the parameter vector given all rows, as a traceable function.

    Without `settle`, rows are integrated at the points that suit the estimate `centre`: a posterior is not much wider
    than its rows' own, so these points serve all of it at a fraction of the price.
    """
    model, approx = passes.model, passes.approx

    single = jax.tree.leaves(chunks)[0].shape[0] == 1

    def settled_chunk(chunk: Any) -> Any:
        data, weight, start = chunk
        state = passes._settle(centre, data, start)
        return data, weight, state, jax.vmap(lambda row, s: approx.anchor(model, centre, row, s))(data, state)

    first = jax.tree.map(lambda a: a[0], chunks)
    prepared = jax.lax.stop_gradient(settled_chunk(first) if single else jax.lax.map(settled_chunk, chunks))

    def log_density(vector: Any) -> Any:
        def one(chunk: Any) -> Any:
            data, weight, state, anchors = chunk
            if settle:
                state = passes._settle(jax.lax.stop_gradient(vector), data, state)
                evidence = passes._evidences(vector, data, state)
            else:
                each = lambda row, anchor: approx.evidence_around(model, vector, row, anchor)
                evidence = jax.vmap(each)(data, anchors)
            return jnp.sum(jnp.where(weight > 0, weight * jnp.where(weight > 0, evidence, 0.0), 0.0))

        total = one(prepared) if single else jnp.sum(jax.lax.map(one, prepared))
        theta = model.parameters.natural(vector)
        return total + model.log_hyperprior(theta) + log_prior(theta) + model.parameters.log_volume(vector)

    return log_density


def nuts(
    density: Density,
    parameters: Parameters,
    rows: Rows,
    state: np.ndarray,
    start: np.ndarray,
    covariance: np.ndarray,
    num_samples: int,
    num_warmup: int,
    num_chains: int,
    key: Any,
    compiled: dict[Any, Any],
    settle: bool = False,
) -> Draws:
    """NUTS on the integrated posterior, started at the estimate and scaled by its covariance.

    ``density(centre, chunks, settle)`` gives the log density of the vector as a traceable function; `compiled` keeps the
    samplers that were compiled for it.
    """
    from numpyro.infer import MCMC, NUTS

    scale = covariance if np.all(np.isfinite(covariance)) else np.eye(len(start))
    half = np.linalg.cholesky(scale + 1e-12 * np.trace(scale) / max(len(start), 1) * np.eye(len(start)))
    place = (len(rows), num_samples, num_warmup, num_chains, settle)
    with double_precision():
        chunks = stack_chunks(rows, state)
        if place not in compiled:

            def run(run_key: Any, centre: Any, factor: Any, chunks: Any) -> Any:
                log_density = density(centre, chunks, settle)
                # Whitened by the estimate's covariance the posterior is close to a standard normal: short, straight
                # paths, and no mass matrix to learn.
                kernel = NUTS(
                    potential_fn=lambda white: -log_density(centre + factor @ white),
                    adapt_mass_matrix=False,
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
                vectors = centre + sampler.get_samples(group_by_chain=True) @ factor.T
                natural = jax.vmap(jax.vmap(parameters.natural))(vectors)
                apart = vectors.reshape(-1, len(start))[:: max(1, num_samples * num_chains // CHECKED_DRAWS)]
                anew = density(centre, chunks, True)
                gap = jax.lax.map(lambda v: anew(v) - log_density(v), apart)
                return (
                    vectors,
                    natural,
                    jnp.sum(sampler.get_extra_fields()["diverging"]),
                    jnp.max(jnp.abs(gap - gap[0])),
                )

            compiled[place] = jax.jit(run)
        vectors, natural, diverged, gap = compiled[place](key, jnp.asarray(start), jnp.asarray(half), chunks)
    if not settle and not float(gap) < AGREEMENT:
        return nuts(
            density,
            parameters,
            rows,
            state,
            start,
            covariance,
            num_samples,
            num_warmup,
            num_chains,
            key,
            compiled,
            True,
        )
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
