"""How is a file written whole or not at all? Beside its place first, and moved there when it is complete."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from robustly.errors import PersistError


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` and move it there only when the block ends well.

    A file that is there keeps its permissions, and a link goes on pointing to the file it names.
    """
    target = Path(os.path.realpath(path))
    try:
        before = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise PersistError(
            f"cannot write {os.fspath(path)}: {error.strerror}. Choose a folder that exists and is yours."
        ) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if before is None:
            umask = os.umask(0)
            os.umask(umask)
            before = 0o666 & ~umask
        os.chmod(temporary, before)
        os.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise PersistError(
                f"cannot write {os.fspath(path)}: {error.strerror or error}. Nothing was changed there; make room or choose "
                "another folder."
            ) from error
        raise
