r"""What does a function compute, operation by operation? Its traced program, written out and tidied.

NumPyro programs are written for people: a rate is the exponential of a predictor, and its law takes the logarithm of the
rate. Derivatives of that take two exponentials more than they need, and the logarithm is lost where the predictor passes
700. Here such detours are taken out before anything is differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, jaxpr_as_fun

from robustly.model import small_cholesky

Place = Any  # where a value of a program is kept

# Operations that change the shape of a single number, or nothing.
_RESHAPING = ("reshape", "squeeze", "broadcast_in_dim", "reduce_sum", "copy")
# Operations entry by entry, whose parameters say nothing of shapes.
# fmt: off
BY_ENTRY = frozenset((
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt",
    "max", "min", "mul", "ne", "neg", "not", "or", "pow", "regularized_incomplete_beta", "rem", "round", "rsqrt",
    "select_n", "sign", "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor",
))
# fmt: on


def simplified(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of arrays, traced once for each kind of arguments and tidied."""
    known: dict[Any, Steps] = {}

    @wraps(function)
    def run(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        kind = (tree, tuple(jax.typeof(leaf) for leaf in leaves), jax.config.jax_enable_x64)
        if kind not in known:
            known[kind] = Steps(jax.make_jaxpr(function)(*arguments))
        steps = known[kind]
        return steps.run(dict(zip(steps.inputs, leaves)), steps.outputs)[0]

    return run


class Steps:
    """A traced program as a flat list of operations, calls to compiled functions written out."""

    def __init__(self, traced: ClosedJaxpr) -> None:
        self.operations: list[tuple[Callable[..., Sequence[Any]], list[Place], list[Place]]] = []
        self.constants: dict[Place, Any] = {}
        self.shape: dict[Place, tuple[int, ...]] = {}
        self.is_float: dict[Place, bool] = {}
        self._origin: dict[Place, tuple[str, Place]] = {}  # of values made from one other: by what, and from which
        self.inputs = [self._new(variable) for variable in traced.jaxpr.invars]
        self.outputs = self._write(traced, self.inputs)

    def _new(self, variable: Any) -> Place:
        place = len(self.shape)
        self.shape[place] = variable.aval.shape
        self.is_float[place] = jnp.issubdtype(variable.aval.dtype, jnp.floating)
        return place

    def _write(self, traced: ClosedJaxpr, inputs: Sequence[Place]) -> list[Place]:
        names: dict[Any, Place] = dict(zip(traced.jaxpr.invars, inputs))
        for variable, value in zip(traced.jaxpr.constvars, traced.consts):
            names[variable] = self._new(variable)
            self.constants[names[variable]] = value

        def place_of(atom: Any) -> Place:
            if not isinstance(atom, Literal):
                return names[atom]
            place = self._new(atom)
            self.constants[place] = atom.val
            return place

        for equation in traced.jaxpr.eqns:
            inner, name = equation.params.get("jaxpr"), equation.primitive.name
            source = (
                names.get(equation.invars[0]) if len(equation.invars) == 1 and _is_name(equation.invars[0]) else None
            )
            if name in ("jit", "pjit") and isinstance(inner, ClosedJaxpr):
                made = self._write(inner, [place_of(atom) for atom in equation.invars])
            elif name == "log" and self._is_exp(equation, names):
                made = [self._origin[source][1]]
            elif _is_xlogy(equation) and self._is_exp(equation, names):
                factor, power = place_of(equation.invars[0]), self._origin[names[equation.invars[1]]][1]
                made = [self._new(equation.outvars[0])]
                self.operations.append((_times, [factor, power], made))
            elif name == "convert_element_type" and source is not None and _keeps_type(equation):
                made = [source]
            elif name in _WRITTEN_OUT and _is_small(equation):
                made = [self._new(variable) for variable in equation.outvars]
                write = lambda *given, name=name, equation=equation: [_WRITTEN_OUT[name](equation, *given)]
                self.operations.append((write, [place_of(atom) for atom in equation.invars], made))
            elif name in BY_ENTRY and _is_single(equation):
                # Rows are called with one entry in their plate; as a plain number it is quicker than as an array of one.
                made = [self._new(variable) for variable in equation.outvars]
                bind = lambda *numbers, equation=equation: [
                    equation.primitive.bind(*(jnp.reshape(a, ()) for a in numbers), **equation.params)
                ]
                self.operations.append((bind, [place_of(atom) for atom in equation.invars], made))
                if source is not None:
                    self._origin[made[0]] = (name, source)
            else:
                variables = list(dict.fromkeys(atom for atom in equation.invars if not isinstance(atom, Literal)))
                single = traced.jaxpr.replace(
                    constvars=(), invars=variables, outvars=equation.outvars, eqns=[equation], effects=equation.effects
                )
                made = [self._new(variable) for variable in equation.outvars]
                shapes, compute = [v.aval.shape for v in variables], jaxpr_as_fun(ClosedJaxpr(single, ()))
                call = lambda *given, shapes=shapes, compute=compute: compute(*map(jnp.reshape, given, shapes))
                self.operations.append((call, [names[variable] for variable in variables], made))
                if source is not None:
                    self._origin[made[0]] = (name, source)
            names.update(zip(equation.outvars, made))
        return [place_of(atom) for atom in traced.jaxpr.outvars]

    def _is_exp(self, equation: JaxprEqn, names: dict[Any, Place]) -> bool:
        last = equation.invars[-1]
        return _is_name(last) and self._origin.get(names[last], ("", None))[0] == "exp"

    def reached(self, sources: Sequence[Place]) -> set[Place]:
        """Everything that depends on `sources`."""
        found = set(sources)
        for _, given, made in self.operations:
            if not found.isdisjoint(given):
                found.update(made)
        return found

    def run(self, known: dict[Place, Any], wanted: Sequence[Place]) -> list[Any]:
        """The values at `wanted`, computed from those that are known; only what is needed is computed."""
        needed, chosen = set(wanted) - set(known), []
        for operation in reversed(self.operations):
            _, given, made = operation
            if not needed.isdisjoint(made):
                chosen.append(operation)
                needed.update(place for place in given if place not in known)
        values = {**self.constants, **known}
        for operation, given, made in reversed(chosen):
            for place, value in zip(made, operation(*(values[place] for place in given))):
                values.setdefault(place, value)
        return [jnp.reshape(values[place], self.shape[place]) for place in wanted]

    def root(self, place: Place) -> Place:
        """Where a single number was computed, before it was only given other shapes."""
        while place in self._origin:
            name, source = self._origin[place]
            if name not in _RESHAPING or np.prod(self.shape[source], dtype=int) != 1:
                break
            place = source
        return place


def _times(factor: Any, power: Any) -> list[Any]:
    """x log(exp(y)), which is zero where x is, whatever y."""
    return [factor * jnp.where((factor != 0) | jnp.isfinite(power), power, 0.0)]


def _is_xlogy(equation: JaxprEqn) -> bool:
    """Whether this is JAX's x log(y), which has a derivative of its own and so stays one operation."""
    inside = getattr(equation.params.get("call_jaxpr"), "jaxpr", None)
    return str(getattr(getattr(inside, "debug_info", None), "func_src_info", "")).startswith("xlogy at ")


def _factor(equation: JaxprEqn, matrix: Array) -> Array:
    dim = equation.outvars[0].aval.shape[-1]
    lower = small_cholesky.cholesky(jnp.reshape(matrix, (dim, dim)), dim, pivot=None)
    return jnp.reshape(small_cholesky.filled(lower, dim), equation.outvars[0].aval.shape)


def _solve_triangular(equation: JaxprEqn, matrix: Array, right: Array) -> Array:
    turned, shape = not equation.params["left_side"], equation.invars[1].aval.shape
    dim = equation.invars[0].aval.shape[-1]
    matrix, right = jnp.reshape(matrix, (dim, dim)), jnp.reshape(right, shape[-2:])
    lower = equation.params["lower"]
    if equation.params["transpose_a"] != turned:
        matrix, lower = matrix.T, not lower
    found = small_cholesky.solve_triangular(
        matrix, right.T if turned else right, lower=lower, unit_diagonal=equation.params["unit_diagonal"]
    )
    return jnp.reshape(found.T if turned else found, shape)


# LAPACK would be called once a row; several such calls at once can also wait for each other for ever (jaxlib 0.10.2).
_WRITTEN_OUT: dict[str, Callable[..., Any]] = {"cholesky": _factor, "triangular_solve": _solve_triangular}
_LARGEST_WRITTEN_OUT = 6


def _is_small(equation: JaxprEqn) -> bool:
    """Whether it is about one real matrix of few rows."""
    shape, dtype = equation.invars[0].aval.shape, equation.invars[0].aval.dtype
    return shape[-1] <= _LARGEST_WRITTEN_OUT and np.prod(shape[:-2], dtype=int) == 1 and dtype.kind == "f"


def _is_single(equation: JaxprEqn) -> bool:
    """Whether it makes one number of single numbers."""
    return all(np.prod(atom.aval.shape, dtype=int) == 1 for atom in (*equation.invars, *equation.outvars))


def _is_name(atom: Any) -> bool:
    return not isinstance(atom, Literal)


def _keeps_type(equation: JaxprEqn) -> bool:
    return bool(equation.invars[0].aval.dtype == equation.outvars[0].aval.dtype)
