"""What does a NumPyro program do when it is called with one row? Handlers that swap values and priors while it runs."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from functools import cache
from threading import RLock
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jax import Array
from numpyro import handlers
from numpyro.distributions import Distribution, Unit, biject_to
from numpyro.primitives import CondIndepStackFrame, Messenger

from robustly.errors import LocalizeError
from robustly.model.program.densities import log_density
from robustly.model.program.hyper import with_arguments

Site = dict[str, Any]
Trace = dict[str, Site]

# NumPyro's stack of handlers is the whole process's: programs that two threads run, as those of a Dask worker, would find each other's.
_one_at_a_time = RLock()

ROWS = "(rows)"
"""What stands for the row plate where a program has none: rows then run along the leading axis of what is observed."""


class OneRow(Messenger):
    """Run a program with given site values and prior arguments; other latents are drawn or typical."""

    def __init__(
        self,
        fn: Any,
        values: Mapping[str, Any],
        swapped: Mapping[str, Mapping[str, Any]],
        plate: str | None,
        draw: bool,
        unobserved: Collection[str] = (),
    ):
        self.values, self.swapped, self.plate, self.draw = values, swapped, plate, draw
        self.unobserved = unobserved
        super().__init__(fn)

    def process_message(self, msg: Site) -> None:
        if msg["type"] == "plate" and msg["args"][1] is not None:
            # Rows are read in chunks anyway: all of them are used. Known numbers, so that NumPy's arrays can be indexed.
            with jax.ensure_compile_time_eval():
                msg["args"], msg["value"] = (msg["args"][0], None), jnp.arange(msg["args"][0])
        if msg["type"] == "plate" and msg["name"] == self.plate:
            check_plate(msg, 1)
        if msg["type"] == "control_flow":
            raise LocalizeError(
                "the model runs a chain by numpyro's scan (or cond), so its rows are not independent of each other. "
                "For time series see rb.series: it takes statsmodels' state-space models, and hidden Markov models."
            )
        name = msg.get("name", "")  # a program that asks for a random key gives none
        if msg["type"] == "sample" and msg["is_observed"] and name in self.unobserved:
            # One distribution may stand for all rows; what is drawn in the place of their observations has a row axis too.
            shape, inner = jnp.shape(msg["value"]), len(msg["fn"].event_shape)
            if len(shape) > inner + len(msg["fn"].batch_shape):
                msg["fn"] = msg["fn"].expand(shape[: len(shape) - inner])
            msg["is_observed"], msg["value"] = False, None
        if msg["type"] not in ("sample", "param") or msg.get("is_observed"):
            return
        if msg["type"] == "param" and name not in self.values:
            # A network's weights are one site of many arrays; each is a parameter of its own here.
            kept = {path: value for path, value in self.values.items() if path.startswith(f"{name}[")}
            if kept:
                msg["value"] = _nested(name, kept)
                return
        if name in self.swapped and msg["type"] == "sample":
            msg["fn"] = with_arguments(msg["fn"], self.swapped[name])
        if name in self.values:
            value = self.values[name]
            msg["value"] = value(msg["fn"]) if callable(value) else value
        elif msg["type"] == "sample" and msg["value"] is None and not self.draw:
            # A typical value does as well as a random one, and spares the compilation of a sampler.
            msg["value"] = neutral_value(msg["fn"], msg["kwargs"].get("sample_shape", ()))


def neutral_value(prior: Distribution, sample_shape: tuple[int, ...] = ()) -> Any:
    """A value inside a distribution's support, away from its walls."""
    shape = (*sample_shape, *prior.batch_shape, *prior.event_shape)
    if prior.is_discrete:
        lowest = getattr(prior.support, "lower_bound", None)
        if lowest is not None:
            # Trials that differ from row to row are not known under vmap, so their support cannot be listed.
            return jnp.broadcast_to(jnp.asarray(lowest).astype(int), shape)
        if prior.has_enumerate_support:
            return jnp.broadcast_to(prior.enumerate_support(expand=False)[0], shape)
        return jnp.zeros(shape, dtype=int)
    bijection = biject_to(prior.support)
    return bijection(jnp.zeros(bijection.inverse_shape(shape)))


