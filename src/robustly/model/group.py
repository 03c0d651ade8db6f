"""What is the model of a group? That of its rows, with one local value for all of them.

A group comes as its rows side by side, filled up to a common length, and a count for each: how often it counts, zero for what
was filled in. Its log likelihood is the sum over its rows, so whatever integrates a row's local value integrates a group's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from robustly.errors import LocalizeError
from robustly.model.row import RowModel


def grouped_model(model: RowModel) -> RowModel:
    """The same model with groups of rows as units; rows are ``(*columns of rows, counts)``."""
    if model.latents is not None:
        raise LocalizeError(
            "rows with a discrete latent of their own cannot share a local value by group: the sum over latents would be inside "
            "the product over rows. Sum the latent out in the model, or localize by row."
        )
    known = model.compiled.get(grouped_model)
    if known is not None:
        return known
    first = lambda unit: jax.tree.map(lambda column: column[0], unit[:-1])

    def log_likelihood(local: Any, theta: Any, unit: Any) -> Any:
        *columns, counts = unit
        each = jax.vmap(lambda *row: model.log_likelihood(local, theta, row))(*columns)
        return jnp.sum(jnp.where(counts > 0, counts * jnp.where(counts > 0, each, 0.0), 0.0))

    changes: dict[str, Any] = {"log_likelihood": log_likelihood, "joint": None, "guess": None, "closed": None}
    for name in ("log_prior", "transform"):
        function = getattr(model, name)
        if function is not None:
            changes[name] = lambda value, theta, unit, function=function: function(value, theta, first(unit))
    for name in ("prior", "center", "peak"):
        function = getattr(model, name)
        if function is not None:
            changes[name] = lambda theta, unit, function=function: function(theta, first(unit))
    if model.made_by is not None:
        changes["made_by"] = (grouped_model, (model,))
    return model.compiled.setdefault(grouped_model, replace(model, **changes))
