"""How do draws get to ArviZ? Posterior draws, the integrated log likelihood of every row at each, and what was observed."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.errors import RobustlyError

MOST_PREDICTED = 50_000_000
"""Replicated responses that are kept at most; beyond that, draws speak of parameters and log likelihoods only."""


def to_inference_data(fit: Any, draws: Any, num_samples: int, num_chains: int, seed: int) -> Any:
    """ArviZ' ``InferenceData``, or from version 1 on the ``DataTree`` that took its place."""
    try:
        import arviz
    except ImportError as error:
        raise RobustlyError('to_arviz() needs ArviZ: pip install "robustly[arviz]".') from error
    source = fit.need_source("to_arviz")
    if draws is None:
        draws = fit.sample_posterior(num_samples, seed, num_chains=num_chains)
    vectors = draws.vectors
    log_likelihood = source.evidence_at(vectors.reshape(-1, vectors.shape[-1]))
    shape = (*vectors.shape[:2], log_likelihood.shape[-1])
    observed = source.observed()
    # ArviZ finds what belongs together by its name.
    name = next(iter(observed)) if len(observed) == 1 else "rows"
    groups = {
        "posterior": source.natural_by_name(vectors),
        "log_likelihood": {name: log_likelihood.reshape(shape)},
        "observed_data": observed,
    }
    if log_likelihood.size <= MOST_PREDICTED:
        replicated = source.replicates(vectors.reshape(-1, vectors.shape[-1]), np.random.default_rng(seed))
        groups["posterior_predictive"] = {
            one: array.reshape(*vectors.shape[:2], -1) for one, array in replicated.items()
        }
    groups = {name: group for name, group in groups.items() if group}
    newer = int(arviz.__version__.split(".")[0]) >= 1
    data = arviz.from_dict(groups) if newer else arviz.from_dict(**groups)
    data["posterior"].attrs["draws_from"] = "posterior with the rows' own values integrated out"
    return data
