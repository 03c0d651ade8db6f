"""Loops compiled to machine code, kept on disk where there is a folder for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from robustly._runtime.undisturbed import undisturbed

# With fewer rows, loading the loops costs more than they spare: a second, and 110 MB.
MANY_ROWS = 1 << 18


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``numba.njit`` that keeps its machine code on disk where it may, and in memory where it may not."""
    return lambda function: _Loop(function, options)


class _Loop:
    """A function that is compiled when it is first called: importing numba takes longer than many a fit."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.function, self.options = function, options
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__
        self.made: Callable[..., Any] | None = None

    def __reduce__(self) -> str:
        return self.__name__  # as functions are: another process finds it by its name

    def __call__(self, *given: Any) -> Any:
        return (self.made or self.make())(*given)

    def make(self) -> Callable[..., Any]:
        """The compiled function; loops that it calls are made first, as numba has to know them."""
        with undisturbed():
            import numba

        around = self.function.__globals__
        for name in self.function.__code__.co_names:
            if isinstance(around.get(name), _Loop):
                around[name] = around[name].made or around[name].make()
        always = {"nogil": True, "error_model": "numpy", **self.options}
        try:
            self.made = numba.njit(cache=True, **always)(self.function)
        except RuntimeError:  # no folder to keep the code in
            self.made = numba.njit(**always)(self.function)
        return self.made
