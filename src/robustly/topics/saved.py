"""How are fitted topics kept? As arrays and plain numbers in one file, from which the same model comes back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from robustly.result import persist
from robustly.topics.shared import TOPIC_ARRAYS, Statistics, Topics
from robustly.topics.stream import Stream

SEEN = ("data", "indices", "indptr")


def write_topics(model: Any, path: str | os.PathLike[str]) -> Path:
    """Write a fitted model."""
    parameters = model.get_params()
    if not isinstance(parameters["random_state"], int | None):
        parameters["random_state"] = None  # a generator's state is not part of the result
    stream: Stream = model.stream_
    meta = {
        "model": type(model).__name__,
        "parameters": {k: v.item() if isinstance(v, np.generic) else v for k, v in parameters.items()},
        "history": [float(value) for value in model.history_],
        "start_history": [float(value) for value in model.start_history_],
        "validation": [float(value) for value in model.validation_],
        "evidence": model.evidence_,
        "outcome": model.outcome_,
        "n_iter": model.n_iter_,
        "documents_seen": model.documents_seen_,
        "strength": model.topics_.strength,
        "stream_seed": stream.seed,
        "fitted_tokens": stream.fitted_tokens,
        "vocabulary": list(model.vocabulary_) if model.vocabulary_ is not None else None,
        "names": list(model.feature_names_in_) if hasattr(model, "feature_names_in_") else None,
    }
    arrays = model.topics_.arrays()
    if hasattr(model, "coherence_"):
        meta["diversity"], arrays["coherence"] = model.diversity_, model.coherence_
        if model.usage_ is not None:
            arrays["usage"] = model.usage_
    if stream.statistics is not None:  # a stream goes on from its sums, which the topics alone do not give back
        sums = vars(stream.statistics)
        arrays |= {name: value for name, value in sums.items() if isinstance(value, np.ndarray)}
        meta["stream"] = {name: value for name, value in sums.items() if not isinstance(value, np.ndarray)}
    if stream.seen is not None:
        arrays |= {f"seen_{name}": getattr(stream.seen, name) for name in SEEN}
    return persist.write(path, "topics", meta, arrays)


def restore_topics(model: Any, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Give an estimator what :func:`write_topics` kept."""
    kept = {name: arrays[name] for name in TOPIC_ARRAYS}
    topics = Topics(bursty=model.bursty, strength=meta["strength"], **kept)
    model.n_features_in_ = len(topics.eta)
    model.vocabulary_ = tuple(meta["vocabulary"]) if meta["vocabulary"] is not None else None
    if meta["names"] is not None:
        model.feature_names_in_ = np.array(meta["names"], dtype=object)
    model.history_, model.validation_, model.n_iter_ = meta["history"], meta["validation"], meta["n_iter"]
    model.start_history_, model.outcome_ = meta.get("start_history", []), meta.get("outcome", "")
    stream = Stream(meta.get("stream_seed", 0), meta.get("fitted_tokens", 0.0))
    if "seen_data" in arrays:
        parts = tuple(arrays[f"seen_{name}"] for name in SEEN)
        stream.seen = sparse.csr_matrix(parts, shape=(len(parts[2]) - 1, model.n_features_in_))
    if meta.get("stream") is not None:
        sums: dict[str, Any] = {name: arrays[name] for name in ("table_counts", "total_terms", "alpha_table_counts")}
        stream.statistics = Statistics(**sums, **meta["stream"])
    model.stream_ = stream
    model.adopt(topics, meta["documents_seen"], meta.get("evidence", (model.history_ or [np.nan])[-1]))
    if "coherence" in arrays:
        model.coherence_, model.diversity_ = arrays["coherence"], meta["diversity"]
        model.usage_ = arrays.get("usage")
