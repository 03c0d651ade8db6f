"""How sure are the estimates? Full posterior draws of the parameters, with every row's own value integrated out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly._runtime.precision import double_precision
from robustly.approx import Approximation
from robustly.fit.passes import weighed
from robustly.fit.problem import Entering, EvidenceProblem
from robustly.model.row import RowModel
from robustly.rows.arrays import CHUNK, ArrayRows, pad
from robustly.rows.store import Data

if TYPE_CHECKING:
    import pandas as pd


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

    def summary(self, level: float = 0.9) -> pd.DataFrame:
        """By number: mean, standard deviation, the central interval, effective draws, and r̂ of two or more chains."""
        import pandas as pd
        from numpyro.diagnostics import effective_sample_size, split_gelman_rubin

        lines = {}
        for name, chains in self.chains.items():
            for index in np.ndindex(*chains.shape[2:]):
                one = np.asarray(chains[(slice(None), slice(None), *index)])
                ends = np.quantile(one, [0.5 - level / 2, 0.5 + level / 2])
                with np.errstate(invalid="ignore", divide="ignore"):
                    checks = float(effective_sample_size(one)), float(split_gelman_rubin(one))
                label = name + (f"[{','.join(map(str, index))}]" if index else "")
                lines[label] = [one.mean(), one.std(ddof=1), *ends, *checks]
        ends_named = [f"{100 * (0.5 + side * level / 2):g} %" for side in (-1, 1)]
        return pd.DataFrame.from_dict(lines, orient="index", columns=["mean", "sd", *ends_named, "effective", "r_hat"])

    def __repr__(self) -> str:
        count, each = self.vectors.shape[:2]
        return (
            f"<{count} chains of {each} draws of {', '.join(self.chains)}; {self.divergences} divergences; .summary()>"
        )


# How much effort goes into a row's integral: half the points held at the estimate, all of them, or points found anew.
ROUGH, HELD, ANEW = 0, 1, 2

# A posterior sampled with less effort must agree this well (in nats) with one whose rows are integrated anew.
AGREEMENT = 0.02
CHECKED_DRAWS = 6

# Degrees of freedom of an independence chain's proposals, its first batch (and 16 more a dimension), proposals a kept draw,
# kept draws thrown away at the start, and proposals evaluated at once. Where less than MIN_EFFICIENCY of the proposals
# count, NUTS draws instead.
TAILS = 8.0
PILOT = 96
THIN = 2
BURN = 10
BATCH = 128
MIN_EFFICIENCY = 0.25

# (vector, what else the prior depends on) -> log density
LogPrior = Callable[[Any, Any], Any]


def stack_chunks(problem: EvidenceProblem, rows: ArrayRows) -> Any:
    """All rows with their states as chunks along a leading axis."""
    rows = rows.cut_into(min(rows.chunk, CHUNK))
    states = rows.states(problem.slot)
    if states is None:
        states = np.broadcast_to(*_shaped(problem.parts[1].start(problem.parts[0]), len(rows)))
    chunks = [(data, weight, pad(np.asarray(states[place]), len(weight))) for place, data, weight in rows.chunks()]
    return jax.tree.map(lambda *parts: jnp.stack([jnp.asarray(part, dtype=_plain(part)) for part in parts]), *chunks)


def _shaped(one: np.ndarray, count: int) -> tuple[np.ndarray, tuple[int, ...]]:
    return one, (count, *one.shape)


def _plain(part: np.ndarray) -> Any:
    return np.float64 if part.dtype.kind == "f" else part.dtype


def log_posterior(
    parts: tuple[RowModel, Approximation], entering: Entering, centre: Array, chunks: Any, effort: int
) -> Callable[[Any], Any]:
    """The log likelihood of the parameter vector, as a traceable function.

    With less than full `effort`, rows are integrated at the points that suit the estimate `centre`, half of them or all:
    a posterior is not much wider than its rows' own, so these points serve all of it at a fraction of the price.
    """
    model, full = parts
    approx = full if effort > ROUGH or model.dim != 1 else full.coarser()
    single = jax.tree.leaves(chunks)[0].shape[0] == 1

    def by_row(function: Any, vector: Array, data: Data, *more: Any) -> Any:
        numbers, axes, row = entering(vector, data)
        return jax.vmap(function, (axes, 0, *(0 for _ in more)))(numbers, row, *more)

    def prepare(chunk: Any) -> Any:
        data, weight, start = chunk
        state = by_row(lambda n, row, s: full.find_mode(model, n, row, s), centre, data, start)
        return data, weight, state, by_row(lambda n, row, s: approx.anchor(model, n, row, s), centre, data, state)

    first = jax.tree.map(lambda a: a[0], chunks)
    prepared = jax.lax.stop_gradient(prepare(first) if single else jax.lax.map(prepare, chunks))

    def log_density(vector: Array) -> Array:
        def one(chunk: Any) -> Array:
            data, weight, state, anchors = chunk
            if effort == ANEW:
                held = jax.lax.stop_gradient(vector)
                state = by_row(lambda n, row, s: full.find_mode(model, n, row, s), held, data, state)
                state = jax.lax.stop_gradient(state)
                evidence = by_row(lambda n, row, s: full.evidence(model, n, row, s), vector, data, state)
            else:
                evidence = by_row(lambda n, row, a: approx.evidence_around(model, n, row, a), vector, data, anchors)
            return weighed(weight, evidence)

        return one(prepared) if single else jnp.sum(jax.lax.map(one, prepared))

    return log_density


@dataclass(frozen=True, eq=False)
class Posterior:
    """What draws are wanted of: a problem, the estimate and its covariance."""

    problem: EvidenceProblem
    log_prior: LogPrior
    """Of the vector and `beside`, traceable: all that the log density holds beside the rows' evidences."""
    centre: np.ndarray
    covariance: np.ndarray
    compiled: dict[Any, Any]
    """Samplers that were compiled for posteriors like this one, which have their model and prior in common."""
    beside: Any = None
    """What the prior depends on besides the vector."""

    def draw(self, num_samples: int, num_warmup: int, num_chains: int, key: Any) -> tuple[np.ndarray, int]:
        """Vectors (chain, draw, entry), by an independence chain where the posterior is near normal, otherwise by NUTS."""
        scale = self.covariance if np.all(np.isfinite(self.covariance)) else np.eye(len(self.centre))
        ridge = 1e-12 * np.trace(scale) / max(len(self.centre), 1)
        half = np.linalg.cholesky(scale + ridge * np.eye(len(self.centre)))
        drawn: dict[str, Any] = {}
        with double_precision():
            rows, entering = self.problem.for_draws()
            chunks = stack_chunks(self.problem, rows)
            # As little effort as is good enough.
            for effort in (ROUGH, HELD, ANEW):
                for sampler, options in (
                    (independence, (num_samples, num_chains)),
                    (nuts, (num_samples, num_chains, num_warmup)),
                ):
                    place = (sampler, effort, *options)  # sizes are told apart by jit itself, a bucket at a time
                    if place not in self.compiled:
                        run = partial(_run, self.problem.parts, entering, self.log_prior, sampler, options, effort)
                        self.compiled[place] = jax.jit(run)
                    drawn = self.compiled[place](key, self.centre, half, chunks, self.beside)
                    if float(drawn["efficiency"]) > MIN_EFFICIENCY:
                        break
                if float(drawn["gap"]) < AGREEMENT:
                    break
        return np.asarray(drawn["vectors"]), int(drawn["divergences"])


