"""Which priors follow other sites of a program? Found by running it with traced values and looking where traces arrive."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from numpyro.distributions import Distribution, Unit
from numpyro.primitives import Messenger

from robustly.errors import LocalizeError
from robustly.model.jaxpr_simplify import Steps
from robustly.model.program import hyper
from robustly.model.program.trace import run_program

if TYPE_CHECKING:
    from robustly.model.program.read import Program


class PriorWatcher(Messenger):
    """Shows every latent site's prior while a program runs."""

    def __init__(self, fn: Any, store: Callable[[str, Any], None]) -> None:
        self.store = store
        super().__init__(fn)

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and (not msg["is_observed"] or isinstance(msg["fn"], Unit)):
            self.store(msg["name"], msg["fn"])


def dependences(program: Program) -> tuple[dict[str, set[str]], list[str], bool]:
    """What follows what.

    Returns the arguments of localized priors that move with other sites or with the row, the shared sites whose prior
    moves with a local one, and whether a local prior moves with a discrete latent.
    """
    sites = program.sites
    local, shared = program.site_values(sites.local), program.site_values(sites.shared)
    rest = program.site_values((*sites.discrete, *sites.filled))
    everything = {**local, **shared}
    moving: dict[str, set[str]] = {}
    tangled: list[str] = []
    led: list[str] = []

    def watch(values: dict[str, Any], row: Any, store: Callable[[str, Any], None]) -> Any:
        args, kwargs = program.call(row)
        run_program(PriorWatcher(program.request.model, store), args, kwargs, values={**everything, **rest, **values})
        return jnp.zeros(())

    def push(values: dict[str, Any], row: Any, store: Callable[[str, Any], None]) -> Any:
        ones = jax.tree.map(jnp.ones_like, values)
        return jax.jvp(lambda v: watch(v, row, store), (values,), (ones,))[0]

    def note_arguments(name: str, prior: Distribution) -> None:
        if name in shared and any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(prior.support)):
            raise LocalizeError(
                f'the support of site "{name}" depends on another site. Write it with a fixed support, '
                "for instance as a scaled standard variable."
            )
        if name in program.request.sites:
            moving[name] = _traced(prior)

    def note_tangles(name: str, prior: Distribution) -> None:
        if name in (*shared, *sites.penalties) and _traced(prior):
            tangled.append(name)

    def note_led(name: str, prior: Distribution) -> None:
        if name in local and _traced(prior):
            led.append(name)
            moving.setdefault(name, set()).update(_traced(prior))

    jax.vmap(lambda row: push(everything, row, note_arguments))(tuple(a[None] for a in program.first_row))
    push(local, program.first_row, note_tangles)
    if sites.discrete:
        # Whole numbers have no tangent, but a batch of them is traced as well.
        values = {name: value[None] for name, value in program.site_values(sites.discrete).items()}
        known = jax.tree.map(jnp.asarray, everything)
        jax.vmap(lambda z: watch({**known, **z}, program.first_row, note_led))(values)
    return moving, tangled, bool(led)


def _traced(prior: Distribution) -> set[str]:
    """The arguments of a prior that hold a trace."""
    inner, _ = hyper.core(prior)
    return {name for name, value in inner.get_args().items() if isinstance(value, jax.core.Tracer)}


def only_first_reached(parts: Callable[[Any], tuple[list[Any], list[Any]]], entry: Any) -> bool:
    """Whether the first of two lists of arrays moves with `entry`, and the second does not."""
    try:
        traced = jax.make_jaxpr(lambda a: parts(a))(entry)
    except Exception:  # a program that cannot be followed here is not one in which it can be left out
        return False
    first = len(jax.tree.leaves(jax.eval_shape(lambda a: parts(a)[0], entry)))
    steps = Steps(traced)
    reached = steps.reached(steps.inputs)
    moves = [place in reached for place in steps.outputs]
    return any(moves[:first]) and not any(moves[first:])


def traced_leaves(tree: Any) -> list[Any]:
    """The numbers that a distribution, or several, were made of."""
    return [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
