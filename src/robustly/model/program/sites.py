"""Can this program be localized? Read its trace, sort its sites, and refuse with a reason where it cannot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints

from robustly.errors import LocalizeError, did_you_mean, names
from robustly.model.program.trace import ROWS, Site, Trace, inside, is_penalty

MAX_DIM = 10
MAX_LATENTS = 4096


@dataclass(frozen=True)
class Sites:
    """The sites of a program by the part they play."""

    plate: str
    observed: tuple[str, ...]
    local: tuple[str, ...]
    """Localized sites and continuous latents that stand in the plate already: each row has its own value."""
    shared: tuple[str, ...]
    discrete: tuple[str, ...]
    filled: tuple[str, ...]
    """Unobserved halves of partly observed sites; they integrate to one and drop out."""
    penalties: tuple[str, ...] = ()
    """Single factors, which count once for all rows."""


def samples(trace: Trace) -> dict[str, Any]:
    return {name: site for name, site in trace.items() if site["type"] == "sample"}


def observed_sites(trace: Trace) -> dict[str, Any]:
    """Sites with observations; factors count where they have an entry for every row."""
    return {name: site for name, site in samples(trace).items() if site["is_observed"] and not is_penalty(site)}


def choose_plate(trace: Trace, leading: Sequence[int], stated: str | None) -> str:
    """The plate whose size is the number of rows: the outermost one that holds every observed site.

    Where no plate holds what is observed, rows run along its leading axis: :data:`~robustly.model.program.trace.ROWS`.
    """
    plates = {name: site for name, site in trace.items() if site["type"] == "plate"}
    observed = observed_sites(trace)
    if stated is not None and stated not in plates:
        raise LocalizeError(f'no plate "{stated}"; this model has {names(plates)}.' + did_you_mean(stated, plates))
    if not observed and any(is_penalty(site) for site in samples(trace).values()):
        raise LocalizeError(
            "this model states its likelihood as one factor for all rows together. Give numpyro.factor an array with one "
            "entry a row: leave out the sum."
        )
    if not observed:
        raise LocalizeError("this model has no observed site. Pass the observations to fit(), for instance fit(x, y).")
    if stated is None and not any(inside(site, name) for site in observed.values() for name in plates):
        _refuse_other_axes(observed)
        return ROWS
    common = [name for name in plates if all(inside(site, name) for site in observed.values())]
    if stated is not None:
        common = [name for name in common if name == stated] or [stated]
    if not common or not all(inside(site, common[0]) for site in observed.values()):
        plate = common[0] if common else next(iter(plates))
        outside = [name for name, site in observed.items() if not inside(site, plate)]
        raise LocalizeError(
            f'observed site{"s" if len(outside) > 1 else ""} {names(outside)} stand outside plate "{plate}", so the '
            "likelihood is not a product over rows. Move them into the plate, or turn them into arguments."
        )
    fitting = [name for name in common if plates[name]["args"][0] in leading] or common

    def depth(name: str) -> int:
        return min(frame.dim for site in observed.values() for frame in site["cond_indep_stack"] if frame.name == name)

    return min(fitting, key=depth)


def _refuse_other_axes(observed: dict[str, Any]) -> None:
    """Without a plate, everything observed must have the same leading axis."""
    lengths = {name: jnp.shape(site["value"])[:1] for name, site in observed.items()}
    single = [name for name, shape in lengths.items() if not shape]
    if single:
        raise LocalizeError(
            f"observed site{'s' if len(single) > 1 else ''} {names(single)} hold a single value and stand in no plate, so "
            "nothing says what a row is. Pass observations with a leading axis that counts the rows."
        )
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f'"{name}" has {shape[0]}' for name, shape in lengths.items())
        raise LocalizeError(
            f"observed sites stand in no plate and have different numbers of rows: {listed}. Put those that share rows into "
            "`with numpyro.plate(name, x.shape[0]):` and name it by plate=, or model them apart."
        )


def sort_sites(trace: Trace, asked: Sequence[str], plate: str) -> Sites:
    """Which sites are local, shared, discrete or observed; refuse what cannot be localized."""
    found = samples(trace)
    latent = [name for name, site in found.items() if not site["is_observed"]]
    observed = list(observed_sites(trace))
    for name in asked:
        renamed = [other for other in (f"{name}_decentered", f"{name}_base") if other in latent]
        if name not in found and renamed:
            raise LocalizeError(
                f'site "{name}" is reparameterised inside the model, where "{renamed[0]}" is drawn in its place. Take '
                "handlers.reparam out of the model (wrapped around it, it is undone), as rows are integrated out anyway."
            )
        if name not in found:
            raise LocalizeError(
                f'no latent site "{name}"; this model has {names(latent)}.' + did_you_mean(name, latent)
            )
        if name in observed:
            raise LocalizeError(
                f'site "{name}" is observed, so there is nothing to localize. Latent sites are {names(latent)}.'
            )
        if found[name]["fn"].is_discrete:
            raise LocalizeError(
                f'site "{name}" is discrete; only continuous sites can have a fitted prior for every row. '
                "Put it inside the plate instead, where it is summed over."
            )
    filled = [
        name
        for name in latent
        if name.endswith("_unobserved") and name.removesuffix("_unobserved") + "_observed" in found
    ]
    in_plate = [name for name in latent if inside(found[name], plate) and name not in filled]
    discrete = [name for name in in_plate if found[name]["fn"].is_discrete]
    local = [name for name in latent if name in asked or (name in in_plate and name not in discrete)]
    shared = [name for name in latent if name not in (*local, *discrete, *filled)]
    shared += [name for name, site in trace.items() if site["type"] == "param"]
    for name in shared:
        if name in found and found[name]["fn"].is_discrete:
            raise LocalizeError(
                f'site "{name}" is discrete and shared by all rows, which has no point estimate. '
                f'Put it inside plate "{plate}", or fix it.'
            )
    penalties = tuple(name for name, site in found.items() if is_penalty(site))
    return Sites(plate, tuple(observed), tuple(local), tuple(shared), tuple(discrete), tuple(filled), penalties)


def local_size(trace: Trace, sites: Sites) -> int:
    """How many unconstrained numbers a row has of its own; refuse more than can be integrated."""
    size = 0
    for name in sites.local:
        support = trace[name]["fn"].support
        size += int(np.prod(biject_to(support).inverse_shape(jnp.shape(trace[name]["value"])), dtype=int))
    if size > MAX_DIM:
        raise LocalizeError(
            f"{names(sites.local)} have {size} dimensions a row; up to {MAX_DIM} can be integrated out. "
            "Localize a smaller site, such as a scale or an intercept."
        )
    return size


def latent_grid(trace: Trace, sites: Sites) -> np.ndarray | None:
    """Every combination of the discrete row latents, one a row; None without any."""
    if not sites.discrete:
        return None
    supports = []
    for name in sites.discrete:
        site = trace[name]
        if not site["fn"].has_enumerate_support:
            raise LocalizeError(
                f'discrete site "{name}" ({type(site["fn"]).__name__}) has no list of values to sum over. '
                "Use a distribution of finite support, such as Categorical or Bernoulli."
            )
        values = np.asarray(site["fn"].enumerate_support(expand=False))
        supports += [values.reshape(len(values), -1)[:, 0]] * int(np.prod(jnp.shape(site["value"]), dtype=int))
    count = int(np.prod([len(values) for values in supports]))
    if count > MAX_LATENTS:
        raise LocalizeError(
            f"{names(sites.discrete)} have {count} combinations a row; up to {MAX_LATENTS} can be summed over."
        )
    return np.array(list(itertools.product(*supports)))


def support_of(site: Site) -> Any:
    """The constraint of a shared site or parameter."""
    return site["fn"].support if site["type"] == "sample" else site["kwargs"].get("constraint", constraints.real)
