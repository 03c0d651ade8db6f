"""How sure are the estimates? Full posterior draws of the parameters, with every row's own value integrated out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from robustly._runtime.precision import double_precision
from robustly.errors import RobustlyError
from robustly.fit.passes import Passes
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


# (centre, chunks of rows with their states, effort) -> log density of the vector
Density = Callable[[Any, Any, int], Callable[[Any], Any]]

# How much effort goes into a row's integral: half the points held at the estimate, all of them, or points found anew.
ROUGH, HELD, ANEW = 0, 1, 2

# A posterior sampled with less effort must agree this well (in nats) with one whose rows are integrated anew.
AGREEMENT = 0.02
CHECKED_DRAWS = 6

# Degrees of freedom of an independence chain's proposals, its first batch (and 16 more a dimension), proposals a kept draw, kept draws thrown away
# at the start, and proposals evaluated at once. Where less than ENOUGH of the proposals count, NUTS draws instead.
TAILS = 8.0
PILOT = 96
EACH = 2
BURN = 10
BATCH = 128
ENOUGH = 0.25


def stack_chunks(rows: Rows, state: np.ndarray) -> Any:
    """All rows with their states as chunks along a leading axis."""
    chunks = [(data, weight, pad(np.asarray(state[place]), len(weight))) for place, data, weight in rows.chunks()]
    return jax.tree.map(lambda *parts: jnp.stack([jnp.asarray(part) for part in parts]), *chunks)


def log_posterior(passes: Passes, log_prior: Any, centre: Any, chunks: Any, effort: int) -> Any:
    """The log density of the parameter vector given all rows, as a traceable function.

    With less than full `effort`, rows are integrated at the points that suit the estimate `centre`, half of them or all:
    a posterior is not much wider than its rows' own, so these points serve all of it at a fraction of the price.
    """
    model, settle = passes.model, effort == ANEW
    approx = passes.approx if effort > ROUGH or passes.model.dim != 1 else passes.approx.coarser()

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


@dataclass(frozen=True, eq=False)
class Posterior:
    """What draws are wanted of: the rows, where their states are, the estimate and its covariance."""

    density: Density
    """``density(centre, chunks, effort)`` gives the log density of the vector as a traceable function."""
    natural: Callable[[Any], dict[str, Any]]
    """The vector as natural values by name, traceable."""
    rows: Rows
    state: np.ndarray
    centre: np.ndarray
    covariance: np.ndarray
    compiled: dict[Any, Any]
    """Samplers that were compiled for this posterior."""

    def draw(self, num_samples: int, num_warmup: int, num_chains: int, key: Any) -> Draws:
        """Draws by an independence chain where the posterior is close enough to normal for it, otherwise by NUTS."""
        scale = self.covariance if np.all(np.isfinite(self.covariance)) else np.eye(len(self.centre))
        ridge = 1e-12 * np.trace(scale) / max(len(self.centre), 1)
        half = np.linalg.cholesky(scale + ridge * np.eye(len(self.centre)))
        drawn: dict[str, Any] = {}
        with double_precision():
            chunks = stack_chunks(self.rows, self.state)
            # As little effort as is good enough.
            for effort in (ROUGH, HELD, ANEW):
                for sampler, options in (
                    (independence, (num_samples, num_chains)),
                    (nuts, (num_samples, num_chains, num_warmup)),
                ):
                    place = (sampler, effort, *options)  # sizes are told apart by jit itself, a bucket at a time
                    if place not in self.compiled:
                        self.compiled[place] = jax.jit(partial(self._run, sampler, options, effort))
                    drawn = self.compiled[place](key, self.centre, half, chunks)
                    if float(drawn["efficiency"]) > ENOUGH:
                        break
                if float(drawn["gap"]) < AGREEMENT:
                    break
        return Draws(
            {name: np.asarray(value) for name, value in drawn["natural"].items()},
            np.asarray(drawn["vectors"]),
            int(drawn["divergences"]),
        )

    def _run(self, sampler: Any, options: Any, effort: int, key: Any, centre: Any, factor: Any, chunks: Any) -> Any:
        log_density = self.density(centre, chunks, effort)
        # Whitened by the estimate's covariance the posterior is close to a standard normal.
        white, more = sampler(lambda w: log_density(centre + factor @ w), len(self.centre), key, *options)
        vectors = centre + white @ factor.T
        apart = vectors.reshape(-1, len(self.centre))
        apart = apart[:: max(1, len(apart) // CHECKED_DRAWS)]
        anew = log_density if effort == ANEW else self.density(centre, chunks, ANEW)
        gap = jax.lax.map(lambda v: anew(v) - log_density(v), apart)
        return {
            "vectors": vectors,
            "natural": jax.vmap(jax.vmap(self.natural))(vectors),
            "gap": jnp.max(jnp.abs(gap - gap[0])),
            **more,
        }


def independence(log_density: Any, size: int, key: Any, num_samples: int, num_chains: int) -> tuple[Any, Any]:
    """A Metropolis chain whose proposals do not depend on where it is: Student-t draws around the posterior.

    A first batch of weighted draws says where the posterior's mean is and how wide it is. Tails of the proposals are heavier
    than those of a posterior with exponential tails, so no region is missed; several proposals a kept draw make draws
    nearly independent. No slope is needed, and proposals are evaluated in batches.
    """
    pilot_key, key = jax.random.split(key)
    evaluate = lambda points: jax.lax.map(log_density, points, batch_size=BATCH)

    def propose(a_key: Any, shape: tuple[int, ...], mean: Any, factor: Any) -> tuple[Any, Any]:
        normal_key, chi_key = jax.random.split(a_key)
        normal = jax.random.normal(normal_key, (*shape, size))
        shrink = jax.random.gamma(chi_key, 0.5 * TAILS, shape) / (0.5 * TAILS)
        t = normal / jnp.sqrt(shrink)[..., None]
        log_t = -0.5 * (TAILS + size) * jnp.log1p(jnp.sum(t**2, axis=-1) / TAILS)
        return mean + t @ factor.T, log_t

    first, log_first = propose(pilot_key, (PILOT + 16 * size,), jnp.zeros(size), jnp.eye(size))
    weight = jax.nn.softmax(evaluate(first) - log_first)
    mean = weight @ first
    spread = (weight[:, None] * (first - mean)).T @ (first - mean)
    worth = 1.0 / jnp.sum(weight**2)
    spread = (worth * spread + 2.0 * size * jnp.eye(size)) / (worth + 2.0 * size)

    propose_key, key = jax.random.split(key)
    factor = jnp.linalg.cholesky(spread)
    count = EACH * (num_samples + BURN)
    points, log_points = propose(propose_key, (num_chains, count), mean, factor)
    log_weight = evaluate(points.reshape(-1, size)).reshape(num_chains, count) - log_points
    log_weight = jnp.where(jnp.isnan(log_weight), -jnp.inf, log_weight)
    log_u = jnp.log(jax.random.uniform(key, (num_chains, count)))

    def step(at: Any, proposed: Any) -> tuple[Any, Any]:
        place, log_here = at
        i, log_there, log_coin = proposed
        moves = log_coin < log_there - log_here
        at = jnp.where(moves, i, place), jnp.where(moves, log_there, log_here)
        return at, (at[0], moves)

    def chain(log_weights: Any, coins: Any) -> tuple[Any, Any]:
        steps = (jnp.arange(count), log_weights, coins)
        return jax.lax.scan(step, (jnp.zeros((), dtype=int), log_weights[0]), steps)[1]

    kept, moved = jax.vmap(chain)(log_weight, log_u)
    kept = kept[:, EACH * BURN :: EACH]
    share = jax.nn.softmax(log_weight.reshape(-1))
    white = jnp.take_along_axis(points, kept[:, :, None], axis=1)
    efficiency = jnp.minimum(1.0 / jnp.sum(share**2) / share.size, jnp.mean(moved))
    return white, {"efficiency": efficiency, "divergences": jnp.zeros((), dtype=int)}


def nuts(log_density: Any, size: int, key: Any, num_samples: int, num_chains: int, num_warmup: int) -> tuple[Any, Any]:
    """NUTS from the estimate; a whitened posterior has short, straight paths and needs no mass matrix."""
    from numpyro.infer import MCMC, NUTS

    kernel = NUTS(
        potential_fn=lambda white: -log_density(white),
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
    first = jnp.zeros((num_chains, size) if num_chains > 1 else (size,))
    sampler.run(key, init_params=first, extra_fields=("diverging",))
    diverged = jnp.sum(sampler.get_extra_fields()["diverging"])
    return sampler.get_samples(group_by_chain=True), {"efficiency": jnp.ones(()), "divergences": diverged}


def to_inference_data(fit: Any, draws: Draws | None, num_samples: int, seed: int) -> Any:
    """Posterior draws and integrated log likelihoods as ArviZ has them: an InferenceData, from ArviZ 1 on a DataTree."""
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
    groups = {"posterior": values, "log_likelihood": {"rows": log_likelihood.reshape(shape)}}
    # From 1.0 on ArviZ takes groups as one dictionary, and gives an xarray DataTree for what was an InferenceData.
    grouped = "data" in inspect.signature(arviz.from_dict).parameters
    data = arviz.from_dict(groups) if grouped else arviz.from_dict(**groups)
    data["posterior"].attrs["draws_from"] = origin
    return data