def check_plate(msg: Site, expected: int) -> None:
    """The row plate must follow the data: size one for one row."""
    size, name = msg["args"][0], msg["name"]
    if size != expected and name == ROWS:
        raise LocalizeError(
            f"what is observed has {size} rows when the model is called with {expected} row{'s' if expected > 1 else ''}. "
            "Pass all data as arguments whose leading axis counts the rows."
        )
    if size != expected:
        raise LocalizeError(
            f'plate "{name}" has size {size} when the model is called with {expected} row{"s" if expected > 1 else ""}. '
            "Take the size from the data, as in numpyro.plate(name, x.shape[0]), and pass all data as arguments."
        )


@cache
def fixed_key() -> Any:
    """For programs that ask for a random key though nothing is drawn."""
    return jax.random.key(0)


def run_program(
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    values: Mapping[str, Any] | None = None,
    swapped: Mapping[str, Mapping[str, Any]] | None = None,
    plate: str | None = None,
    key: Any = None,
    draw: bool = False,
    unobserved: Collection[str] = (),
    along: Collection[str] = (),
) -> Trace:
    """The trace of a program under swapped values and priors, apart from whatever handlers the caller is under.

    Sites in `unobserved` are treated as if their observations had not been given. Of a program without a row plate, `along`
    are the sites whose leading axis counts rows; they then look as if they stood in a plate of their own.
    """
    program = OneRow(model, values or {}, swapped or {}, plate, draw, unobserved)
    seeded = handlers.seed(program, key) if key is not None else program
    with _one_at_a_time, numpyro.validation_enabled(False), handlers.block():
        trace: Trace = handlers.trace(seeded).get_trace(*args, **kwargs)
    _split_trees(trace)
    if along:
        stand_in_rows(trace, along)
    # What is drawn alike for all rows, without observations, may have no axis for them: size 0 says nothing.
    if plate == ROWS and trace[ROWS]["args"][0]:
        check_plate(trace[ROWS], 1)
    return trace


def _split_trees(trace: Trace) -> None:
    """Let every array of a parameter that is a dictionary of them (a flax module) be a site of its own."""
    for name, site in list(trace.items()):
        if site["type"] != "param" or not isinstance(site["value"], Mapping | type(None)):
            continue
        del trace[name]
        for path, leaf in jax.tree_util.tree_flatten_with_path(site["value"])[0]:
            if not all(isinstance(key, jax.tree_util.DictKey) for key in path):
                raise LocalizeError(
                    f'parameter "{name}" is a {type(site["value"]).__name__} with more than dictionaries of arrays inside. Declare its '
                    "weights by numpyro.param one by one, or give them priors: numpyro.contrib.module.random_flax_module."
                )
            own = name + jax.tree_util.keystr(path)
            trace[own] = {**site, "name": own, "value": leaf, "args": (own, leaf)}


def _nested(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The dictionary of arrays that a parameter was before its arrays became sites of their own."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = ast.literal_eval(path.removeprefix(name).replace("][", ","))
        inner = found
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return found


def stand_in_rows(trace: Trace, along: Collection[str]) -> None:
    """Let sites whose leading axis counts rows look as if they stood in a plate of their own."""
    sizes = {}
    for name in along:
        if name in trace and jnp.ndim(trace[name]["value"]):
            site, shape = trace[name], jnp.shape(trace[name]["value"])
            deep = max(len(shape) - len(site["fn"].event_shape), 1)
            site["cond_indep_stack"] = [*site["cond_indep_stack"], CondIndepStackFrame(ROWS, -deep, shape[0])]
            sizes[name] = shape[0]
    trace[ROWS] = {"type": "plate", "name": ROWS, "args": (max(sizes.values(), default=0), None)}


def site_log_prob(site: Site) -> Array:
    """A sample site's total log density, with its scale and mask."""
    return jnp.sum(site_log_probs(site))


def site_log_probs(site: Site) -> Any:
    """A sample site's log densities, one for each entry of its batch."""
    value, intermediates = site["value"], site.get("intermediates")
    logs = site["fn"].log_prob(value, intermediates) if intermediates else log_density(site["fn"], value)
    return logs if site.get("scale") is None else logs * site["scale"]


def is_penalty(site: Site) -> bool:
    """Whether a site is a single factor, which counts once for all rows: ``numpyro.factor("penalty", -b**2)``."""
    return isinstance(site.get("fn"), Unit) and site["fn"].batch_shape == () and not site["cond_indep_stack"]


def inside(site: Site, plate: str) -> bool:
    """Whether a site stands inside the plate."""
    return any(frame.name == plate for frame in site.get("cond_indep_stack", ()))
