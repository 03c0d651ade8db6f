"""Files that nobody should have to trust: crafted by someone who knows the format, or damaged by chance.

Run alone (``python tests/faults/hostile_files.py --mutated 2400``) it reads all crafted and so many damaged files and prints
how they ended; tests read a part of them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import struct
import sys
import tempfile
import tracemalloc
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import robustly as rb
from robustly.result import persist

Members = dict[str, bytes]
# Arrays that some unharmed files do not have.
OPTIONAL = (
    "scored.npy",
    "tail_probabilities.npy",
    "loo_by_row.npy",
    "alone.npy",
    "judged_probability.npy",
    "judged_tail.npy",
)


def members_of(path: Path) -> Members:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members: Members, comment: bytes | None = None, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.comment = (
            hashlib.sha256(members.get("meta.json", b"")).hexdigest().encode() if comment is None else comment
        )
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def signed(members: Members, head: dict[str, Any]) -> bytes:
    """A file whose checksums are right, as someone who means harm would write it."""
    arrays = [name.removesuffix(".npy") for name in members if name.endswith(".npy")]
    head = head | {
        "arrays": sorted(arrays),
        "sums": {f"{name}.npy": hashlib.sha256(members[f"{name}.npy"]).hexdigest() for name in arrays},
    }
    return packed({**members, "meta.json": json.dumps(head).encode()})


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=True)
    return buffer.getvalue()


def array_in(content: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


# ---------------------------------------------------------------------- crafted


def crafted(paths: dict[str, Path], ran: Path) -> Iterator[tuple[str, bytes]]:
    """Files with a name for each; `ran` is a file that must not come to be."""
    for kind, path in paths.items():
        members = members_of(path)
        head = json.loads(members["meta.json"])
        yield from _heads(kind, members, head)
        yield from _arrays(kind, members, head)
        yield from _metas(kind, members, head)
    yield from zips(members_of(paths["glm"]))
    yield from formulas(members_of(paths["glm"]), ran)


def _heads(kind: str, members: Members, head: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    others = {
        "of version 3": {"version": 3}, "of version 0": {"version": 0}, "of version -1": {"version": -1},
        "of version 1e999": {"version": float("inf")}, "of version true": {"version": True}, "of version text": {"version": "2"},
        "of another format": {"format": "pickle"}, "of no kind": {"kind": None}, "of another kind": {"kind": "os:system"},
        "of a list of kinds": {"kind": ["glm"]}, "without meta": {"meta": None}, "with a list of meta": {"meta": [1]},
    }  # fmt: skip
    for name, change in others.items():
        yield f"{kind} {name}", signed(members, head | change)
    yield (
        f"{kind} of version 1",
        packed({**members, "meta.json": json.dumps(head | {"version": 1, "sums": 0}).encode()}, b""),
    )
    for other in persist.KINDS:
        if other != head["kind"]:
            yield f"{kind} called {other}", signed(members, head | {"kind": other})


def _arrays(kind: str, members: Members, head: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    names = [name for name in members if name.endswith(".npy")]
    for name in names:
        found = array_in(members[name])
        made: dict[str, bytes] = {
            "of objects": npy(np.array([{"a": 1}], dtype=object)),
            "of words": npy(np.array(["a", "b"])),
            "complex": npy(found.astype(complex)),
            "with another axis": npy(found[..., None, None]),
            "empty": npy(np.zeros(0)),
            "without header": b"\x93NUMPY\x01\x00",
            "with a huge shape": _npy_with_shape(members[name], "(1000000000000,)"),
            "with a negative shape": _npy_with_shape(members[name], "(-1,)"),
            "with a shape that overflows": _npy_with_shape(members[name], f"({2**62}, {2**62}, 0)"),
            "with a call in its header": _npy_with_shape(members[name], "__import__('os').getpid()"),
        }
        if found.dtype.kind == "f" and found.size:
            made["full of NaN"] = npy(np.full_like(found, np.nan))
        if found.dtype.kind == "f" and found.size and not name.startswith("column:"):
            made["cast to bytes"] = npy(np.ones(found.shape, dtype=np.uint8))
        if found.ndim and found.size and not name.startswith("alone"):
            made["longer"] = npy(np.concatenate([found, found[:1]]))
        for what, content in made.items():
            yield f"{kind} with {name} {what}", signed({**members, name: content}, head)
        if name not in OPTIONAL:
            yield f"{kind} without {name}", signed({n: c for n, c in members.items() if n != name}, head)


def _npy_with_shape(content: bytes, shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content[128:]


def _metas(kind: str, members: Members, head: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Every value of the meta data replaced by something of another kind, or taken away."""
    odd: list[Any] = [None, "__class__", -1, 1e308, [[]], {"a": 1}, {"__class__": "os"}]
    for key in head["meta"]:
        if key in ("notes", "formula"):
            continue
        without = {k: v for k, v in head["meta"].items() if k != key}
        yield f"{kind} without {key}", signed(members, head | {"meta": without})
        for value in odd:
            if value == head["meta"][key] or _may_be(kind, key, value):
                continue
            yield f"{kind} with {key} = {value}", signed(members, head | {"meta": {**head["meta"], key: value}})
    nested = b"[" * 100_000 + b"]" * 100_000
    text = json.dumps(head | {"meta": 0}).encode().replace(b'"meta": 0', b'"meta": ' + nested)
    yield f"{kind} with deep JSON", packed({**members, "meta.json": text})
    digits = json.dumps(head | {"meta": 0}).encode().replace(b'"meta": 0', b'"meta": ' + b"9" * 100_000)
    yield f"{kind} with a long number", packed({**members, "meta.json": digits})


