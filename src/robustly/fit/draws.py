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
from scipy.special import softmax

from robustly._runtime.compiled import one_thread
from robustly._runtime.precision import double_precision
from robustly._runtime.random_keys import generator
from robustly.approx import Approximation
from robustly.fit.passes import weighed
from robustly.fit.problem import Entering, EvidenceProblem
from robustly.model.row import RowModel
from robustly.rows.arrays import CHUNK, SMALLEST, ArrayRows, pad
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


# How much effort goes into a row's integral: points held where they suit the estimate, or found anew for every vector.
HELD, ANEW = 0, 1

# A posterior sampled with less effort must agree this well (in nats) with one whose rows are integrated anew.
AGREEMENT = 0.02
CHECKED_DRAWS = 6

# Degrees of freedom of an independence chain's proposals, its first draws (and 16 more a dimension, filled up to what is
# evaluated at once), how many of these the estimate's covariance stands for (by dimension), proposals a kept draw,
# kept draws thrown away at the start, and proposals evaluated at once. Where less than MIN_EFFICIENCY of the proposals
# count, NUTS draws instead.
TAILS = 10.0
PILOT = 64
BELIEVED = 10.0
THIN = 2
BURN = 10
BATCH = 128
MIN_EFFICIENCY = 0.25

# (vector, what else the prior depends on) -> log density
LogPrior = Callable[[Any, Any], Any]
# vectors (draw, entry) -> their log likelihoods and log priors, in two columns
Densities = Callable[[np.ndarray], np.ndarray]


def stack_chunks(problem: EvidenceProblem, rows: ArrayRows) -> Any:
    """All rows with their states as chunks along a leading axis."""
    states = rows.states(problem.slot)
    # Thousands of densities are asked for: rows that only fill up a chunk are paid for each time.
    rows = rows.cut_into(min(rows.chunk, CHUNK, max(SMALLEST, 1 << (len(rows) - 1).bit_length())))
    if states is None:
        states = np.broadcast_to(*_shaped(problem.parts[1].start(problem.parts[0]), len(rows)))
    chunks = [(data, weight, pad(np.asarray(states[place]), len(weight))) for place, data, weight in rows.chunks()]
    return jax.tree.map(lambda *parts: np.stack([np.asarray(part, dtype=_plain(part)) for part in parts]), *chunks)


def _shaped(one: np.ndarray, count: int) -> tuple[np.ndarray, tuple[int, ...]]:
    return one, (count, *one.shape)


def _plain(part: np.ndarray) -> Any:
    return np.float64 if part.dtype.kind == "f" else part.dtype


def _for_each_row(function: Any, entering: Entering, vector: Array, data: Data, *more: Any) -> Any:
    numbers, axes, row = entering(vector, data)
    return jax.vmap(function, (axes, 0, *(0 for _ in more)))(numbers, row, *more)


def _is_one_chunk(chunks: Any) -> bool:
    return bool(jax.tree.leaves(chunks)[0].shape[0] == 1)


def prepare(parts: tuple[RowModel, Approximation], entering: Entering, centre: Array, chunks: Any) -> Any:
    """Chunks of rows with the points that suit the estimate `centre`.

    Rows are integrated at these unless points are found anew for every vector: a posterior is not much wider than its rows' own, so they serve
    all of it at a fraction of the price.
    """
    model, full = parts

    def one(chunk: Any) -> Any:
        data, weight, start = chunk
        state = _for_each_row(lambda n, row, s: full.find_mode(model, n, row, s), entering, centre, data, start)
        anchors = _for_each_row(lambda n, row, s: full.anchor(model, n, row, s), entering, centre, data, state)
        return data, weight, state, anchors

    return one(jax.tree.map(lambda a: a[0], chunks)) if _is_one_chunk(chunks) else jax.lax.map(one, chunks)


