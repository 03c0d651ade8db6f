"""How is a result kept? One zip file of JSON and plain arrays, written whole or not at all.

``meta.json`` says what the file holds; every array is a ``.npy`` member with its checksum in ``meta.json``, whose own
checksum is the comment of the zip file. Nothing in it is executed on reading. Sizes are checked before anything is unpacked
(:mod:`robustly.result.saved_members`) and what was unpacked before anything is built (:mod:`robustly.result.saved_checks`),
so a file that is damaged, foreign or from a later version is refused with a :class:`~robustly.errors.PersistError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robustly._runtime.atomic import atomic
from robustly.errors import ModelError, PersistError, RobustlyError, names
from robustly.result import saved_checks, saved_members
from robustly.result.saved_members import DAMAGES, sum_of

FORMAT = "robustly"
VERSION = 2

# kind of result -> "module:function" that rebuilds it from (meta, arrays, **context)
KINDS: dict[str, str] = {
    "fit": "robustly.localized.reattach:from_saved",
    "topics": "robustly.topics.lda:from_saved",
    "conjugate": "robustly.conjugate.saved_fits:from_saved",
    "glm": "robustly.glm.saved_fits:from_saved",
    "glm_categories": "robustly.glm.multinomial:from_saved",
    "glm_grouped": "robustly.glm.grouped.saved:from_saved",
    "glm_estimator": "robustly.glm.estimators:load_estimator",
    "mixture": "robustly.mixture.fitted:from_saved",
    "series": "robustly.series.result:from_saved",
    "hmm": "robustly.series.hmm:from_saved",
}


def write(path: str | os.PathLike[str], kind: str, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Path:
    """Save `meta` (JSON values) and `arrays` as one file of the given kind."""
    members: dict[str, bytes] = {}
    for name, array in arrays.items():
        plain = np.asarray(array)
        if plain.dtype.kind not in saved_members.KINDS_OF_NUMBERS:
            raise PersistError(f'this {kind} holds "{name}" of type {plain.dtype}, and files keep numbers only.')
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, plain, allow_pickle=False)
        members[f"{name}.npy"] = buffer.getvalue()
    head = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        "meta": meta,
        "holds": [*sorted(name for name, value in meta.items() if value is not None), *sorted(members)],
        "arrays": sorted(arrays),
        "sums": {name: hashlib.sha256(content).hexdigest() for name, content in members.items()},
    }
    try:
        text = json.dumps(head, allow_nan=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise PersistError(f"this {kind} holds something JSON cannot keep: {error}") from error
    with atomic(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = hashlib.sha256(text).hexdigest().encode()
        for name, content in {"meta.json": text, **members}.items():
            archive.writestr(name, content, compress_type=saved_members.compression_of(content))
    return Path(path)


def read(path: str | os.PathLike[str]) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """The kind, meta data and arrays of a saved file."""
    source = Path(path)
    if not source.is_file():
        raise PersistError(f"there is no file {source}. Check the path given to load().")
    if not os.access(source, os.R_OK):
        raise PersistError(f"cannot read {source}: it is not yours to read. Ask its owner, or change its permissions.")
    try:
        saved_members.refuse_long_directory(source)
        with zipfile.ZipFile(source) as archive:
            if "meta.json" not in archive.namelist():
                raise PersistError(f"{source} is a zip file, but not one that robustly wrote.")
            text = saved_members.text_of(archive, "meta.json")
            head = json.loads(text, parse_int=saved_members.whole_number)
            if not isinstance(head, dict) or head.get("format") != FORMAT:
                raise PersistError(f"{source} is a zip file, but not one that robustly wrote.")
            version = head.get("version")
            if type(version) is not int or version < 1:
                raise ValueError(f"its format is {version!r}, which there is not")
            if version > VERSION:
                raise PersistError(
                    f"{source} is in format {version}, and this robustly reads up to {VERSION}. Upgrade robustly."
                )
            sums = _sums(head, text, archive.comment) if version > 1 else None
            kind, meta, listed = head["kind"], head["meta"], head["arrays"]
            if not isinstance(kind, str) or not isinstance(meta, dict) or not _are_texts(listed):
                raise ValueError("meta.json does not say what the file holds")
            # What a kind may have or not is missed only where the file says that it was there.
            holds = head.get("holds", [])
            there = {*(name for name, value in meta.items() if value is not None), *(f"{name}.npy" for name in listed)}
            if not _are_texts(holds) or not there.issuperset(holds):
                raise ValueError("meta.json lacks something that it says it holds")
            saved_members.refuse_sizes(archive, source.stat().st_size, {"meta.json", *(f"{one}.npy" for one in listed)})
            arrays = {
                name: saved_members.array_of(archive, f"{name}.npy", None if sums is None else sums[f"{name}.npy"])
                for name in listed
            }
            return kind, meta, arrays
    except PersistError:
        raise
    except zipfile.BadZipFile as error:
        raise PersistError(
            f"{source} is damaged or was not written by robustly ({error}). Save the result again."
        ) from error
    except DAMAGES as error:
        raise PersistError(f"{source} is damaged: {_damage_said(error)}. Save the result again.") from error


def load(path: str | os.PathLike[str], **context: Any) -> Any:
    """Read back what ``save`` wrote.

    A fit of a NumPyro program comes back with all its numbers; to predict with it, give the program it was made from:
    ``rb.load("fit.robustly", model=model)``. A regression with a family of your own is read with ``family=``. No code is
    stored in the file, and none of it is run: files may come from anyone.
    """
    kind, meta, arrays = read(path)
    if kind not in KINDS:
        raise PersistError(
            f'{os.fspath(path)} holds a "{kind[:60]}", which this robustly does not know. Upgrade robustly.'
        )
    with _about(path):  # before anything is imported for it
        saved_checks.check(kind, meta, arrays)
    module, function = KINDS[kind].split(":")
    rebuild: Callable[..., Any] = getattr(importlib.import_module(module), function)
    taken = list(inspect.signature(rebuild).parameters)[2:]
    if not set(context) <= set(taken):
        other = names(sorted(set(context) - set(taken)))
        raise ModelError(
            f'{os.fspath(path)} holds a "{kind}", which is read with {names(taken)}; got {other}. Leave that out.'
        )
    with _about(path, given=bool(context)):
        return rebuild(meta, arrays, **context)


@contextlib.contextmanager
def _about(path: str | os.PathLike[str], given: bool = False) -> Iterator[None]:
    """Whatever goes wrong with a file's content is said of the file, unless it may be about what the caller gave."""
    try:
        yield
    except PersistError as error:
        raise PersistError(f"{os.fspath(path)}: {error}") from error
    except (*DAMAGES, RobustlyError) as error:
        if given and isinstance(error, RobustlyError):
            raise
        raise PersistError(f"{os.fspath(path)} is damaged: {_damage_said(error)}. Save the result again.") from error


def _sums(head: Mapping[str, Any], text: bytes, comment: bytes) -> dict[str, str]:
    """The checksums of the members, after that of the text they stand in."""
    if comment.decode("ascii") != sum_of(text):
        raise ValueError("meta.json has another checksum than it was written with")
    sums = head["sums"]
    if not isinstance(sums, dict):
        raise ValueError("its checksums are missing")
    return sums


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and len(set(value)) == len(value)


def _damage_said(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, RecursionError):
        return "its tables are nested too deeply"
    text = str(error).strip().rstrip(".")
    return (text if len(text) <= 300 else text[:299] + "…") or type(error).__name__
