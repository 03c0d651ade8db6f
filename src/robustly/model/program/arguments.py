"""Which arguments of a program are rows? Found from shapes, or stated, and then handed over one row at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from robustly.errors import DataError, LocalizeError, did_you_mean, names
from robustly.model.program.trace import ROWS


@dataclass(frozen=True, eq=False)
class Arguments:
    """A call of a program: its arguments as leaves, each with the name of the parameter it came by."""

    leaves: tuple[Any, ...]
    labels: tuple[str, ...]
    tree: Any

    def is_array(self, place: int) -> bool:
        return hasattr(self.leaves[place], "shape")

    def call(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments with other leaves in the same places."""
        return jax.tree.unflatten(self.tree, list(leaves))


def read_arguments(
    model: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], *, partial: bool = False
) -> Arguments:
    """Bind a call to the program's parameters and take it apart; a `partial` call may leave some out."""
    signature = inspect.signature(model)
    try:
        bound = (signature.bind_partial if partial else signature.bind)(*args, **kwargs)
    except TypeError as error:
        raise DataError(f"the model takes {signature}, but the call does not fit it: {error}.") from error
    values = {name: _as_plain(name, value) for name, value in bound.arguments.items()}
    bound.arguments.update(values)
    paths, tree = jax.tree_util.tree_flatten_with_path((bound.args, bound.kwargs))
    by_place = list(signature.parameters)
    labels = []
    for path, _ in paths:
        outer, inner = path[0].idx, path[1]
        name = by_place[min(inner.idx, len(by_place) - 1)] if outer == 0 else str(inner.key)
        labels.append(name + jax.tree_util.keystr(path[2:]))
    return Arguments(tuple(_in_native_order(leaf) for _, leaf in paths), tuple(labels), tree)


def _in_native_order(leaf: Any) -> Any:
    """Numbers in this machine's order of bytes; JAX takes no others."""
    if isinstance(leaf, np.ndarray) and not leaf.dtype.isnative:
        return leaf.astype(leaf.dtype.newbyteorder("="))
    return leaf


def _as_plain(name: str, value: Any) -> Any:
    """Frames, series and lists of numbers as arrays; everything else as it came."""
    if hasattr(value, "to_numpy") and not hasattr(value, "at"):
        return value.to_numpy()
    if hasattr(value, "to_numpy"):
        array = value.to_numpy()
        if array.dtype == object:
            raise DataError(f"{name} holds columns that are not numbers. Encode them as numbers first.")
        return array
    if isinstance(value, list) and value and all(isinstance(entry, int | float | bool | list) for entry in value):
        try:
            return np.asarray(value)
        except ValueError:
            return value
    return value


def find_rows(arguments: Arguments, size: int, stated: Sequence[str] | None, plate: str) -> tuple[bool, ...]:
    """For every leaf, whether its leading axis counts rows of the plate."""
    if stated is not None:
        known = [label.split("[")[0].split(".")[0] for label in arguments.labels]
        for name in stated:
            if name not in known:
                raise LocalizeError(
                    f'rows= names "{name}", but the call has {names(known)}.' + did_you_mean(name, known)
                )
        chosen = tuple(name in stated for name in known)
        for place, is_row in enumerate(chosen):
            leaf = arguments.leaves[place]
            if is_row and (not arguments.is_array(place) or leaf.ndim == 0 or leaf.shape[0] != size):
                shape = getattr(leaf, "shape", type(leaf).__name__)
                raise LocalizeError(
                    f'rows= names "{arguments.labels[place]}", whose shape is {shape}, but {_whose(plate)} {size} rows. '
                    "Its leading axis must count the rows."
                )
        return chosen
    found = tuple(
        arguments.is_array(place) and np.ndim(leaf) > 0 and leaf.shape[0] == size
        for place, leaf in enumerate(arguments.leaves)
    )
    if not any(found):
        shapes = ", ".join(
            f"{label}: {leaf.shape if hasattr(leaf, 'shape') else type(leaf).__name__}"
            for label, leaf in zip(arguments.labels, arguments.leaves)
        )
        raise LocalizeError(
            f"no argument has {size} rows, but {_whose(plate)} so many ({shapes or 'the model takes none'}). "
            "Pass the data as arguments whose leading axis counts the rows, instead of reading them from outside the model."
        )
    return found


def _whose(plate: str) -> str:
    return "what is observed has" if plate == ROWS else f'plate "{plate}" has'