def integrated_log_density(
    parts: tuple[RowModel, Approximation],
    entering: Entering,
    effort: int,
    log_prior: LogPrior,
    is_single: bool,
    vector: Array,
    prepared: Any,
    beside: Any,
) -> Array:
    """Log likelihood and log prior of a parameter vector, traceable, from rows that were prepared for its neighbourhood."""
    model, full = parts

    def one(chunk: Any) -> Array:
        data, weight, state, anchors = chunk
        if effort == ANEW:
            held = jax.lax.stop_gradient(vector)
            state = _for_each_row(lambda n, row, s: full.find_mode(model, n, row, s), entering, held, data, state)
            state = jax.lax.stop_gradient(state)
            evidence = _for_each_row(lambda n, row, s: full.evidence(model, n, row, s), entering, vector, data, state)
        else:
            around = lambda n, row, a: full.evidence_around(model, n, row, a)
            evidence = _for_each_row(around, entering, vector, data, anchors)
        return weighed(weight, evidence)

    total = one(prepared) if is_single else jnp.sum(jax.lax.map(one, prepared))
    return jnp.stack([total, log_prior(vector, beside)])


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
        # Whitened by the estimate's covariance the posterior is close to a standard normal.
        half = np.linalg.cholesky(scale + ridge * np.eye(len(self.centre)))
        with double_precision():
            rows, entering = self.problem.for_draws()
            chunks = stack_chunks(self.problem, rows)
            asked = (num_samples, num_chains, num_warmup)
            vectors, divergences, density = self._drawn(asked, HELD, entering, chunks, half, key)
            if self._gap(vectors, density) < AGREEMENT:
                return vectors, divergences
            return self._drawn(asked, ANEW, entering, chunks, half, key)[:2]

    def _drawn(
        self, asked: tuple[int, int, int], effort: int, entering: Entering, chunks: Any, half: np.ndarray, key: Any
    ) -> tuple[np.ndarray, int, Densities]:
        """Vectors, how many steps went astray, and the density that they are drawn from."""
        model, approx = self.problem.parts
        parts = model, approx.for_draws(model) if effort == HELD else approx
        common, single = (parts, entering, effort), _is_one_chunk(chunks)
        preparing = self._kept((prepare, effort), lambda: one_thread(partial(prepare, *common[:2])))
        prepared = preparing(self.centre, chunks)
        density = self._density(common, single, prepared)
        target = lambda w: density(self.centre + w @ half.T).sum(axis=1)
        white, efficiency = independence(target, len(self.centre), generator(key), *asked[:2])
        divergences = 0
        if efficiency <= MIN_EFFICIENCY:
            make = lambda: jax.jit(partial(_run_nuts, *common, self.log_prior, single, asked))
            run = self._kept((nuts, effort, single, asked), make)
            drawn, diverged = run(key, self.centre, half, prepared, self.beside)
            white, divergences = np.asarray(drawn), int(diverged)
        return self.centre + white @ half.T, divergences, density

    def _kept(self, place: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Made once for posteriors like this one; sizes of rows are told apart by jit itself, a bucket at a time."""
        if place not in self.compiled:
            self.compiled[place] = make()
        return self.compiled[place]

    def _density(self, common: tuple[Any, Any, int], single: bool, prepared: Any) -> Densities:
        """Log likelihoods and priors of vectors, in batches of one size, so that one program serves any number of draws."""
        each = partial(integrated_log_density, *common, self.log_prior, single)
        run = self._kept(
            (integrated_log_density, common[2], single), lambda: one_thread(jax.vmap(each, (0, None, None)), often=True)
        )

        def density(vectors: np.ndarray) -> np.ndarray:
            count = len(vectors)
            filled = np.concatenate([vectors, np.tile(vectors[-1:], (-count % BATCH, 1))])
            batches = filled.reshape(-1, BATCH, vectors.shape[1])
            return np.concatenate([np.asarray(run(batch, prepared, self.beside)) for batch in batches])[:count]

        return density

    def _gap(self, vectors: np.ndarray, density: Densities) -> float:
        """How unevenly the likelihood sampled from differs from that of the fit, whose rows are integrated anew."""
        apart = vectors.reshape(-1, vectors.shape[-1])
        apart = apart[:: -(-len(apart) // CHECKED_DRAWS)]
        fit = self.problem.fresh()
        gap = np.array([fit.look(one).value - fit.log_prior_at(one) for one in apart]) - density(apart)[:, 0]
        return float(np.max(np.abs(gap - gap[0])))


def _run_nuts(
    parts: tuple[RowModel, Approximation],
    entering: Entering,
    effort: int,
    log_prior: LogPrior,
    is_single: bool,
    options: tuple[int, int, int],
    key: Any,
    centre: Array,
    half: Array,
    prepared: Any,
    beside: Any,
) -> Any:
    at = lambda vector: integrated_log_density(parts, entering, effort, log_prior, is_single, vector, prepared, beside)
    target = lambda w: at(centre + half @ w).sum()
    return nuts(target, centre.shape[0], key, *options)


def regular_covariance(curve: np.ndarray) -> np.ndarray:
    """The inverse of minus a curvature, kept finite where the curvature is flat or turned."""
    values, vectors = np.linalg.eigh(-curve)
    return (vectors / np.maximum(np.abs(values), 1e-8 * np.abs(values).max())) @ vectors.T


def independence(
    log_densities: Callable[[np.ndarray], np.ndarray],
    size: int,
    rng: np.random.Generator,
    num_samples: int,
    num_chains: int,
) -> tuple[np.ndarray, float]:
    """A Metropolis chain whose proposals do not depend on where it is: Student-t draws around the posterior.

    A first batch of weighted draws says where the posterior's mean is and how wide it is. Tails of the proposals are heavier
    than those of a posterior with exponential tails, so no region is missed; several proposals a kept draw make draws
    nearly independent. No slope is needed, and proposals are evaluated in batches. Returned are the draws (chain, draw, entry)
    and the share of the proposals that count.
    """

    def propose(count: int, mean: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shrink = rng.gamma(0.5 * TAILS, size=count) / (0.5 * TAILS)
        t = rng.normal(size=(count, size)) / np.sqrt(shrink)[:, None]
        log_t = -0.5 * (TAILS + size) * np.log1p(np.sum(t**2, axis=-1) / TAILS)
        points = mean + t @ factor.T
        found = log_densities(points) - log_t
        return points, np.where(np.isnan(found), -np.inf, found)

    pilot = PILOT + 16 * size
    first, log_weight = propose(pilot + -pilot % BATCH, np.zeros(size), np.eye(size))
    weight = softmax(log_weight)
    mean = weight @ first
    spread = (weight[:, None] * (first - mean)).T @ (first - mean)
    effective = 1.0 / np.sum(weight**2)
    believed = BELIEVED * size
    spread = (effective * spread + believed * np.eye(size)) / (effective + believed)

    count = THIN * (num_samples + BURN)
    points, log_weight = propose(num_chains * count, mean, np.linalg.cholesky(spread))
    share = softmax(log_weight)
    with np.errstate(divide="ignore"):
        log_u = np.log(rng.random((num_chains, count)))
    places = np.stack([accepted(*each) for each in zip(log_weight.reshape(num_chains, count), log_u)])
    moved = np.count_nonzero(places == np.arange(count))
    kept = places[:, THIN * BURN :: THIN]
    white = np.take_along_axis(points.reshape(num_chains, count, size), kept[:, :, None], axis=1)
    return white, float(min(1.0 / np.sum(share**2) / share.size, moved / places.size))


def accepted(log_weight: np.ndarray, log_u: np.ndarray) -> np.ndarray:
    """By proposal, the place of the last that was accepted; the chain begins at the first."""
    # One number at a time, which Python's own take a tenth of the time of NumPy's for.
    place, here, places = 0, float(log_weight[0]), []
    for i, (ahead, bar) in enumerate(zip(log_weight.tolist(), log_u.tolist())):
        # From a place without density any other is gone to, and to one without density none.
        if bar < ahead - here:
            place, here = i, ahead
        places.append(place)
    return np.array(places)


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
    return sampler.get_samples(group_by_chain=True), diverged
