"""Further crafted files: members and directories that lie, headers that are programs, JSON that is not what it seems, and formulas of every
kind of result with something else in them. What :mod:`hostile_files` does to one fit's formula is done here to all that have one.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from hostile_files import Members, members_of, npy, packed, signed


def further(paths: dict[str, Path], ran: Path) -> Iterator[tuple[str, bytes]]:
    """Files with a name for each, which begins with the kind; `ran` is a file that must not come to be."""
    for kind in ("glm", "topics", "hmm"):
        members = members_of(paths[kind])
        head = json.loads(members["meta.json"])
        for name, content in (*_directories(members), *_headers(members, head, ran), *_texts(members, head)):
            yield f"{kind} with {name}", content
    for kind, path in paths.items():
        members = members_of(path)
        head = json.loads(members["meta.json"])
        for where, formula in _formulas_in(head["meta"]):
            for name, change in _nodes(formula, ran):
                yield f"{kind} with {name} in {'.'.join(map(str, where))}", signed(members, _at(head, where, change))
        yield from _swapped(kind, members, head, paths)


# ---------------------------------------------------------------------- zip


def _written(members: Members, change: Callable[[zipfile.ZipInfo], None], name: str = "meta.json") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = hashlib.sha256(members["meta.json"]).hexdigest().encode()
        for member, content in members.items():
            info = zipfile.ZipInfo(member)
            info.compress_type = zipfile.ZIP_DEFLATED
            if member == name:
                change(info)
            archive.writestr(info, content)
    return buffer.getvalue()


def _without_sizes(members: Members) -> bytes:
    """Written to a pipe, which has the sizes behind each member: a file like any other."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError

    buffer = Pipe()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = hashlib.sha256(members["meta.json"]).hexdigest().encode()
        for member, content in members.items():
            archive.writestr(member, content)
    return buffer.getvalue()


def _directories(members: Members) -> Iterator[tuple[str, bytes]]:
    array = next(name for name in members if name.endswith(".npy"))
    whole = packed(members)

    def link(info: zipfile.ZipInfo) -> None:
        info.create_system, info.external_attr = 3, 0o120777 << 16

    def folder(info: zipfile.ZipInfo) -> None:
        info.external_attr = 0x10

    yield "members without sizes before them", _without_sizes(members)
    yield "a link for meta.json", _written(members, link)
    yield "a link for an array", _written(members, link, array)
    yield "a folder for meta.json", _written(members, folder)
    yield "a further folder", packed({**members, "folder/": b""})
    yield "names of another case", packed({name.upper(): content for name, content in members.items()})
    yield "a name with a zero in it", packed({**members, f"{array}\0.txt": b"x"})
    yield "a name that climbs", packed({f"../../{name}": content for name, content in members.items()})
    yield "names with backslashes", packed({f"..\\{name}": content for name, content in members.items()})
    end = whole.rfind(b"PK\x05\x06")
    for what, at, form, value in (
        ("more members than there are", 10, "<H", 60_000),
        ("a directory beyond the end", 16, "<L", 0xFFFFFFF0),
        ("a directory without end", 12, "<L", 0x7FFFFFFF),
        ("a comment that is longer", 20, "<H", 60_000),
    ):
        yield what, whole[: end + at] + struct.pack(form, value) + whole[end + at + struct.calcsize(form) :]
    wide = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2**62, 2**62, 2**62, 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1)
    yield "a zip64 directory of 2**62 members", whole[:end] + wide + locator + whole[end:]
    first = whole.find(b"PK\x01\x02")
    sized = whole[: first + 24] + struct.pack("<L", 0xFFFFFFFF) + whole[first + 28 :]
    yield "a size that zip64 would tell", sized
    yield "a program before it", b"#!/bin/sh\ntouch ran\n" + whole
    yield "a file after it", whole + b"\0" * 100


# ---------------------------------------------------------------------- arrays


