"""How many threads do matrix products take? One, where blocks are small."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, TypeVar, cast

import threadpoolctl

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def _libraries() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


_changing, _inside, _limits = Lock(), 0, cast(Any, None)


def _from_any_thread(change: Callable[[], Any]) -> Any:
    """Change the number of threads, whichever thread did so last: threadpoolctl 3.8 and later otherwise leave it to that one."""
    blas = getattr(threadpoolctl, "OpenBLASController", None)
    let_go = getattr(blas, "clear_controlling_thread", lambda force: None)
    let_go(force=True)
    try:
        return change()
    finally:
        let_go(force=True)


@contextlib.contextmanager
def products_on_one_thread() -> Iterator[None]:
    """Matrix products take one thread inside the block, whichever thread asks for them.

    Blocks are small: threads spend more time waiting for each other than they save, and on a busy machine thirty times
    more. The number of threads is the whole process's, so the first to come in changes it and the last to go puts it back.
    """
    global _inside, _limits
    with _changing:
        _inside += 1
        if _inside == 1:
            _limits = _from_any_thread(lambda: _libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _changing:
            _inside -= 1
            if _inside == 0:
                _from_any_thread(_limits.restore_original_limits)


def on_one_thread(function: F) -> F:
    """Run `function` with matrix products on one thread."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with products_on_one_thread():
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]
