r"""Through how few numbers do the parameters enter a row? A cut through its program.

A row's density is a function of its local value :math:`u` and of the parameters :math:`\theta`, but most of :math:`\theta`
enters before :math:`u` does: of a regression's coefficients a row sees only :math:`x_i \cdot w`. Derivatives are needed
at every integration point, so they are taken in those few numbers, and the chain rule to :math:`\theta` is applied once a
row. The fewest such numbers are a minimum cut of the traced program between :math:`\theta` and what depends on
:math:`u`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from robustly.model.jaxpr_simplify import Place, Steps
from robustly.model.row import Row


@dataclass(frozen=True)
class Cut:
    """A function ``f(u, vector, row)`` in two parts: ``f = finish(u, numbers(vector, row), row)``."""

    size: int
    numbers: Callable[[Any, Any], list[Any]]
    """``(vector, row) -> scalars``: all that the row sees of the vector."""
    finish: Callable[[Any, Sequence[Any], Any], Any]
    """``(u, scalars, row) -> value``."""
    added: bool = False
    """Whether the last number is only added to the rest, so that its derivatives are known: a share of rows, a normaliser."""


def cut_parameters(function: Callable[[Any, Any, Any], Any], u: Array, vector: Array, row: Row) -> Cut:
    """Cut `function` where fewest numbers pass from the vector to what is computed with `u`. Values are only examples."""
    steps = Steps(jax.make_jaxpr(function)(u, vector, row))
    parts = [steps.inputs[:1], steps.inputs[1:2], steps.inputs[2:]]
    by_u, by_vector = steps.reached(parts[0]), steps.reached(parts[1])
    places = _least_cut(steps, parts[1][0], by_u, by_vector)
    shapes = [steps.shape[place] for place in places]
    sizes = [int(np.prod(shape, dtype=int)) for shape in shapes]

    def numbers(vector: Array, row: Row) -> list[Any]:
        known = dict(zip([*parts[1], *parts[2]], [vector, *jax.tree.leaves(row)]))
        values = steps.run(known, places)
        return [flat[i] for value, size in zip(values, sizes) for flat in [jnp.reshape(value, -1)] for i in range(size)]

    def finish(u: Array, scalars: Sequence[Any], row: Row) -> Any:
        known = dict(zip([*parts[0], *parts[2]], [u, *jax.tree.leaves(row)]))
        begin = 0
        for place, shape, size in zip(places, shapes, sizes):
            some = scalars[begin : begin + size]
            known[place] = jnp.reshape(some[0] if size == 1 else jnp.stack(list(some)), shape)
            begin += size
        return steps.run(known, steps.outputs)[0]

    return _merged(Cut(sum(sizes), numbers, finish), u, row)


def _merged(view: Cut, u: Array, row: Row) -> Cut:
    """Numbers that are only ever added to each other as one: an intercept and a predictor, say.

    Where a program's derivatives in two numbers are one and the same value, it is a function of their sum; and where the value is
    1, they are added to the rest.
    """
    if not view.size:
        return view
    slopes = lambda u, scalars, row: jax.grad(lambda s: view.finish(u, s, row))(scalars)
    steps = Steps(jax.make_jaxpr(slopes)(u, [jnp.zeros(())] * view.size, row))
    roots = [steps.root(place) for place in steps.outputs]
    varies = steps.reached(steps.inputs)
    with jax.ensure_compile_time_eval():
        fixed = {root: steps.run({}, [root])[0] for root in roots if root not in varies}
    is_one = [
        root in fixed and not isinstance(fixed[root], jax.core.Tracer) and float(fixed[root]) == 1.0 for root in roots
    ]
    known = [-1 if one else root for root, one in zip(roots, is_one)]
    groups = [[i for i, other in enumerate(known) if other == root] for root in sorted(set(known), reverse=True)]

    def numbers(vector: Array, row: Row) -> list[Any]:
        each = view.numbers(vector, row)
        return [sum((each[i] for i in group[1:]), start=each[group[0]]) for group in groups]

    def finish(u: Array, scalars: Sequence[Any], row: Row) -> Any:
        each = [jnp.zeros(())] * view.size
        for group, total in zip(groups, scalars):
            each[group[0]] = total
        return view.finish(u, each, row)

    return Cut(len(groups), numbers, finish, any(is_one) and len(groups) > 1)


def _least_cut(steps: Steps, source: Place, by_u: set[Place], by_vector: set[Place]) -> list[Place]:
    """The places with fewest numbers that all paths from the vector to what depends on `u` must cross (Ford, Fulkerson)."""
    inside = by_vector - by_u
    goal = "goal"
    limit: dict[Place, int] = {}
    ahead: dict[Place, set[Place]] = {place: set() for place in inside}
    for place in inside:
        size = int(np.prod(steps.shape[place], dtype=int))
        # Only real numbers can be differentiated, so a cut may not pass through anything else.
        limit[place] = size if steps.is_float[place] else 10**9
    for _, given, made in steps.operations:
        for place in inside.intersection(given):
            ahead[place].update({goal} if not by_u.isdisjoint(made) else inside.intersection(made))
    for place in inside.intersection(steps.outputs):
        ahead[place].add(goal)

    # A place is split in two, (place, 0) → (place, 1), with its size as the capacity between.
    flow: dict[tuple[Any, Any], int] = {}

    def room(a: Any, b: Any) -> int:
        if a[0] == b[0]:
            return (limit[a[0]] if a[1] == 0 else 0) - flow.get((a, b), 0)
        forward = a[1] == 1 and b[1] == 0 and b[0] in ahead.get(a[0], ())
        return (10**9 if forward else 0) - flow.get((a, b), 0)

    behind: dict[Place, set[Place]] = {}
    for place, targets in ahead.items():
        for target in targets:
            behind.setdefault(target, set()).add(place)

    def neighbours(a: Any) -> list[Any]:
        place, side = a
        if place == goal:
            return []
        if side == 0:
            return [(place, 1), *((p, 1) for p in sorted(behind.get(place, ())))]
        return [(place, 0), *((p, 0) for p in sorted(ahead[place], key=str))]

    while True:
        came: dict[Any, Any] = {(source, 0): None}
        queue = [(source, 0)]
        for a in queue:
            for b in neighbours(a):
                if b not in came and room(a, b) > 0:
                    came[b] = a
                    queue.append(b)
        if (goal, 0) not in came:
            return sorted(place for place in inside if (place, 0) in came and (place, 1) not in came)
        path, b = [], (goal, 0)
        while came[b] is not None:
            path.append((came[b], b))
            b = came[b]
        least = min(room(a, b) for a, b in path)
        for a, b in path:
            flow[a, b] = flow.get((a, b), 0) + least
            flow[b, a] = flow.get((b, a), 0) - least