def _npy(header: str, data: bytes, version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\x01\x00" else "<L", len(text)) + text + data


def _headers(members: Members, head: dict[str, Any], ran: Path) -> Iterator[tuple[str, bytes]]:
    name = next(name for name in members if name.endswith(".npy"))
    touch = f"__import__('pathlib').Path({str(ran)!r}).touch()"
    data = np.zeros(3).tobytes()
    plain = "'fortran_order': False, 'shape': (3,), "
    headers = {
        "a header that is a call": touch,
        "a header with a call for its type": f"{{'descr': {touch}, {plain}}}",
        "a header with a lambda": f"{{'descr': (lambda: {touch})(), {plain}}}",
        "a header with a comprehension": f"{{'descr': [{touch} for _ in (1,)][0], {plain}}}",
        "a header with an f-string": f"{{'descr': f\"{{{touch}}}\", {plain}}}",
        "a header of objects": f"{{'descr': '|O', {plain}}}",
        "a header of fields": f"{{'descr': [('a', '<f8'), ('b', '|O')], {plain}}}",
        "a header of arrays in arrays": f"{{'descr': ('<f8', (2, 2)), {plain}}}",
        "a header of empty values": f"{{'descr': '|V0', {plain}}}",
        "a header of dates": f"{{'descr': '<M8[s]', {plain}}}",
        "a header of long doubles": f"{{'descr': '<f16', {plain}}}",
        "a header with one key more": f"{{'descr': '<f8', {plain}'more': 1}}",
        "a header nested deeply": "(" * 5000 + ")" * 5000,
        "a header with a shape of truths": "{'descr': '<f8', 'fortran_order': False, 'shape': (True, 3), }",
        "a header with a long shape": f"{{'descr': '<f8', 'fortran_order': False, 'shape': {(1,) * 64}, }}",
    }
    for what, header in headers.items():
        yield what, signed({**members, name: _npy(header, data)}, head)
    usual = f"{{'descr': '<f8', {plain}}}"
    yield (
        "a header of version 2 without end",
        signed({**members, name: b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 50}, head),
    )
    yield "a header of version 3", signed({**members, name: _npy(usual, data, b"\x03\x00")}, head)
    yield "a pickle for an array", signed({**members, name: b"\x80\x04cposix\nsystem\n\x8c\x04true\x85R."}, head)


# ---------------------------------------------------------------------- meta.json


def _texts(members: Members, head: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    text = members["meta.json"].decode()
    made = {
        "whole numbers of 400 digits": _with_numbers(head, 10**400),
        "numbers that are NaN": _with_numbers(head, float("nan")),
        "numbers that are infinite": _with_numbers(head, float("inf")),
        "its kind twice": text.replace('"kind":', '"kind": "os:system", "kind":', 1).replace('"kind"', '"kind"'),
        "its format last": text[:-1] + ', "format": "pickle"}',
        "its version last": text[:-1] + ', "version": 10e2}',
        "a mark of byte order": "\ufeff" + text,
        "half a character": text.replace('"format"', '"\\ud800"', 1),
        "a comment": "/* */" + text,
        "another file behind": text + text,
        "tables nested in its notes": json.dumps(head).replace(
            '"notes": [', '"notes": [' + "[" * 900 + "]" * 900 + ",", 1
        ),
    }
    for what, content in made.items():
        yield what, packed({**members, "meta.json": content.encode(errors="surrogatepass")})


def _with_numbers(head: dict[str, Any], number: Any) -> str:
    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: changed(one) for key, one in value.items()}
        if isinstance(value, list):
            return [changed(one) for one in value]
        return number if isinstance(value, float | int) and not isinstance(value, bool) else value

    return json.dumps(head | {"meta": changed(head["meta"])})


# ---------------------------------------------------------------------- formulas, and members of other kinds


def _formulas_in(meta: Any, at: tuple[Any, ...] = ("meta",)) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every kept tree, wherever it stands: of a response, of an effect's part, of an estimator's fit."""
    if isinstance(meta, dict):
        if meta.get("kept") == "tree":
            yield at, meta
        for key, value in meta.items():
            yield from _formulas_in(value, (*at, key))
    elif isinstance(meta, list):
        for place, value in enumerate(meta):
            yield from _formulas_in(value, (*at, place))


def _at(head: dict[str, Any], where: tuple[Any, ...], new: Any) -> dict[str, Any]:
    head = copy.deepcopy(head)
    inner: Any = head
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = new
    return head


def _nodes(formula: dict[str, Any], ran: Path) -> Iterator[tuple[str, Any]]:
    touch = f"touch {ran}"
    nodes: dict[str, Any] = {
        "a method of a column": ["call", "contr.to_csv", [["text", str(ran)]]],
        "a column that shadows": ["call", ["column", "contr"], [["text", str(ran)]]],
        "a module's function": ["call", "np.savetxt", [["text", str(ran)], ["column", "x"]]],
        "a private module": ["call", "np.testing._private.utils.os.system", [["text", touch]]],
        "a subscript": ["subscript", ["column", "x"], ["text", "__class__"]],
        "a lambda": ["lambda", [], ["call", "open", [["text", str(ran)]]]],
        "an f-string": ["fstring", [["call", "open", [["text", str(ran)], ["text", "w"]]]]],
        "calls in calls": ["call", "log", [["call", "getattr", [["column", "x"], ["text", "to_csv"]]]]],
        "a dunder for a sign": ["sign", "__class__", [["column", "x"]]],
        "a dunder for a transform": ["learned", "__reduce__", ["column", "x"], {}, {}, ""],
        "a state that is code": [
            "learned",
            "scale",
            ["column", "x"],
            {},
            {"center": "__import__('os')", "scale": 1.0},
            "",
        ],
        "a state of another name": ["learned", "scale", ["column", "x"], {}, {"__class__": 1.0}, ""],
        "a huge exponent": ["sign", "**", [["column", "x"], ["number", 10**400]]],
    }
    for name, node in nodes.items():
        changed = copy.deepcopy(formula)
        if changed["side"]["factors"]:
            changed["side"]["factors"][0]["of"] = node
            yield name, changed
    # Files of 0.1 hold the text: it is read as a typed formula is, and may only compute.
    for text in (
        'y ~ contr.to_csv("r")',
        "y ~ I(x.__class__)",
        "y ~ x[0]",
        "y ~ (lambda: 1)()",
        "y ~ f'{x}'",
        "y ~ np.savetxt('r', x)",
    ):
        yield f"the text {text}", {"text": text, "offset_texts": [], "states": [{}], "first": {"x": 1.0, "contr": 1.0}}


def _swapped(kind: str, members: Members, head: dict[str, Any], paths: dict[str, Path]) -> Iterator[tuple[str, bytes]]:
    """The description of one kind with the arrays of another."""
    other = next(name for name in paths if name != kind and not name.startswith(kind[:3]))
    arrays = {name: content for name, content in members_of(paths[other]).items() if name.endswith(".npy")}
    yield f"{kind} with the arrays of {other}", signed({"meta.json": b"", **arrays}, head)
    yield f"{kind} with the arrays of {other} too", signed({**arrays, **members, "extra.npy": npy(np.zeros(1))}, head)
