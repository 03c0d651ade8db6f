"""How do draws get to ArviZ? Posterior draws, the integrated log likelihood of every row at each, and what was observed."""

from __future__ import annotations

from typing import Any

import numpy as np

from robustly.errors import RobustlyError


def to_inference_data(fit: Any, draws: Any, num_samples: int, seed: int) -> Any:
    """ArviZ' ``InferenceData``, or from version 1 on the ``DataTree`` that took its place."""
    try:
        import arviz
    except ImportError as error:
        raise RobustlyError('to_arviz() needs ArviZ: pip install "robustly[arviz]".') from error
    source = fit.need_source("to_arviz")
    if draws is None:
        rng = np.random.default_rng(seed)
        vectors = rng.multivariate_normal(fit.vector, fit.free_covariance(), size=(1, num_samples))
        origin = "normal approximation at the estimate"
    else:
        vectors, origin = draws.vectors, "posterior with the rows' own values integrated out"
    log_likelihood = source.evidence_at(vectors.reshape(-1, vectors.shape[-1]))
    shape = (*vectors.shape[:2], log_likelihood.shape[-1])
    groups = {
        "posterior": source.natural_by_name(vectors),
        "log_likelihood": {"rows": log_likelihood.reshape(shape)},
        "observed_data": source.observed(),
    }
    groups = {name: group for name, group in groups.items() if group}
    newer = int(arviz.__version__.split(".")[0]) >= 1
    data = arviz.from_dict(groups) if newer else arviz.from_dict(**groups)
    data["posterior"].attrs["draws_from"] = origin
    return data