def _may_be(kind: str, key: str, value: Any) -> bool:
    """Values that another unharmed file could have: a result like that is no damage."""
    texts = ("approximation", "family_name", "names", "vocabulary", "call", "outcome")
    return (
        key == "family_name"
        or (key in texts and (value is None or isinstance(value, str)) and not (key == "outcome" and kind != "topics"))
        or (key in ("by_formula", "family") and value is None)
        or (
            key in ("objective", "strength", "evidence", "fitted_tokens", "stream_seed", "classical_log_likelihood")
            and isinstance(value, int | float)
        )
        or (key in ("log_likelihood_error", "effective_draws") and isinstance(value, float))
    )


def zips(members: Members) -> Iterator[tuple[str, bytes]]:
    whole = packed(members)
    head = json.loads(members["meta.json"])
    zeros = npy(np.zeros(12_500_000))
    yield "an array of 100 MB in few bytes", signed({**members, "weight.npy": zeros}, head)
    yield "an extra member of 100 MB", packed({**members, "more.npy": zeros})
    yield "meta.json of 100 MB", packed({**members, "meta.json": b" " * 100_000_000})
    yield "meta.json of 60 MB of brackets", packed({**members, "meta.json": b"[" + b"[]," * 20_000_000 + b"[]]"})
    lied = bytearray(packed({**members, "weight.npy": zeros}))
    for at in _places(bytes(lied), b"weight.npy"):
        start = at - 46 if lied[at - 46 : at - 42] == b"PK\x01\x02" else at - 30
        offset = 24 if lied[start : start + 4] == b"PK\x01\x02" else 22
        lied[start + offset : start + offset + 4] = struct.pack("<L", len(members["weight.npy"]))
    yield "a size that is a lie", bytes(lied)
    locked = bytearray(whole)
    for mark, flag in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for at in _places(whole, mark):
            locked[at + flag] |= 1
    yield "encrypted members", bytes(locked)
    yield "another way of packing", packed(members, method=zipfile.ZIP_BZIP2)
    yield "a third way of packing", packed(members, method=zipfile.ZIP_LZMA)
    yield "a member outside", packed({**members, "../outside.npy": b"x"})
    yield "a member with an absolute name", packed({**members, "/etc/outside.npy": b"x"})
    yield "no members", packed({})
    yield "no meta.json", packed({n: c for n, c in members.items() if n != "meta.json"})
    yield "meta.json that is no JSON", packed({**members, "meta.json": b"\x80\x04\x95"})
    yield "meta.json in another encoding", packed({**members, "meta.json": json.dumps(head).encode("utf-32")[:-3]})
    yield "another checksum of meta.json", packed(members, comment=b"0" * 64)
    yield "no checksum of meta.json", packed(members, comment=b"")
    yield "a checksum that is no text", packed(members, comment=b"\xff" * 64)
    yield "a pickle", b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94."
    yield "an empty file", b""
    yield "a text", b"y ~ x\n"
    many = io.BytesIO()
    with zipfile.ZipFile(many, "w") as archive:
        for place in range(12_000):
            archive.writestr(f"{place}.npy", b"")
    yield "12000 members", many.getvalue()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, content in [*members.items(), *members.items()]:
                archive.writestr(name, content)
        archive.comment = hashlib.sha256(members["meta.json"]).hexdigest().encode()
    yield "every member twice", buffer.getvalue()
    sums = dict.fromkeys(head["sums"])
    yield "checksums that are nothing", packed({**members, "meta.json": json.dumps(head | {"sums": sums}).encode()})
    yield "checksums that are missing", packed({**members, "meta.json": json.dumps(head | {"sums": {}}).encode()})


