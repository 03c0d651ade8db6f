"""How many threads do matrix products take? One, where blocks are small."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def on_one_thread(function: F) -> F:
    """Run `function` with matrix products on one thread.

    Blocks are small: threads spend more time waiting for each other than they save, and on a busy machine thirty times
    more.
    """

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]
