"""How are values that a model has by group integrated out? One group's value stands for all, and each row says whose it sees.

In ``with plate("groups", J): a = sample("a", …)``, with ``a[group]`` in the likelihood, a row sees one entry of `a`. Run with the same
value in every entry, the program gives each row's density at that value: what the units of :mod:`robustly.model.group` sum over
the rows of a group. Which entry a row sees is read off its derivatives, which are exactly 0 in all others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, biject_to
from numpyro.distributions.distribution import ExpandedDistribution, Independent
from numpyro.primitives import Messenger

from robustly.errors import LocalizeError, did_you_mean, names
from robustly.model.program.arguments import Arguments
from robustly.model.program.sites import choose_plate, observed_sites
from robustly.model.program.trace import ROWS, Site, Trace, fixed_key, run_program, site_log_probs, stand_in_rows

# Derivatives of so many rows in so many entries are looked at together.
MOST_DERIVATIVES = 20_000_000


@dataclass(frozen=True)
class OneCopy:
    """The program with a single value of some sites, in the place of one for every group."""

    model: Callable[..., Any]
    sites: tuple[str, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with _Single(self.sites):
            return self.model(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.model)

    @property
    def __name__(self) -> str:
        return str(getattr(self.model, "__name__", "model"))


class _Single(Messenger):
    """Draw one value of a site that has one for every group, and hand it over as if it were all of them."""

    def __init__(self, sites: Sequence[str]) -> None:
        self.sites, self.shapes = sites, dict[str, tuple[int, ...]]()
        super().__init__()

    def process_message(self, msg: Site) -> None:
        if msg["type"] == "sample" and msg["name"] in self.sites and not msg["is_observed"]:
            whole = msg["fn"]
            self.shapes[msg["name"]] = (*msg["kwargs"].get("sample_shape", ()), *whole.batch_shape, *whole.event_shape)
            msg["fn"], msg["cond_indep_stack"] = single(whole, msg["name"]), []
            msg["kwargs"] = {**msg["kwargs"], "sample_shape": ()}

    def postprocess_message(self, msg: Site) -> None:
        # Whoever traces the program has seen the single value by now.
        if msg["type"] == "sample" and msg["name"] in self.shapes and not msg["is_observed"]:
            msg["value"] = jnp.broadcast_to(msg["value"], self.shapes[msg["name"]])


def single(law: Distribution, name: str) -> Distribution:
    """The law of one entry of a site whose entries are alike."""
    while isinstance(law, Independent | ExpandedDistribution):
        law = law.base_dist
    if law.batch_shape:
        raise LocalizeError(
            f'the prior of site "{name}" has arguments of its own for each of its {law.batch_shape[0]} entries, so that groups '
            "have no prior in common. Integrate a site that is drawn alike for all groups, such as its non-centred part."
        )
    return law


def groups_of_rows(
    model: Callable[..., Any], sites: Sequence[str], arguments: Arguments, plate: str | None
) -> np.ndarray:
    """Which entry of the sites every row sees."""
    args, kwargs = arguments.call(arguments.leaves)
    full = run_program(model, args, kwargs, key=fixed_key())
    for name in sites:
        if name not in full or full[name]["type"] != "sample" or full[name]["is_observed"]:
            known = [n for n, site in full.items() if site["type"] == "sample" and not site["is_observed"]]
            raise LocalizeError(f'no latent site "{name}"; this model has {names(known)}.' + did_you_mean(name, known))
        if not jnp.ndim(full[name]["value"]):
            raise LocalizeError(
                f'site "{name}" is a single number, so it has no value for every group. Use localize(model, "{name}", by=…) with an '
                "argument that says to which group each row belongs."
            )
    chosen, along = _rows_of(full, plate)
    rng = np.random.default_rng(0)
    values = {}
    for name in sites:
        bijection = biject_to(full[name]["fn"].support)
        shape = bijection.inverse_shape(jnp.shape(full[name]["value"]))
        values[name] = bijection(jnp.asarray(0.1 * rng.normal(size=shape)))

    def densities(values: Any) -> Any:
        with jax.ensure_compile_time_eval():
            trace = run_program(model, args, kwargs, values=values, key=fixed_key(), along=along)
        return sum(_copied_by_row(trace[name], chosen) for name in observed_sites(full))

    count = int(jax.eval_shape(densities, values).shape[0])
    if count * sum(np.size(value) for value in values.values()) > MOST_DERIVATIVES:
        raise LocalizeError(
            f"which of the values of {names(sites)} each of {count} rows sees would take too many derivatives to find. Name the "
            "groups: localize(model, site, by=…) for a site without a value for every group."
        )
    slopes = jax.jit(jax.jacfwd(densities))(values)
    found: np.ndarray | None = None
    for name in sites:
        slope = np.asarray(slopes[name])
        sees = np.any(slope.reshape(count, slope.shape[1], -1) != 0.0, axis=2)
        several = np.flatnonzero(sees.sum(axis=1) > 1)
        if several.size:
            raise LocalizeError(
                f'row {several[0]} sees {int(sees[several[0]].sum())} values of site "{name}", so that groups are not independent of each '
                "other. Only values of which a row sees one, as in a[group], can be integrated out by group."
            )
        mine = np.argmax(sees, axis=1)
        if found is not None and np.any((mine != found) & sees.any(axis=1)):
            raise LocalizeError(
                f"sites {names(sites)} go by different groups: row {int(np.flatnonzero(mine != found)[0])} sees another entry of one "
                "than of the other. Crossed groups cannot be integrated out unit by unit; integrate one of them."
            )
        found = mine
    assert found is not None
    return found


def _rows_of(full: Trace, plate: str | None) -> tuple[str, tuple[str, ...]]:
    chosen = choose_plate(full, [], plate)
    along = tuple(observed_sites(full)) if chosen == ROWS else ()
    if along:
        stand_in_rows(full, along)
    return chosen, along


def _copied_by_row(site: Site, plate: str) -> Any:
    logs = site_log_probs(site)
    dim = next((frame.dim for frame in site["cond_indep_stack"] if frame.name == plate), -1)
    if jnp.ndim(logs) < -dim:
        raise LocalizeError(
            f'rows are not independent at site "{site["name"]}": it has one density for all of them together.'
        )
    axis = jnp.ndim(logs) + dim
    return jnp.sum(logs, axis=tuple(k for k in range(jnp.ndim(logs)) if k != axis))
