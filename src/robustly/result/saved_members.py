"""How large is what a file holds, before it is unpacked? Sizes, kinds and checksums of the members of a saved file.

A few kilobytes of zip can ask for gigabytes, and the header of an array can ask for any shape. So the directory of the zip
file, the declared size of every member and the header of every array are compared first; memory is taken when they agree.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

MOST_MEMBERS = 10_000
LONGEST_DIRECTORY = 4_000_000
LONGEST_META = 64_000_000
MOST_META_VALUES = 2_000_000
LONGEST_HEADER = 10_000
MOST_DIGITS = 300
# What may be unpacked: so many bytes in any case, and so many for every byte on disk.
UNPACKED_ANYWAY = 64_000_000
UNPACKED_BY_BYTE = 40
CHUNK = 1 << 20
KINDS_OF_NUMBERS = "biuf"

# What zipfile, zlib, json and NumPy raise for damaged files, and what rebuilding raises for values out of place.
DAMAGES = (
    KeyError, ValueError, TypeError, EOFError, OSError, NotImplementedError, RuntimeError, zlib.error, RecursionError,
    MemoryError, struct.error, OverflowError, IndexError, AttributeError, ArithmeticError, AssertionError, zipfile.BadZipFile,
    zipfile.LargeZipFile, np.linalg.LinAlgError, SyntaxError, tokenize.TokenError,
)  # fmt: skip


def sum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def compression_of(content: bytes) -> int:
    """Members that shrink beyond what is unpacked again without a question are stored as they are."""
    if len(content) <= CHUNK:
        return zipfile.ZIP_DEFLATED
    return (
        zipfile.ZIP_STORED if len(content) > UNPACKED_BY_BYTE * len(zlib.compress(content, 1)) else zipfile.ZIP_DEFLATED
    )


def refuse_long_directory(path: Path) -> None:
    """A directory of millions of members takes gigabytes to read; its length stands at the end of the file."""
    with path.open("rb") as stream:
        end = stream.seek(0, io.SEEK_END)
        stream.seek(max(0, end - 70_000))
        tail = stream.read()
    at = tail.rfind(b"PK\x05\x06")
    if at >= 0 and len(tail) >= at + 22:
        count, length = struct.unpack("<10xHL", tail[at : at + 16])
        if count > MOST_MEMBERS or length > LONGEST_DIRECTORY:
            raise ValueError(f"its directory is {length} bytes long, for {count} members")


def refuse_sizes(archive: zipfile.ZipFile, on_disk: int, expected: set[str]) -> None:
    """Members that nobody wrote, that are hidden or packed otherwise, or that unpack to too much."""
    members = archive.infolist()
    if len(members) != len(expected) or {one.filename for one in members} != expected:
        raise ValueError("its members are not those that meta.json names")
    for one in members:
        _refuse_odd(one)
    total = sum(one.file_size for one in members)
    if total > UNPACKED_ANYWAY + UNPACKED_BY_BYTE * on_disk:
        raise ValueError(f"its {on_disk} bytes would unpack to {total}, which no saved result does")


def _refuse_odd(member: zipfile.ZipInfo) -> None:
    if member.flag_bits & 0x1:
        raise ValueError(f"its member {member.filename[:80]!r} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"its member {member.filename[:80]!r} is packed in a way that saved results are not")


def text_of(archive: zipfile.ZipFile, name: str) -> bytes:
    """A member of text, if its length and the number of values in it can be meant."""
    member = archive.getinfo(name)
    _refuse_odd(member)
    if member.file_size > LONGEST_META:
        raise ValueError(f"{name} would be {member.file_size} bytes long")
    with archive.open(member) as stream:
        text = stream.read(member.file_size + 1)
    values = sum(text.count(sign) for sign in (b",", b"[", b"{"))
    if len(text) != member.file_size or values > MOST_META_VALUES:
        raise ValueError(f"{name} holds {values} values in {len(text)} bytes")
    return text


def whole_number(digits: str) -> int:
    """A whole number of meta.json, which is one that a real number holds too."""
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"meta.json holds a whole number of {len(digits)} digits")
    return int(digits)


def array_of(archive: zipfile.ZipFile, name: str, wanted: str | None) -> np.ndarray:
    """A member that is an array of numbers; its header has to ask for exactly the bytes that are there."""
    member = archive.getinfo(name)
    digest = hashlib.sha256()
    with archive.open(member) as stream:
        start = stream.read(min(member.file_size, LONGEST_HEADER + 12))
        shape, order, dtype, begins = _header_of(start, name)
        size = math.prod(shape) * dtype.itemsize
        if size != member.file_size - begins:
            raise ValueError(f"{name} says it has the shape {shape}, but holds {member.file_size - begins} bytes")
        digest.update(start)
        data = np.empty(size, dtype=np.uint8)
        view = memoryview(data)
        at = len(start) - begins
        view[:at] = start[begins:]
        while at < size:
            piece = stream.read(min(CHUNK, size - at))
            if not piece:
                raise EOFError(f"{name} ends too early")
            view[at : at + len(piece)] = piece
            digest.update(piece)
            at += len(piece)
        if stream.read(1):
            raise ValueError(f"{name} is longer than it says")
    if wanted is not None and digest.hexdigest() != wanted:
        raise ValueError(f"{name} has another checksum than it was written with")
    found = data.view(dtype).reshape(shape, order=order)
    return found.astype(dtype.newbyteorder("="), copy=False)


def _header_of(start: bytes, name: str) -> tuple[tuple[int, ...], Any, np.dtype[Any], int]:
    stream = io.BytesIO(start)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=LONGEST_HEADER)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream, max_header_size=LONGEST_HEADER)
    else:
        raise ValueError(f"{name} is an array of version {version}")
    if (
        dtype.kind not in KINDS_OF_NUMBERS
        or dtype.itemsize > 8
        or dtype.names is not None
        or dtype.subdtype is not None
    ):
        raise ValueError(f"{name} holds values of type {dtype}, which are not numbers")
    if len(shape) > 8 or any(type(one) is not int or one < 0 for one in shape):
        raise ValueError(f"{name} has the shape {shape}")
    return shape, "F" if fortran else "C", dtype, stream.tell()
