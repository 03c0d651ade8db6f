"""Which compiled programs on disk are whole? Damaged ones are removed, so that they are compiled and kept anew.

JAX writes an entry in one go and reads it without a look at what it is: one that was cut short by a full disk or a kill warns in
every process and is never replaced, and one with another's content breaks a fit. So each entry is read once by the first process
that finds it, its checksum is kept, and it is looked at again only when the file has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from pathlib import Path
from typing import Any

KEPT = "checked.json"
# Another process may still be writing an entry this young.
YOUNG = 10.0
# Seconds a process gives to entries that are new to it; those that are left wait for the next.
MOST_SECONDS = 0.5


def remove_damaged(folder: Path) -> None:
    """Look at what is new or changed in a folder of compiled programs; whatever cannot be looked at is left alone."""
    with contextlib.suppress(OSError):
        known = _checked_before(folder / KEPT)
        found: dict[str, Any] = {}
        until = time.monotonic() + MOST_SECONDS
        for path in folder.glob("*-cache"):
            with contextlib.suppress(OSError):
                about, before = path.stat(), known.get(path.name)
                stamp = [about.st_size, about.st_mtime_ns]
                if before is not None and before[:2] == stamp:
                    found[path.name] = before
                elif before is not None or (time.time() - about.st_mtime > YOUNG and time.monotonic() < until):
                    content = path.read_bytes()
                    checksum = hashlib.sha256(content).hexdigest()
                    if (before is None and _can_be_unpacked(content)) or (before is not None and before[2] == checksum):
                        found[path.name] = [*stamp, checksum]
                    else:
                        path.unlink()
        if found != known:
            _write(folder / KEPT, found)


def _checked_before(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    good = lambda one: isinstance(one, list) and len(one) == 3
    return {name: one for name, one in found.items() if good(one)} if isinstance(found, dict) else {}


def _write(path: Path, known: dict[str, Any]) -> None:
    from robustly._runtime.atomic import atomic
    from robustly.errors import PersistError

    with contextlib.suppress(PersistError), atomic(path) as stream:
        stream.write(json.dumps(known).encode())


def _can_be_unpacked(content: bytes) -> bool:
    try:
        from jax._src.compilation_cache import decompress_executable
    except ImportError:
        return True
    try:
        decompress_executable(content)
    except Exception:  # of whichever package packs them
        return False
    return True