def _run(
    parts: tuple[RowModel, Approximation],
    entering: Entering,
    log_prior: LogPrior,
    sampler: Any,
    options: Any,
    effort: int,
    key: Any,
    centre: Array,
    factor: Any,
    chunks: Any,
    beside: Any,
) -> Any:
    """One sampler's draws, and how far its density is from one whose rows are integrated anew; holds no rows."""
    likelihood = log_posterior(parts, entering, centre, chunks, effort)
    # Whitened by the estimate's covariance the posterior is close to a standard normal.
    target = lambda w: likelihood(centre + factor @ w) + log_prior(centre + factor @ w, beside)
    white, more = sampler(target, centre.shape[0], key, *options)
    vectors = centre + white @ factor.T
    apart = vectors.reshape(-1, centre.shape[0])
    apart = apart[:: max(1, len(apart) // CHECKED_DRAWS)]
    anew = likelihood if effort == ANEW else log_posterior(parts, entering, centre, chunks, ANEW)
    gap = jax.lax.map(lambda v: anew(v) - likelihood(v), apart)
    return {"vectors": vectors, "gap": jnp.max(jnp.abs(gap - gap[0])), **more}


def regular_covariance(curve: np.ndarray) -> np.ndarray:
    """The inverse of minus a curvature, kept finite where the curvature is flat or turned."""
    values, vectors = np.linalg.eigh(-curve)
    return (vectors / np.maximum(np.abs(values), 1e-8 * np.abs(values).max())) @ vectors.T


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
    effective = 1.0 / jnp.sum(weight**2)
    spread = (effective * spread + 2.0 * size * jnp.eye(size)) / (effective + 2.0 * size)

    propose_key, key = jax.random.split(key)
    factor = jnp.linalg.cholesky(spread)
    count = THIN * (num_samples + BURN)
    points, log_points = propose(propose_key, (num_chains, count), mean, factor)
    log_weight = evaluate(points.reshape(-1, size)).reshape(num_chains, count) - log_points
    log_weight = jnp.where(jnp.isnan(log_weight), -jnp.inf, log_weight)
    log_u = jnp.log(jax.random.uniform(key, (num_chains, count)))

    def step(at: Array, proposed: Any) -> tuple[Any, Any]:
        place, log_here = at
        i, log_there, log_coin = proposed
        moves = log_coin < log_there - log_here
        at = jnp.where(moves, i, place), jnp.where(moves, log_there, log_here)
        return at, (at[0], moves)

    def chain(log_weights: Any, coins: Any) -> tuple[Any, Any]:
        steps = (jnp.arange(count), log_weights, coins)
        return jax.lax.scan(step, (jnp.zeros((), dtype=int), log_weights[0]), steps)[1]

    kept, moved = jax.vmap(chain)(log_weight, log_u)
    kept = kept[:, THIN * BURN :: THIN]
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
