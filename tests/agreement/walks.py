"""A road from data to answers, walked twice; and which programs the second walk builds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
from compilations import compilations

import robustly as rb

# Both lie between 33 and 64, so their chunks have 64 rows.
FIRST, SECOND = 40, 52


@dataclass(frozen=True)
class Road:
    """What a user does from data to answers: `data(rng, n)`, `fit(data)`, and what is asked of the fit afterwards."""

    data: Callable[[np.random.Generator, int], Any]
    fit: Callable[[Any], Any]
    stages: dict[str, Callable[[Any, Any], Any]] = field(default_factory=dict)


def kept(**model):
    """Writing a fit to a file and reading it again."""

    def save_and_load(fit, data):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "fit.robustly"
            fit.save(path)
            return rb.load(path, **model)

    return {"save and load": save_and_load}


def cases(roads: dict[str, Road]) -> list[tuple[str, str]]:
    """Every stage of every road."""
    return [(name, stage) for name, road in roads.items() for stage in ("fit", *road.stages)]


def walk(road: Road) -> dict[str, list[str]]:
    """The programs each stage of a road builds when it is walked a second time.

    Nothing that other roads built is left, so that the answer does not depend on what was walked before.
    """
    jax.clear_caches()
    found: dict[str, list[str]] = {}
    for seed, n in ((0, FIRST), (1, SECOND)):
        data = road.data(np.random.default_rng(seed), n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", rb.IdentifiabilityWarning)
            warnings.simplefilter("ignore", rb.ConvergenceWarning)
            with compilations() as seen:
                fit = road.fit(data)
            found["fit"] = seen.programs
            for stage, ask in road.stages.items():
                with compilations() as seen:
                    ask(fit, data)
                found[stage] = seen.programs
    return found
