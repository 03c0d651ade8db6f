"""Double precision and a compilation cache, for the length of a block and no longer.

Evidences are sums over many rows of logarithms of integrals; single precision loses four digits of them. JAX's switches
are set by context here, so a user's own settings come back as they were.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from robustly._runtime.kept_programs import remove_damaged
from robustly.errors import FitError

F = TypeVar("F", bound=Callable[..., Any])
_here = threading.local()
_process = {"computes": False, "forked": False}


def _forked() -> None:
    _process["forked"] = _process["computes"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Compute in float64 inside the block, and keep what is compiled there on disk for the next process."""
    import jax

    # JAX's switches belong to a thread, and so does the note that they are on already.
    if getattr(_here, "inside", False):
        yield
        return
    if _process["forked"]:
        raise FitError(
            "this process was forked from one that had computed with JAX, whose threads do not live on here, so that it would wait "
            'for ever. Start processes afresh, as multiprocessing.get_context("spawn") does, or fork before the first fit.'
        )
    _process["computes"] = True
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(True))
        for switch in _cache_switches():
            stack.enter_context(switch())
        _here.inside = True
        try:
            yield
        finally:
            _here.inside = False


def in_double_precision(function: F) -> F:
    """Run `function` inside :func:`double_precision`."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with double_precision():
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def cache_directory() -> Path | None:
    """Where compiled passes are kept: ``ROBUSTLY_CACHE`` (empty for none), or the user's cache folder."""
    named = os.environ.get("ROBUSTLY_CACHE")
    if named == "":
        return None
    home = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "robustly"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return home if os.access(home, os.W_OK) else None


@functools.cache
def _cache_switches() -> tuple[Callable[[], Any], ...]:
    """Context managers that turn on JAX's persistent cache, unless the user has chosen one of their own."""
    import jax

    if jax.config.jax_compilation_cache_dir is not None:
        return ()
    directory = cache_directory()
    if directory is None:
        return ()
    remove_damaged(directory)
    try:
        # The only context-managed form of these settings; without it the cache would have to be set globally.
        from jax._src import config

        folder, shortest = config.compilation_cache_dir, config.persistent_cache_min_compile_time_secs
        return (lambda: folder(str(directory)), lambda: shortest(0.0))
    except (ImportError, AttributeError):
        return ()