def _places(content: bytes, mark: bytes) -> list[int]:
    found, at = [], content.find(mark)
    while at >= 0:
        found.append(at)
        at = content.find(mark, at + 1)
    return found


def formulas(members: Members, ran: Path) -> Iterator[tuple[str, bytes]]:
    """The tree of a formula with something else in it."""
    head = json.loads(members["meta.json"])

    def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
        copy = json.loads(json.dumps(head))
        change(copy["meta"]["formula"])
        return signed(members, copy)

    node = lambda value: lambda formula: formula["side"]["factors"][0].__setitem__("of", value)
    deep: list[Any] = ["column", "x"]
    for _ in range(300):
        deep = ["sign", "negative", [deep]]
    nodes: dict[str, Any] = {
        "a call of open": ["call", "open", [["text", str(ran)]]],
        "a call of system": ["call", "os.system", [["text", f"touch {ran}"]]],
        "a call of a method": ["call", "x.to_csv", [["text", str(ran)]]],
        "an attribute": ["attribute", ["column", "x"], "to_csv"],
        "a dunder": ["call", "__import__", [["text", "os"]]],
        "a sign that is none": ["sign", "@", [["column", "x"], ["column", "x"]]],
        "too many arguments": ["call", "log", [["column", "x"]] * 3],
        "arithmetic with words": ["sign", "*", [["text", "a"], ["number", 1e9]]],
        "a number that is none": ["number", "1"],
        "a number that is infinite": ["number", 1e999],
        "nothing": [],
        "a text": "log(x)",
        "a deep tree": deep,
        "an unknown transform": ["learned", "exec", ["column", "x"], {}, {}, "exec(x)"],
        "a spline of a spline": ["learned", "bs", ["learned", "poly", ["column", "x"], {}, {}, ""], {}, {}, ""],
        "options that are code": ["learned", "scale", ["column", "x"], {"center": "__import__"}, {}, ""],
        "a degree without end": ["learned", "poly", ["column", "x"], {"degree": 10**9}, {"alpha": {}, "norms2": {}}, ""],
        "a scale that learns again": ["learned", "scale", ["column", "x"], {}, {}, ""],
        "a scale of zero": ["learned", "scale", ["column", "x"], {}, {"ddof": 1, "center": 0.0, "scale": 0.0}, ""],
        "knots that are none": [
            "learned", "bs", ["column", "x"], {"df": 4}, {"lower_bound": 0, "upper_bound": 1, "knots": [3, 1, "a"]}, "",
        ],
    }  # fmt: skip
    for name, value in nodes.items():
        yield f"a formula with {name}", changed(node(value))
    yield "a formula with other columns", changed(lambda f: f["side"]["columns"].reverse())
    yield "a formula with doubled levels", changed(lambda f: f["side"]["factors"][1].update(levels=["a", "a", "c"]))
    yield "a formula with a part out of reach", changed(lambda f: f["side"]["parts"][0].update(factor=99))
    yield "a formula with a column out of reach", changed(lambda f: f["side"]["parts"][0].update(picked=[7]))
    yield "a formula with endless terms", changed(lambda f: f["side"]["terms"].__setitem__(1, [1.0, [0] * 5000]))
    yield "a formula with a scale of NaN", changed(lambda f: f["side"]["terms"].__setitem__(1, [float("nan"), [0]]))
    yield "a formula given as a list", changed(lambda f: f.update(given=["t"]))
    yield "a formula that is a text", signed(members, head | {"meta": {**head["meta"], "formula": "y ~ x"}})
    bomb = {
        "text": "y ~ (" + "+".join(f"a{i}" for i in range(40)) + ") ** 30",
        "offset_texts": [],
        "states": [{}],
        "first": {},
    }
    yield "a formula of 1e12 terms", signed(members, head | {"meta": {**head["meta"], "formula": bomb}})


