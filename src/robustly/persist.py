"""How is a result kept? One zip file of JSON and plain arrays, written whole or not at all.

``meta.json`` says what the file holds; every array is a ``.npy`` member. Nothing in it is executed on reading, and a
file that is damaged, foreign or from a later version is refused with a :class:`~robustly.errors.PersistError`.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from robustly.errors import PersistError

FORMAT = "robustly"
VERSION = 1

# kind of result -> "module:function" that rebuilds it from (meta, arrays, **context)
KINDS: dict[str, str] = {
    "fit": "robustly.fit.result:from_saved",
    "topics": "robustly.topics.lda:from_saved",
    "conjugate": "robustly.conjugate.result:from_saved",
    "glm": "robustly.glm.keeping:from_saved",
    "glm_estimator": "robustly.glm.estimators:load_estimator",
    "mixture": "robustly.mixture.fitted:from_saved",
    "series": "robustly.series.result:from_saved",
    "hmm": "robustly.series.hmm:from_saved",
}


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` and move it there only when the block ends well."""
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent or ".", prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise PersistError(
            f"cannot write {target}: {error.strerror}. Choose a folder that exists and is yours."
        ) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def write(path: str | os.PathLike[str], kind: str, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Path:
    """Save `meta` (JSON values) and `arrays` as one file of the given kind."""
    head = {"format": FORMAT, "version": VERSION, "kind": kind, "meta": meta, "arrays": sorted(arrays)}
    try:
        text = json.dumps(head, allow_nan=True)
    except (TypeError, ValueError) as error:
        raise PersistError(f"this {kind} holds something JSON cannot keep: {error}") from error
    with atomic(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("meta.json", text)
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
            archive.writestr(f"{name}.npy", buffer.getvalue())
    return Path(path)


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """The kind, meta data and arrays of a saved file."""
    source = Path(path)
    if not source.is_file():
        raise PersistError(f"there is no file {source}. Check the path given to load().")
    try:
        with zipfile.ZipFile(source) as archive:
            head = json.loads(archive.read("meta.json"))
            if not isinstance(head, dict) or head.get("format") != FORMAT:
                raise PersistError(f"{source} is a zip file, but not one that robustly wrote.")
            if head["version"] > VERSION:
                raise PersistError(
                    f"{source} is in format {head['version']}, and this robustly reads up to {VERSION}. Upgrade robustly."
                )
            arrays = {
                name: np.lib.format.read_array(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
                for name in head["arrays"]
            }
            return head["kind"], head["meta"], arrays
    except PersistError:
        raise
    except zipfile.BadZipFile as error:
        raise PersistError(
            f"{source} is damaged or was not written by robustly ({error}). Save the result again."
        ) from error
    except (KeyError, ValueError, TypeError, EOFError, OSError, NotImplementedError) as error:
        raise PersistError(f"{source} is damaged: {error}. Save the result again.") from error


def load(path: str | os.PathLike[str], **context: Any) -> Any:
    """Read back what ``save`` wrote.

    A fit of a NumPyro program comes back with all its numbers; to predict with it, give the program it was made from:
    ``rb.load("fit.robustly", model=model)``. No code is stored in the file.
    """
    kind, meta, arrays = read(path)
    if kind not in KINDS:
        raise PersistError(f'{os.fspath(path)} holds a "{kind}", which this robustly does not know. Upgrade robustly.')
    module, function = KINDS[kind].split(":")
    rebuild: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return rebuild(meta, arrays, **context)
