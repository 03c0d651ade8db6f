"""Is this the same model as before? A function is what it does and what it reads, not where it was defined.

A notebook cell that is run again defines its model anew; what was read and compiled for the first still holds. And a model that
reads data from outside is another one when they change, though it is the same function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis))
DEEPEST = 12


class Fingerprint:
    """A hashable stand-in for a function and all it reads. Objects that only their identity tells apart are held."""

    def __init__(self, thing: Any) -> None:
        self._held: list[Any] = []
        self._seen: dict[int, int] = {}
        self.key: Hashable = self._of(thing, 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def _of(self, thing: Any, depth: int) -> Hashable:
        if isinstance(thing, _PLAIN):
            return type(thing).__name__, thing
        if isinstance(thing, ModuleType):
            return "module", thing.__name__
        if isinstance(thing, type | BuiltinFunctionType | np.dtype):
            return self._itself(thing)
        if depth > DEEPEST or isinstance(thing, jax.core.Tracer):
            return self._itself(thing)
        if isinstance(thing, np.ndarray | np.generic | jax.Array) and thing.dtype != object:
            return _of_array(thing)
        if id(thing) in self._seen:
            return "again", self._seen[id(thing)]
        self._seen[id(thing)] = len(self._seen)
        self._held.append(thing)
        inner = lambda part: self._of(part, depth + 1)
        if isinstance(thing, CodeType):
            return "code", thing.co_code, thing.co_names, thing.co_varnames, tuple(map(inner, thing.co_consts))
        if isinstance(thing, FunctionType):
            return self._of_function(thing, depth)
        if isinstance(thing, MethodType):
            return "method", inner(thing.__func__), inner(thing.__self__)
        if isinstance(thing, partial):
            return "partial", inner(thing.func), inner(thing.args), inner(thing.keywords)
        if is_dataclass(thing):
            return inner(type(thing)), tuple(inner(getattr(thing, part.name)) for part in fields(thing))
        if isinstance(thing, tuple | list):
            return type(thing).__name__, tuple(map(inner, thing))
        if isinstance(thing, Mapping):
            return "mapping", tuple((inner(name), inner(value)) for name, value in thing.items())
        if isinstance(thing, set | frozenset) and all(isinstance(one, _PLAIN) for one in thing):
            return "set", frozenset(thing)
        return self._itself(thing)

    def _of_function(self, thing: FunctionType, depth: int) -> Hashable:
        inner = lambda part: self._of(part, depth + 1)
        read = {name: thing.__globals__[name] for name in _names_in(thing.__code__) if name in thing.__globals__}
        # Functions of installed packages do not change while a program runs.
        if (thing.__module__ or "").split(".")[0] in ("jax", "numpyro", "numpy", "scipy", "robustly"):
            return self._itself(thing)
        cells = []
        for cell in thing.__closure__ or ():
            try:
                cells.append(inner(cell.cell_contents))
            except ValueError:  # not filled yet
                cells.append(None)
        return (
            "function",
            inner(thing.__code__),
            inner(thing.__defaults__),
            inner(thing.__kwdefaults__ or {}),
            tuple(cells),
            tuple((name, inner(value)) for name, value in read.items()),
        )

    def _itself(self, thing: Any) -> Hashable:
        self._held.append(thing)
        return "itself", id(thing)


def _names_in(code: CodeType) -> list[str]:
    """Names a function may read from its module, in functions inside it as well."""
    inside = [name for part in code.co_consts if isinstance(part, CodeType) for name in _names_in(part)]
    return list(dict.fromkeys((*code.co_names, *inside)))


def _of_array(thing: Any) -> Hashable:
    array = np.ascontiguousarray(thing)
    return "array", array.dtype.str, np.shape(thing), hashlib.blake2b(array.tobytes(), digest_size=16).digest()
