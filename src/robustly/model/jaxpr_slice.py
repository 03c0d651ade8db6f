"""What does one row need of a traced program that computes all of them? Its own entries, followed back operation by operation.

A program run on all its data gives an array with one entry a row. A row's entry mostly needs only that row's entries of what
came before: sums of matrices, functions entry by entry, ``effect[group]``. So the question "what is entry i of this axis" is
handed back from each operation to what it was made of, until it arrives at data, where it is a look-up, or at a value that all
rows share. Where an operation mixes entries of the axis (a mean, a sort), it is computed whole and its entry taken: right as
well, and slow only if it moves with a row's own value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.scipy.special import entr, xlog1py, xlogy

from robustly.model.jaxpr_simplify import BY_ENTRY

Shape = tuple[int, ...]

_MORE_BY_ENTRY = frozenset((
    "bessel_i0e", "bessel_i1e", "copy", "igamma", "igammac", "nextafter", "polygamma", "stop_gradient", "zeta",
))  # fmt: skip
_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint")
# Functions with derivatives of their own, which their bodies would not have at every point (softplus'' at 0, say).
_OWN_DERIVATIVES: dict[str, Callable[..., Any]] = {
    "logaddexp": jnp.logaddexp,
    "xlogy": xlogy,
    "xlog1py": xlog1py,
    "entr": entr,
    "relu": jax.nn.relu,
}


def entry_of(
    traced: ClosedJaxpr,
    inputs: Sequence[Any],
    index: Array,
    by_row: Sequence[bool],
    known: Mapping[int, Taken] | None = None,
) -> list[Any]:
    """The outputs of a traced program at these inputs; of those `by_row`, entry `index` of their leading axis.

    `known` has other values for constants of the program, by the identity of their variables or literals.
    """
    given = [_known(value, index) for value in inputs]
    outputs = _trace_values(traced, given, index, known or {})
    return [jnp.squeeze(out.at(0), 0) if cut else out.whole() for out, cut in zip(outputs, by_row)]


class Taken:
    """A value of the program: all of it, or its entry along an axis (which stays, with length one), when asked for."""

    def __init__(self, shape: Sequence[int], whole: Callable[[], Any], at: Callable[[int], Any]) -> None:
        self.shape = tuple(shape)
        self._whole, self._at = whole, at
        self._kept: dict[int | None, Any] = {}

    def whole(self) -> Any:
        if None not in self._kept:
            self._kept[None] = self._whole()
        return self._kept[None]

    def at(self, axis: int) -> Any:
        if axis not in self._kept:
            self._kept[axis] = self._at(axis)
        return self._kept[axis]


def _known(value: Any, index: Array) -> Taken:
    taken = lambda axis: jax.lax.dynamic_slice_in_dim(jnp.asarray(value), index, 1, axis)
    return Taken(jnp.shape(value), lambda: value, taken)


def _trace_values(
    traced: ClosedJaxpr, inputs: Sequence[Taken], index: Array, known: Mapping[int, Taken]
) -> list[Taken]:
    """The outputs of a traced program, none of them computed yet."""
    place: dict[Any, Taken] = dict(zip(traced.jaxpr.invars, inputs))
    constant = lambda atom, value: known.get(id(atom)) or _known(value, index)
    place.update((v, constant(v, c)) for v, c in zip(traced.jaxpr.constvars, traced.consts))
    find = lambda atom: constant(atom, atom.val) if isinstance(atom, Literal) else place[atom]
    for equation in traced.jaxpr.eqns:
        given = [find(atom) for atom in equation.invars]
        inner = called_inside(equation)
        if inner is not None:
            made = _trace_values(inner, given, index, known)
        else:
            made = _outputs(equation, given, index)
        place.update(zip(equation.outvars, made))
    return [find(atom) for atom in traced.jaxpr.outvars]


def called_inside(equation: JaxprEqn) -> ClosedJaxpr | None:
    """The program that an operation only calls."""
    name, params = equation.primitive.name, equation.params
    if name in _CALLS:
        inner = params.get("jaxpr", params.get("call_jaxpr"))
    elif name.startswith("custom_jvp_call") and _own_name(equation) not in _OWN_DERIVATIVES:
        inner = params.get("call_jaxpr")
    else:
        return None
    return inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())


def _own_name(equation: JaxprEqn) -> str:
    inside = getattr(equation.params.get("call_jaxpr"), "jaxpr", None)
    return str(getattr(getattr(inside, "debug_info", None), "func_src_info", "")).split(" at ")[0]


def _outputs(equation: JaxprEqn, given: Sequence[Taken], index: Array) -> list[Taken]:
    kept: list[Any] = []

    def all_whole() -> list[Any]:
        if not kept:
            kept.extend(_run_whole(equation, [value.whole() for value in given]))
        return kept

    def one(k: int, shape: tuple[int, ...]) -> Taken:
        def at(axis: int) -> Any:
            found = _sliced(equation, given, index, axis, k)
            if found is None:
                return jax.lax.dynamic_slice_in_dim(all_whole()[k], index, 1, axis)
            return found

        return Taken(shape, lambda: all_whole()[k], at)

    return [one(k, variable.aval.shape) for k, variable in enumerate(equation.outvars)]


def _run_whole(equation: JaxprEqn, arrays: Sequence[Any]) -> Sequence[Any]:
    """The operation as it is, on whole values."""
    atoms = list(equation.invars)
    changed = [k for k, a in enumerate(atoms) if isinstance(a, Literal) and arrays[k] is not a.val]
    if changed:
        given = [jax.ShapeDtypeStruct(atoms[k].aval.shape, atoms[k].aval.dtype) for k in changed]
        for k, variable in zip(changed, jax.make_jaxpr(lambda *a: a)(*given).jaxpr.invars):
            atoms[k] = variable
    known = {atom: a for atom, a in zip(atoms, arrays) if not isinstance(atom, Literal)}
    single = jax.make_jaxpr(lambda: None)().jaxpr.replace(
        constvars=(),
        invars=list(known),
        outvars=equation.outvars,
        eqns=[equation.replace(invars=atoms)],
        effects=equation.effects,
    )
    return jaxpr_as_fun(ClosedJaxpr(single, ()))(*known.values())


# ---------------------------------------------------------------------- how an entry of the output follows from the inputs


def _sliced(equation: JaxprEqn, given: Sequence[Taken], index: Array, axis: int, which: int) -> Any:
    """The entry along `axis` of one output; None where the operation has to be computed whole."""
    name, shape = equation.primitive.name, equation.outvars[which].aval.shape
    if name in BY_ENTRY or name in _MORE_BY_ENTRY:
        parts = [value.at(axis) if value.shape == shape and shape else value.whole() for value in given]
        return equation.primitive.bind(*parts, **equation.params)
    if name.startswith("custom_jvp_call"):
        parts = [value.at(axis) if value.shape == shape else value.whole() for value in given]
        return _OWN_DERIVATIVES[_own_name(equation)](*parts)
    rule = _RULES.get(name)
    return None if rule is None else rule(equation, given, axis, shape, index)


def _bind(equation: JaxprEqn, *arrays: Any, **changed: Any) -> Any:
    found = equation.primitive.bind(*arrays, **{**equation.params, **changed})
    return found[0] if equation.primitive.multiple_results else found


def _resized(sizes: Sequence[int], axis: int, value: int = 1) -> tuple[int, ...]:
    return tuple(value if k == axis else size for k, size in enumerate(sizes))


def _broadcast(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    dims, operand = equation.params["broadcast_dimensions"], given[0]
    part = operand.whole()
    if axis in dims and operand.shape[dims.index(axis)] != 1:
        part = operand.at(dims.index(axis))
    return jax.lax.broadcast_in_dim(part, _resized(shape, axis), dims)


def _reshape(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    before = given[0].shape
    ahead = np.prod(shape[:axis], dtype=int)
    for k, size in enumerate(before):
        if size == shape[axis] and np.prod(before[:k], dtype=int) == ahead:
            return jnp.reshape(given[0].at(k), _resized(shape, axis))
    return None


def _squeeze(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    gone = {d % len(given[0].shape) for d in equation.params["dimensions"]}
    left = [k for k in range(len(given[0].shape)) if k not in gone]
    return _bind(equation, given[0].at(left[axis]))


def _reduce(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    left = [k for k in range(len(given[0].shape)) if k not in equation.params["axes"]]
    return _bind(equation, given[0].at(left[axis]))


def _transpose(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    return _bind(equation, given[0].at(equation.params["permutation"][axis]))


def _along(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    """Cumulative sums and the like: other axes pass through."""
    return None if equation.params["axis"] == axis else _bind(equation, given[0].at(axis))


def _concatenate(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    if equation.params["dimension"] == axis:
        return None
    return _bind(equation, *(value.at(axis) for value in given))


def _stack(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    new = equation.params["axis"]
    return None if axis == new else _bind(equation, *(value.at(axis - (axis > new)) for value in given))


def _slice(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    params = equation.params
    if shape[axis] != given[0].shape[axis]:
        return None
    return _bind(equation, given[0].at(axis), limit_indices=_resized(params["limit_indices"], axis))


def _pad(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    if equation.params["padding_config"][axis] != (0, 0, 0):
        return None
    return _bind(equation, given[0].at(axis), given[1].whole())


def _iota(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    if equation.params["dimension"] == axis:
        return jnp.full(_resized(shape, axis), index, dtype=equation.params["dtype"])
    return _bind(equation, shape=_resized(shape, axis))


def _dot(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    (contract, batch), (left, right) = equation.params["dimension_numbers"], given
    free = [
        [k for k in range(len(value.shape)) if k not in contract[side] and k not in batch[side]]
        for side, value in enumerate(given)
    ]
    paired = len(batch[0])
    if axis < paired:
        return _bind(equation, left.at(batch[0][axis]), right.at(batch[1][axis]))
    if axis < paired + len(free[0]):
        return _bind(equation, left.at(free[0][axis - paired]), right.whole())
    return _bind(equation, left.whole(), right.at(free[1][axis - paired - len(free[0])]))


def _gather(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    numbers, sizes, (operand, indices) = equation.params["dimension_numbers"], equation.params["slice_sizes"], given
    if numbers.operand_batching_dims:
        return None
    if axis not in numbers.offset_dims:
        looked_up = [k for k in range(len(shape)) if k not in numbers.offset_dims]
        return _bind(equation, operand.whole(), indices.at(looked_up.index(axis)))
    kept = [k for k in range(len(operand.shape)) if k not in numbers.collapsed_slice_dims]
    k = kept[numbers.offset_dims.index(axis)]
    if sizes[k] != operand.shape[k] or k in numbers.start_index_map:
        return None
    return _bind(equation, operand.at(k), indices.whole(), slice_sizes=_resized(sizes, k))


def _batched(equation: JaxprEqn, given: Sequence[Taken], axis: int, shape: Shape, index: Array) -> Array | None:
    """Linear algebra on the last two axes: those before them pass through."""
    return _bind(equation, *(value.at(axis) for value in given)) if axis < len(shape) - 2 else None


_REDUCTIONS = ("sum", "max", "min", "prod", "and", "or", "xor")
_RULES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "slice": _slice,
    "pad": _pad,
    "iota": _iota,
    "dot_general": _dot,
    "gather": _gather,
    "cholesky": _batched,
    "triangular_solve": _batched,
    **dict.fromkeys((f"reduce_{kind}" for kind in _REDUCTIONS), _reduce),
    **dict.fromkeys(("argmax", "argmin"), _reduce),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _along),
}
