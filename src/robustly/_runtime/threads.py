"""How many threads do matrix products take? One, where blocks are small."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


_changing, _inside, _limits = Lock(), 0, contextlib.ExitStack()


@contextlib.contextmanager
def products_on_one_thread() -> Iterator[None]:
    """Matrix products take one thread inside the block, whichever thread asks for them.

    Blocks are small: threads spend more time waiting for each other than they save, and on a busy machine thirty times
    more. The number of threads is the whole process's, so the first to come in changes it and the last to go puts it back.
    """
    global _inside
    with _changing:
        _inside += 1
        if _inside == 1:
            _limits.enter_context(_libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _changing:
            _inside -= 1
            if _inside == 0:
                _limits.close()


def on_one_thread(function: F) -> F:
    """Run `function` with matrix products on one thread."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with products_on_one_thread():
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]
