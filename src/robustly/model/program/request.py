"""What is asked of a program, and where a search for its values begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from robustly.errors import LocalizeError
from robustly.model.program.trace import Trace

Run = Callable[..., Trace]
Ask = Callable[..., Any]


class Tangled(LocalizeError):
    """A shared site whose prior follows a localized one."""

    def __init__(self, site: str, text: str) -> None:
        super().__init__(text)
        self.site = site


@dataclass(frozen=True, eq=False)
class Request:
    """What was asked of a program: which sites are local, which arguments are held, what is believed of the others."""

    model: Callable[..., Any]
    sites: tuple[str, ...]
    rows: tuple[str, ...] | None = None
    fixed: Mapping[str, Mapping[str, Any]] | None = None
    hyperprior: Mapping[str, Mapping[str, Any]] | None = None
    plate: str | None = None
    flat: tuple[str, ...] = ()
    """Shared sites whose own prior is left out (the classical limit of a localized site)."""
    follow: bool = False
    """Whether sites whose prior follows a localized one are localized too."""
    as_written: bool = False
    """Whether the priors of the sites stay as the model states them, with nothing of them fitted."""


def central_value(site: Any, limit: Any) -> Any:
    """Where the search for a shared site starts: the middle of its prior if that is a moderate number."""
    if site["type"] == "param":
        return site["value"]
    bijection = biject_to(limit)
    shape = jnp.shape(site["value"])
    neutral = lambda: bijection(jnp.zeros(bijection.inverse_shape(shape)))
    try:
        mean = np.broadcast_to(np.asarray(site["fn"].mean), shape)
        free = np.asarray(bijection.inv(mean))
    except (NotImplementedError, ValueError, TypeError, AttributeError):
        return neutral()
    return mean if bool(np.all(np.isfinite(free) & (np.abs(free) < 1e4))) else neutral()
