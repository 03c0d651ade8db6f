"""Which axis of a site counts the rows of a program that is run on all of them, and what is each row's part?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from numpyro.distributions.distribution import Independent

from robustly.errors import LocalizeError
from robustly.model.program import hyper
from robustly.model.program.trace import Site, inside, site_log_probs


@dataclass(frozen=True)
class RowAxis:
    """The axis of a plate over rows."""

    plate: str
    count: int

    def of_batch(self, site: Site) -> int:
        """Which axis of a site's batch counts rows, from the right."""
        return int(next(frame.dim for frame in site["cond_indep_stack"] if frame.name == self.plate))

    def of_value(self, site: Site) -> int:
        """Which axis of a site's value counts rows."""
        return max(int(jnp.ndim(site["value"]) - len(site["fn"].event_shape) + self.of_batch(site)), 0)

    def sums(self, array: Any, axis: int) -> Any:
        """What there is of each row, added up over all other axes."""
        found = jnp.sum(array, axis=tuple(k for k in range(jnp.ndim(array)) if k != axis))
        return jnp.broadcast_to(found, (self.count,))

    def entries(self, site: Site, array: Any) -> Any:
        """An array of the site's batch with rows as its leading axis."""
        array = jnp.asarray(array, dtype=float)
        # What is drawn alike for all rows may have no axis for them.
        axis = len(site["fn"].batch_shape) + self.of_batch(site) if inside(site, self.plate) else -1
        if axis < 0 or axis >= array.ndim:
            return jnp.broadcast_to(array, (self.count, *array.shape))
        array = jnp.moveaxis(array, axis, 0)
        return jnp.broadcast_to(array, (self.count, *array.shape[1:]))

    def log_probs(self, name: str, site: Site) -> Any:
        """The log density of each row; refused where rows have one together."""
        dim = self.of_batch(site)
        logs, fn = site_log_probs(site), site["fn"]
        while jnp.ndim(logs) < -dim and isinstance(fn, Independent):
            fn = fn.base_dist
            logs = site_log_probs({**site, "fn": fn})
        if jnp.ndim(logs) < -dim:
            kind = type(hyper.core(fn)[0]).__name__
            raise LocalizeError(
                f'rows are not independent at site "{name}": its {kind} has one density for all of them together. '
                "Only a likelihood that is a product over rows can be localized; for time series see rb.series."
            )
        return self.sums(logs, jnp.ndim(logs) + dim)