# ---------------------------------------------------------------------- damaged by chance


def mutated(paths: dict[str, Path], count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Files with one thing wrong that checksums or sizes show."""
    rng = np.random.default_rng(seed)
    kinds = list(paths)
    whole = {kind: path.read_bytes() for kind, path in paths.items()}
    members = {kind: members_of(path) for kind, path in paths.items()}
    ways = [_flip, _flip, _cut, _zeros, _noise, _insert, _remove, _swap, _resize, _retype, _fill, _text]
    for place in range(count):
        kind, way = kinds[place % len(kinds)], ways[int(rng.integers(len(ways)))]
        yield f"{kind} {way.__name__[1:]} {place}", way(rng, whole[kind], dict(members[kind]))


def _flip(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    content = bytearray(whole)
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    return bytes(content)


def _cut(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    return whole[: rng.integers(len(whole))]


def _zeros(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    at, size = rng.integers(len(whole)), int(rng.integers(1, 64))
    return whole[:at] + b"\0" * size + whole[at + size :]


def _noise(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    at, size = rng.integers(len(whole)), int(rng.integers(1, 64))
    return whole[:at] + rng.bytes(size) + whole[at + size :]


def _insert(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    at = rng.integers(len(whole))
    return whole[:at] + rng.bytes(int(rng.integers(1, 16))) + whole[at:]


def _remove(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    at = rng.integers(len(whole))
    return whole[:at] + whole[at + int(rng.integers(1, 16)) :]


def _some(rng: np.random.Generator, members: Members) -> str:
    names = [name for name in members if name.endswith(".npy")]
    return names[int(rng.integers(len(names)))]


def _swap(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    one, other = _some(rng, members), _some(rng, members)
    members[one], members[other] = members[other], members[one]
    return packed(members)


def _resize(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    name = _some(rng, members)
    members[name] = npy(np.resize(array_in(members[name]), int(rng.integers(0, 50))))
    return packed(members)


def _retype(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    name = _some(rng, members)
    kinds = ["f4", ">f8", "i8", "u1", "?", "c16", "f2"]
    with np.errstate(all="ignore"):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            members[name] = npy(array_in(members[name]).astype(kinds[int(rng.integers(len(kinds)))]))
    return packed(members)


def _fill(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    name = _some(rng, members)
    found = array_in(members[name]).astype(float)
    members[name] = npy(np.full_like(found, [np.nan, np.inf, -np.inf, 0.0][int(rng.integers(4))]))
    return packed(members)


def _text(rng: np.random.Generator, whole: bytes, members: Members) -> bytes:
    """A byte of meta.json, with the zip file's own sums made anew but not ours."""
    text = bytearray(members["meta.json"])
    text[rng.integers(len(text))] = int(rng.integers(32, 127))
    comment = hashlib.sha256(members["meta.json"]).hexdigest().encode()
    return packed({**members, "meta.json": bytes(text)}, comment=comment)


# ---------------------------------------------------------------------- how reading them ends


class Watch:
    """What a process does beside computing: programs started, files opened for writing or removed, texts evaluated."""

    def __init__(self) -> None:
        self.seen: list[str] | None = None
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if self.seen is None:
            return
        if event in (
            "os.system",
            "subprocess.Popen",
            "os.exec",
            "os.posix_spawn",
            "socket.connect",
            "os.remove",
            "os.rename",
        ):
            self.seen.append(f"{event} {given!r}"[:200])
        elif event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+"):
            self.seen.append(f"open {given!r}"[:200])
        elif event == "exec" and getattr(given[0], "co_filename", "") in ("", "<string>", "<unknown>"):
            self.seen.append(f"exec {given[0]!r}"[:200])


def content_of(result: Any, folder: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """All that a result keeps, for comparing; the seconds of its history are those of the first fit."""
    result.save(folder / "again.rb")
    _, meta, arrays = persist.read(folder / "again.rb")
    (folder / "again.rb").unlink()
    return meta, arrays


def same(one: tuple[Any, dict[str, np.ndarray]], other: tuple[Any, dict[str, np.ndarray]]) -> bool:
    return (
        one[0] == other[0]
        and one[1].keys() == other[1].keys()
        and all(np.array_equal(one[1][name], other[1][name], equal_nan=True) for name in one[1])
    )


def verdict(content: bytes, expected: tuple[Any, dict[str, np.ndarray]], folder: Path, watch: Watch) -> str:
    """``refused``, ``equal``, or what went wrong."""
    path = folder / "file.rb"
    path.write_bytes(content)
    before = sorted(folder.iterdir())
    watch.seen = []
    try:
        result = rb.load(path)
    except rb.errors.PersistError as error:
        # A cause without a sentence of its own would be no help.
        ended = "refused" if len(str(error)) > len(str(path)) + 10 else f"refused without a reason: {error}"
    except Exception as error:
        ended = f"{type(error).__name__}: {error}"
    else:
        ended = ""
    heard, watch.seen = watch.seen, None
    if heard:
        return f"did something: {heard[0]}"
    if sorted(folder.iterdir()) != before:
        return "wrote something"
    return ended or ("equal" if same(content_of(result, folder), expected) else "another result")


def main() -> None:
    from saved_files import write_all

    reader = argparse.ArgumentParser()
    reader.add_argument("--mutated", type=int, default=2400)
    reader.add_argument("--seed", type=int, default=0)
    asked = reader.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home, folder = Path(name) / "saved", Path(name) / "read"
        home.mkdir(), folder.mkdir()
        paths = write_all(home)
        expected = {kind: content_of(rb.load(path), folder) for kind, path in paths.items()}
        watch, worst = Watch(), 0
        tracemalloc.start()
        for title, files in (
            ("crafted", crafted(paths, folder / "ran")),
            ("damaged", mutated(paths, asked.mutated, asked.seed)),
        ):
            ends: Counter[str] = Counter()
            for called, content in files:
                kind = max((one for one in paths if called.startswith(f"{one} ")), key=len, default="glm")
                tracemalloc.reset_peak()
                held = tracemalloc.get_traced_memory()[0]
                ended = verdict(content, expected[kind], folder, watch)
                worst = max(worst, tracemalloc.get_traced_memory()[1] - held)
                ends[ended if ended in ("refused", "equal") else "WRONG"] += 1
                if ended not in ("refused", "equal"):
                    print(f"{called}: {ended}"[:300])
            print(f"{title}: {sum(ends.values())} files, {dict(ends)}")
        print(f"at most {worst / 1e6:.0f} MB were taken for one file")


if __name__ == "__main__":
    main()
