"""What does a program say of one row? Its densities as functions of the row's own value, the parameters and the row.

A program that has been read knows its sites and can be run with any values of them. From that alone follow the functions of a
:class:`~robustly.model.row.RowModel`, whether it is run on one row at a time or on all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpyro.distributions import Distribution, biject_to

from robustly.model.parameters import Theta
from robustly.model.program import hyper
from robustly.model.program.request import Ask, Request, Run, central_value
from robustly.model.program.sites import Sites, support_of
from robustly.model.program.trace import Site, Trace, site_log_prob
from robustly.model.row import Latent, RowModel


class RowFunctions(ABC):
    """The functions of one row that a program comes to; how it is run is for others to say."""

    request: Request
    trace: Trace
    sites: Sites
    size: int
    latents: np.ndarray | None
    led: Any
    free: dict[str, dict[str, hyper.Argument]]

    @abstractmethod
    def trace_row(
        self,
        row: Sequence[Any],
        values: Mapping[str, Any],
        theta: Mapping[str, Any] | None = None,
        key: Any = None,
        draw: bool = False,
    ) -> Trace:
        """The program's trace on one row; `values` by site, prior arguments from `theta`, the rest typical or drawn."""

    @abstractmethod
    def run_once(self, values: Mapping[str, Any], theta: Mapping[str, Any] | None = None) -> Trace:
        """The program's trace on some row, for what all rows have alike."""

    @abstractmethod
    def rowwise(self, ask: Ask, row: Any, *inputs: Any) -> Any:
        """What ``ask(run, *inputs)`` comes to for one row, where ``run(values, theta)`` gives a trace of the program."""

    @abstractmethod
    def log_prob(self, site: Site) -> Any:
        """A site's log density in the row, or rows, that a trace is of."""

    def site_values(self, chosen: Sequence[str]) -> dict[str, Any]:
        # Plain arrays take the precision of whatever runs them; a NumPyro user's own sampler may be in single.
        return {name: np.asarray(self.trace[name]["value"]) for name in chosen}

    def shared_values(self, theta: Mapping[str, Any]) -> dict[str, Any]:
        return {name: theta[name] for name in self.sites.shared}

    @cached_property
    def row_model(self) -> RowModel:
        """The program as functions of one row."""
        return self._row_model()

    def _row_model(self) -> RowModel:
        start, limits = {}, {}
        for name in self.sites.shared:
            site = self.trace[name]
            limits[name] = support_of(site)
            start[name] = central_value(site, limits[name])
        for site_name, free in self.free.items():
            for argument, (value, limit) in free.items():
                start[f"{site_name}.{argument}"] = jnp.asarray(value, dtype=float)
                limits[f"{site_name}.{argument}"] = limit
        single = self.single
        return RowModel(
            made_by=(getattr, (self, "row_model")),
            log_likelihood=self._log_likelihood if self.latents is None else self._log_likelihood_z,
            start=start,
            constraints=limits,
            log_prior=self.log_prior,
            prior=self.prior,
            local_shape=jnp.shape(self.trace[self.sites.local[0]]["value"]) if single else (),
            log_hyperprior=self._log_hyperprior,
            latents=self.latents,
            transform=self._transform,
            # Coordinates of the locals are the same for every z; one reading would take them from each z's prior.
            joint=None if self.led else self._joint,
            size=self.size,
        )

    @property
    def single(self) -> bool:
        return len(self.sites.local) == 1

    def local_values(self, local: Any) -> dict[str, Any]:
        """A local value by site."""
        if not self.sites.local:
            return {}
        return {self.sites.local[0]: local} if self.single else dict(local)

    def latent_values(self, z: Array) -> dict[str, Any]:
        """Discrete latents by site."""
        values, place = {}, 0
        for name in self.sites.discrete:
            like = jnp.asarray(self.trace[name]["value"])
            values[name] = z[place : place + like.size].astype(like.dtype).reshape(like.shape)
            place += like.size
        return values

    def all_values(self, local: Any, theta: Theta, z: Latent) -> dict[str, Any]:
        return {
            **self.site_values(self.sites.filled),
            **(self.site_values(self.sites.discrete) if z is None else self.latent_values(z)),
            **self.shared_values(theta),
            **self.local_values(local),
        }

    def _setters(self, u: Array) -> tuple[dict[str, Any], dict[str, hyper.Placed]]:
        """What puts the local sites at `u` while the program runs, and what was put, filled as it does."""
        placed: dict[str, hyper.Placed] = {}

        def at(name: str, part: Any) -> Callable[[Any], Any]:
            shape = jnp.shape(self.trace[name]["value"])

            def set_value(prior: Distribution) -> Any:
                placed[name] = self._place(name, prior, part, shape)
                return placed[name].value

            return set_value

        cuts = np.cumsum([0, *self._local_sizes])
        return {name: at(name, u[cuts[i] : cuts[i + 1]]) for i, name in enumerate(self.sites.local)}, placed

    def _place(self, name: str, prior: Distribution, part: Any, shape: tuple[int, ...]) -> hyper.Placed:
        return hyper.place(prior, part, shape)

    def _transform(self, u: Array, theta: Theta, row: Any) -> tuple[Any, Any]:
        def ask(run: Run, u: Array, theta: Theta) -> tuple[Any, Any]:
            setters, placed = self._setters(u)
            rest = {**self.site_values((*self.sites.filled, *self.sites.discrete)), **self.shared_values(theta)}
            run({**rest, **setters}, theta)
            return {name: at.value for name, at in placed.items()}, sum(at.log_volume for at in placed.values())

        values, volume = self.rowwise(ask, row, u, theta)
        return values[self.sites.local[0]] if self.single else values, volume

    def _joint(self, u: Array, theta: Theta, row: Any, z: Latent = None) -> Array:
        def ask(run: Run, u: Array, theta: Theta, z: Latent) -> Any:
            setters, placed = self._setters(u)
            rest = (
                self.site_values(self.sites.filled)
                if z is None
                else self.site_values(self.sites.filled) | self.latent_values(z)
            )
            trace = run({**rest, **self.shared_values(theta), **setters}, theta)
            total = sum((self._log_coordinate(trace[name], at) for name, at in placed.items()), jnp.zeros(()))
            counted = (*self.sites.discrete, *self.sites.observed)
            return sum((self.log_prob(trace[name]) for name in counted), total)

        return self.rowwise(ask, row, u, theta, z)

    def _log_coordinate(self, site: Site, at: hyper.Placed) -> Any:
        """The log density of a local site's coordinate. Whitened, it is free of location and scale: fewer numbers to follow."""
        if at.log_density is None or site.get("scale") is not None:
            return self.log_prob(site) + at.log_volume
        return at.log_density

    @cached_property
    def _local_sizes(self) -> list[int]:
        sizes = []
        for name in self.sites.local:
            bijection = biject_to(self.trace[name]["fn"].support)
            sizes.append(int(np.prod(bijection.inverse_shape(jnp.shape(self.trace[name]["value"])), dtype=int)))
        return sizes

    def prior(self, theta: Theta, row: Any) -> Any:
        found: dict[str, Any] = {}

        def catch(site: str) -> Callable[[Any], Any]:
            def keep(prior: Distribution) -> Any:
                found[site] = prior
                return np.asarray(self.trace[site]["value"])

            return keep

        rest = {**self.site_values((*self.sites.filled, *self.sites.discrete)), **self.shared_values(theta)}
        self.trace_row(row, {**rest, **{site: catch(site) for site in self.sites.local}}, theta)
        return found[self.sites.local[0]] if self.single else found

    def log_prior(self, local: Any, theta: Theta, row: Any) -> Array:
        def ask(run: Run, local: Any, theta: Theta) -> Any:
            trace = run(self.all_values(local, theta, None), theta)
            return sum(self.log_prob(trace[name]) for name in self.sites.local)

        return self.rowwise(ask, row, local, theta)

    def _log_likelihood(self, local: Any, theta: Theta, row: Any) -> Array:
        return self._likelihood(local, theta, row, None)

    def _log_likelihood_z(self, local: Any, theta: Theta, row: Any, z: Latent) -> Array:
        return self._likelihood(local, theta, row, z)

    def _likelihood(self, local: Any, theta: Theta, row: Any, z: Latent) -> Array:
        def ask(run: Run, local: Any, theta: Theta, z: Latent) -> Any:
            trace = run(self.all_values(local, theta, z), theta)
            counted = (*self.sites.discrete, *self.sites.observed)
            total = sum((self.log_prob(trace[name]) for name in counted), jnp.zeros(()))
            if z is None or not self.led:
                return total
            # The prior is read at one value of z; what another changes of it is counted here.
            return total + sum(self.log_prob(trace[name]) for name in self.sites.local)

        found = self.rowwise(ask, row, local, theta, z)
        return found if z is None or not self.led else found - self.log_prior(local, theta, row)

    def _log_hyperprior(self, theta: Theta) -> Array:
        total = jnp.zeros(())
        wanted = [name for name in (*self.sites.shared, *self.sites.penalties) if name not in self.request.flat]
        if wanted:
            values = {
                **self.site_values((*self.sites.local, *self.sites.filled, *self.sites.discrete)),
                **self.shared_values(theta),
            }
            trace = self.run_once(values, theta)
            total = sum((site_log_prob(trace[n]) for n in wanted if trace[n]["type"] == "sample"), total)
        for site, believed in (self.request.hyperprior or {}).items():
            for argument, prior in believed.items():
                total = total + jnp.sum(prior.log_prob(theta[f"{site}.{argument}"]))
        return total
