"""How does a traced program outlast the process that traced it? Exported to the cache, under a name of all it depends on.

JAX's own cache spares the compiler's work and not Python's, which takes most of a first fit. What the package itself states
(laws, families, approximations) can be told from everything else by its fields; a user's own functions cannot, and are traced
by every process anew.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from robustly._runtime.atomic import atomic
from robustly._runtime.precision import cache_directory
from robustly.errors import PersistError

PACKAGE = __name__.partition(".")[0]


class _NotOurs(Exception):
    """Something that only this process can tell from others."""


def lasting_name(*parts: Any) -> str | None:
    """What tells these from all others in any process that runs this version; None where nothing does."""
    try:
        return _spelled(parts)
    except _NotOurs:
        return None


def _spelled(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_spelled, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_spelled(key)}: {_spelled(value[key])}' for key in sorted(value))}}}"
    kind = value if hasattr(value, "__qualname__") and not hasattr(value, "__self__") else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not name.startswith(f"{PACKAGE}.") or "<" in name:
        raise _NotOurs
    if kind is value:
        return name
    state = {one.name: getattr(value, one.name) for one in fields(value)} if is_dataclass(value) else vars(value)
    return f"{name}{_spelled(state)}"


@cache
def _version() -> str:
    """Of everything that a traced program follows from: this package's files, JAX and NumPyro."""
    from importlib.metadata import version

    import jax

    home = Path(__file__).parents[1]
    found = sorted((str(path.relative_to(home)), path.stat()) for path in home.rglob("*.py"))
    files = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]
    return repr((files, jax.__version__, version("numpyro"), jax.default_backend()))


def lasting_program(function: Callable[..., Any], name: str, given: tuple[Any, ...]) -> Callable[..., Any] | None:
    """What `function` does with arguments like these, traced now or by an earlier process; None where it cannot be kept."""
    import jax
    from jax import export

    folder = cache_directory()
    if folder is None:
        return None
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jax.numpy.shape(leaf), jax.numpy.result_type(leaf)), given)
    told = repr(
        (_version(), name, jax.tree.structure(like), [(one.shape, str(one.dtype)) for one in jax.tree.leaves(like)])
    )
    place = folder / f"traced-{hashlib.sha256(told.encode()).hexdigest()}"
    with contextlib.suppress(Exception):  # a file that is not there, or damaged: the program is traced again
        return export.deserialize(bytearray(place.read_bytes())).call
    try:
        exported = export.export(jax.jit(function))(*like)
        kept = exported.serialize()
    except (ImportError, ValueError, NotImplementedError):
        return None
    with contextlib.suppress(PersistError), atomic(place) as stream:
        stream.write(kept)
    return exported.call
