"""How is a module imported when it is first needed? To its end: one that Ctrl-C breaks off cannot be imported again in its process."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the block is done. In other threads than the first, which it never reaches, nothing is changed."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *given: came.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            usual(*came[0])
