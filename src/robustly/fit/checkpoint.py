"""How does a fit go on after its process was killed? What every pass over the rows added up to is kept in a folder.

A search sees its rows only through sums. Given the same call again, it asks for the same passes at the same places, and those
that are in the folder are read instead of run, until the first that is not. So it ends in the same answer, whichever model it is
and wherever it was stopped. A pass is written whole or not at all, and never touched again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from robustly._runtime.atomic import atomic
from robustly.errors import PersistError
from robustly.rows.arrays import ArrayRows
from robustly.rows.store import ByUnit, Data, Mapped, Pass, Rows, Slot, Sums

HEAD = "checkpoint.json"
LOCK = "in-use.lock"


@contextlib.contextmanager
def checkpointed(rows: Rows, folder: str | os.PathLike[str] | None, model: str) -> Iterator[Rows]:
    """The same rows, whose passes are kept in `folder`; `model` says what is fitted, and None keeps nothing."""
    if folder is None:
        yield rows
        return
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PersistError(f"cannot make the checkpoint folder {place}: {error.strerror}.") from error
    with _one_at_a_time(place):
        _check_head(place, {"version": _package_version(), "model": model, "data": _data_print(rows)})
        log = PassLog(place)
        try:
            yield CheckpointedRows(rows, log)
        finally:
            log.open = False


def _package_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("robustly")
    except PackageNotFoundError:
        return "unknown"


@contextlib.contextmanager
def _one_at_a_time(place: Path) -> Iterator[None]:
    """The folder, for this process alone: the system gives the lock back when the process ends, however it ends."""
    import fcntl

    with (place / LOCK).open("a+b") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PersistError(
                f"the checkpoint folder {place} is in use by another fit. Wait for it, or give each fit a folder of its own."
            ) from None
        yield


def _check_head(place: Path, wanted: dict[str, str]) -> None:
    head = place / HEAD
    if not head.exists():
        strange = sorted(one.name for one in place.iterdir() if one.name != LOCK)
        if strange:
            raise PersistError(f"{place} is no checkpoint folder: it holds {strange[0]}. Give an empty folder.")
        with atomic(head) as stream:
            stream.write(json.dumps(wanted, indent=1).encode())
        return
    try:
        known = json.loads(head.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PersistError(f"{head} cannot be read: {error}. Give an empty folder.") from None
    told = {
        "version": "was made by robustly {known}, and this is {wanted}",
        "model": "is of another model: {known}; asked for is {wanted}",
        "data": "is of other data (rows, columns or their sums differ)",
    }
    for name, text in told.items():
        if known.get(name) != wanted[name]:
            shown = text.format(known=str(known.get(name))[:300], wanted=wanted[name][:300])
            raise PersistError(f"the checkpoint in {place} {shown}. Give another folder, or delete this one.")


def _data_print(rows: Rows) -> str:
    """Rows, columns and their sums, as a word that other data have not."""
    found = rows.map(print_pass, None).sums
    parts = [str(len(rows)), ",".join(rows.labels)]
    parts += [f"{name}={np.asarray(value).tolist()}" for name, value in sorted(found.items())]
    return hashlib.sha256(";".join(parts).encode()).hexdigest()


def print_pass(theta: Any, data: Data, weight: np.ndarray, state: Any) -> tuple[Sums, ByUnit, None]:
    """Weighted sums of the columns, rounded to what every store agrees on."""
    sums = {"weight": np.float64(np.asarray(weight).sum())}
    for place, column in enumerate(data):
        dense = np.asarray(column.toarray() if hasattr(column, "toarray") else column, dtype=float)
        flat = dense.reshape(len(dense), -1)
        counted = np.asarray(weight)[:, None] * np.ones_like(flat[:1])
        # Whole numbers add up exactly in any order.
        sums[f"{place}"] = np.sum(counted * np.round(np.clip(flat * 1024.0, -(2.0**40), 2.0**40)), axis=0)
    return sums, {}, None


class PassLog:
    """The passes of a fit in their order: those that are in the folder, and those that are added."""

    def __init__(self, place: Path) -> None:
        self.place, self.next, self.open = place, 0, True

    def path(self, number: int) -> Path:
        return self.place / f"pass-{number:06d}.npz"

    def known(self, key: bytes) -> Sums | None:
        """The sums of the next pass, if it was run at this place before; what follows another is forgotten."""
        path = self.path(self.next)
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as found:
                held = {name: found[name] for name in found.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            held = {}
        if held.pop("key", np.zeros(0, np.uint8)).tobytes() == key:
            self.next += 1
            return held
        for later in sorted(self.place.glob("pass-*.npz")):
            if later.name >= path.name:
                later.unlink()
        return None

    def add(self, key: bytes, sums: Sums) -> None:
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {"key": np.frombuffer(key, np.uint8), **sums}
        np.savez(buffer, **arrays)
        with atomic(self.path(self.next)) as stream:
            stream.write(buffer.getvalue())
        self.next += 1


@dataclass(frozen=True, eq=False)
class CheckpointedRows(Rows):
    """Rows whose passes are kept."""

    inner: Rows
    log: PassLog

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.inner.labels

    @property
    def weight(self) -> Any:  # type: ignore[override]
        return self.inner.weight

    @property
    def total_weight(self) -> float:
        return self.inner.total_weight

    def __len__(self) -> int:
        return len(self.inner)

    def __reduce__(self) -> Any:
        return _as_given, (self.inner,)

    def map(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None, into: Slot | None = None) -> Mapped:
        if not self.log.open:  # what is asked after the fit is not kept
            return self.inner.map(chunk_pass, theta, keep, into)
        key = hashlib.sha256(b"".join(_bytes(theta))).digest()
        known = self.log.known(key)
        if known is not None:
            return Mapped(known, _Again(lambda: self.inner.map(chunk_pass, theta, keep).by_unit))
        found = self.inner.map(chunk_pass, theta, keep, into)
        self.log.add(key, found.sums)
        return found

    @property
    def here(self) -> ArrayRows | None:
        return self.inner.here

    def take(self, index: Any) -> ArrayRows:
        return self.inner.take(index)

    def some(self, index: Any) -> Rows:
        return self.inner.some(index)

    def gather(self, chunk_pass: Pass, theta: Any, keep: Slot | None = None) -> dict[str, Any]:
        return self.inner.gather(chunk_pass, theta, keep)

    def sample(self, n: int, seed: int = 0) -> ArrayRows:
        return self.inner.sample(n, seed)

    def weighed(self, weight: Any) -> Rows:
        return self.inner.weighed(weight)

    def cut_into(self, chunk: int) -> CheckpointedRows:
        return replace(self, inner=self.inner.cut_into(chunk))

    def each_piece(self, look: Callable[[Data], Any]) -> list[Any]:
        return self.inner.each_piece(look)

    def column(self, place: int) -> Any:
        return self.inner.column(place)


def _as_given(rows: Rows) -> Rows:
    return rows


class _Again(dict[str, Any]):
    """Values by unit of a pass that was read and not run: it is run when they are asked for."""

    def __init__(self, run: Callable[[], ByUnit]) -> None:
        super().__init__()
        self.run: Callable[[], ByUnit] | None = run

    def __missing__(self, name: str) -> Any:
        if self.run is None:
            raise KeyError(name)
        found, self.run = self.run(), None
        self.update({one: found[one] for one in found})
        return self[name]

    def __bool__(self) -> bool:
        return True


def _bytes(theta: Any) -> Iterator[bytes]:
    """What a pass was given, as bytes."""
    if isinstance(theta, tuple | list):
        for one in theta:
            yield from _bytes(one)
    elif isinstance(theta, dict):
        for name, one in theta.items():
            yield name.encode()
            yield from _bytes(one)
    elif is_dataclass(theta):
        for field in fields(theta):
            yield from _bytes(getattr(theta, field.name))
    elif theta is None or isinstance(theta, str | bool):
        yield repr(theta).encode()
    else:
        array = np.asarray(theta)
        yield str(array.shape).encode() + array.tobytes()
