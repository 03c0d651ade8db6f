"""Every command with odd files and odd options, in this process: it ends with an exit code, never with a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from fuzz_targets import BAD_FORMULAS, FORMULAS, Answers, Call, frame_of

from robustly.cli import main

ENCODINGS = ("utf-8", "utf-16", "latin-1", "utf-8-sig", "ascii", "cp1252", "nope", "", "zlib", "idna")
DELIMITERS = (",", ";", "\t", "", "ab", "|", "\n", '"', "a", "\x00")
OPTIONS: dict[str, tuple[str, ...]] = {
    "--family": ("poisson", "normal", "bernoulli", "gamma", "binomial", "poison", ""),
    "--local": ("auto", "none", "predictor", "label", "x"),
    "--prior": ("normal", "x"),
    "--weights": ("t", "z", "nope", "g", ""),
    "--offset": ("z", "d"),
    "--exposure": ("t", "y"),
    "--trials": ("t", "nope"),
    "--alpha": ("0", "1", "-1", "nan", "inf", "1e300", "x"),
    "--na": ("raise", "drop", "omit"),
    "--fdr": ("0.05", "0", "1", "nan", "-1", "x"),
    "--dof": ("auto", "fit", "4", "0", "-1", "nan", "inf", "1e-300", "x"),
    "--delimiter": DELIMITERS,
    "--encoding": ENCODINGS,
    "--decimal": (".", ",", "", "x", "ab"),
}
BEYOND = {
    "fit": {"--max-iter": ("1", "2", "0", "-1", "x"), "--json": ()},
    "outliers": {"--json": ()},
    "compare": {"--json": ()},
}


def in_folder(args: Callable[[Path], list[str]]) -> Answers:
    """Run a command in an empty folder; exit codes 0, 1 and 2 are what it may end with."""
    here, given, home = os.getcwd(), sys.argv, Path(tempfile.mkdtemp())
    heard = io.StringIO(), io.StringIO()
    try:
        os.chdir(home)
        sys.argv = ["robustly", *args(home)]
        with contextlib.redirect_stdout(heard[0]), contextlib.redirect_stderr(heard[1]):
            main()
        code: object = None
    except SystemExit as ended:
        code = ended.code
    finally:
        os.chdir(here)
        sys.argv = given
        for path in sorted(home.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        home.rmdir()
    if code not in (None, 0, 1, 2) or "Traceback" in heard[1].getvalue():
        raise RuntimeError(f"exit code {code}: {heard[1].getvalue()[-300:]}")
    if code == 2 and not (heard[0].getvalue() + heard[1].getvalue()).strip():
        raise RuntimeError("exit code 2 without a word")
    return {}


def odd_text(random: Random, text: str, encoding: str) -> bytes:
    """A table as bytes: cut, changed, mixed up or as it should be."""
    how = random.random()
    try:
        whole = text.encode(encoding)
    except (LookupError, UnicodeError):
        whole = text.encode()
    if how < 0.6:
        return whole
    rng = random
    if how < 0.66:
        return whole[: rng.randrange(len(whole) + 1)]
    if how < 0.72:
        at = rng.randrange(len(whole) + 1)
        return whole[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))) + whole[at:]
    if how < 0.78:
        lines = text.splitlines()
        lines.insert(
            rng.randrange(len(lines)),
            rng.choice((",,,,", '"', "a,b", "", "1,2,3,4,5,6,7,8,9,10", "\x1b[31m", "nan" * 50)),
        )
        return "\n".join(lines).encode()
    return rng.choice(
        (
            b"",
            b"\n",
            b"\x00" * 40,
            b"PK\x03\x04",
            b"\x1f\x8b\x08",
            b"y\n",
            b"y,x\n1,2\n",
            b"PAR1",
            b"\xff\xfe",
            b"\xef\xbb\xbf",
            b"{}",
            b'{"y": 1}\n',
        )
    )


def regression_command(command: str) -> Callable[[Random], Call]:
    def target(random: Random) -> Call:
        told, frame = frame_of(random)
        text = random.choice(FORMULAS[:8] if command == "compare" else FORMULAS)
        if random.random() < 0.15:
            text = random.choice(BAD_FORMULAS)
        options: list[str] = []
        for name, usual in {**OPTIONS, **BEYOND[command]}.items():
            if command == "compare" and name in ("--local", "--prior", "--fdr", "--dof"):
                continue
            if random.random() < 0.08:
                options += [name, random.choice(usual)] if usual else [name]
        file = random.choice(
            ("data.csv",) * 8 + ("data.tsv", "data.xlsx", "data.parquet", "data.jsonl", "data", "nope.csv", ".")
        )
        encoding = "utf-8" if random.random() < 0.9 else random.choice(("utf-16", "latin-1"))
        content = odd_text(random, frame.to_csv(index=False), encoding)

        def args(home: Path) -> list[str]:
            if file not in ("nope.csv", "."):
                (home / file).write_bytes(content)
            return [command, file, text, *options]

        return f"{file} {text!r} {options} {told}", lambda: in_folder(args)

    return target


def predict_command(random: Random) -> Call:
    told, frame = frame_of(random)
    content = odd_text(random, frame.to_csv(index=False), "utf-8")
    options: list[str] = []
    for name, usual in {
        "--interval": ("0.9", "0", "1", "nan", "x"),
        "--interval-of": ("mean", "response", "x"),
        "--out": ("out.csv", "nope/out.csv", ".", "data.csv"),
        "--delimiter": DELIMITERS,
        "--encoding": ENCODINGS,
    }.items():
        if random.random() < 0.15:
            options += [name, random.choice(usual)]
    damage = random.random() < 0.3
    at = random.random()

    def args(home: Path) -> list[str]:
        whole = saved_regression()
        place = int(at * len(whole))
        (home / "fit.rb").write_bytes(whole[:place] + b"\x07" + whole[place + 1 :] if damage else whole)
        (home / "data.csv").write_bytes(content)
        return ["predict", "fit.rb", "data.csv", *options]

    return f"predict {options} damaged={damage} {told}", lambda: in_folder(args)


def saved_regression(kept: list[bytes] = []) -> bytes:  # noqa: B006
    """A fit of ``y ~ x + g`` as a file, made once."""
    if not kept:
        import robustly as rb

        with tempfile.TemporaryDirectory() as folder:
            frame = frame_of(Random(3))[1].assign(y=[1.0, 2.0, 0.0, 4.0] * 6, x=range(24))
            rb.glm("y ~ x + g", frame, local=None).save(Path(folder) / "fit.rb")
            kept.append((Path(folder) / "fit.rb").read_bytes())
    return kept[0]


def series_command(random: Random) -> Call:
    told, frame = frame_of(random)
    content = odd_text(random, frame.to_csv(index=False), "utf-8")
    options = ["--value", random.choice(("y", "g", "nope", "", "d") if random.random() < 0.8 else ("x",))]
    for name, usual in {
        "--time": ("d", "x", "g", "nope"),
        "--seasonal": ("2", "1", "0", "-1", "500", "x"),
        "--level": ("llevel", "x"),
        "--localize": ("irregular", "", "nope", "irregular,,", "level"),
        "--steps": ("3", "-1", "0", "x"),
        "--fdr": ("0.05", "0", "2", "nan"),
        "--seed": ("1", "-1", "x"),
    }.items():
        if random.random() < 0.2:
            options += [name, random.choice(usual)]

    def args(home: Path) -> list[str]:
        (home / "data.csv").write_bytes(content)
        return ["series", "data.csv", *options]

    return f"series {options} {told}", lambda: in_folder(args)


def topics_command(random: Random) -> Call:
    texts = random.choice(
        ("cats and dogs\n" * 5, "", "\n\n", "a\n", "[/red] [bold] \x1b[31m $x^$\n" * 6, "日本 語 日本\n" * 5, "the of and\n" * 4,
         "4 0:1 1:2 2:1 3:4\n2 0:3 3:1\n" * 4, "1 0:999999999999999999\n" * 3, "2 0:-1 1:2\n", "1 5\n", "x" * 5000 + "\n", "one two one three two\nfour one two two\n" * 5)
    )  # fmt: skip
    file = random.choice(("a.txt", "a.ldac", "a.csv", "a.mtx", "docword.txt", "nope.txt"))
    options: list[str] = ["--lines"] if random.random() < 0.7 else []
    for name, usual in {
        "-k": ("2", "auto", "0", "-1", "x", "100000"),
        "--min-df": ("1", "2", "0", "999"),
        "--max-df": ("1.0", "0.5", "0", "2"),
        "--kind": ("robust", "plain", "x"),
        "--max-iter": ("1", "3", "0"),
        "--tol": ("0", "1e-3", "-1", "nan"),
        "--draws": ("0", "2", "-1"),
        "--encoding": ENCODINGS,
        "--text": ("x", "nope"),
    }.items():
        if random.random() < 0.2:
            options += [name, random.choice(usual)]
    for name, usual in {"-k": "2", "--draws": "1", "--max-iter": "2", "--min-df": "1", "--max-df": "1.0"}.items():
        if name not in options:
            options += [name, usual]
    content = odd_text(random, texts or " ", "utf-8")

    def args(home: Path) -> list[str]:
        if file != "nope.txt":
            (home / file).write_bytes(content)
        return ["topics", "fit", file, "--out", "out", "--no-plots", "--no-page", *options]

    return f"topics {file} {options} {short_bytes(content)}", lambda: in_folder(args)


def short_bytes(content: bytes) -> str:
    return repr(content[:40])


def other_command(random: Random) -> Call:
    """Commands that work for minutes when they are asked well are asked badly."""
    words = random.choice(
        (
            ["study", "poison"], ["study", "linear", "--reps", "0"], ["study", "linear", "--reps", "x"], ["study", "linear", "--jobs", "-1"],
            ["study", "linear", "--seed", "-5"], ["study", "topics", "--corpus", "nope"], ["study", "topics", "--topics", "1e9", "--corpus", "nope"],
            ["study", "linear", "--out", "file/x"], ["demo", "--out", "file/x"], ["demo", "--nope"], [], ["--help"], ["nope"], ["--version"],
            ["topics"], ["topics", "show"], ["topics", "show", "nope"], ["topics", "show", "file"], ["topics", "score", "nope", "nope"],
            ["topics", "page", "nope", "nope"], ["fit"], ["fit", "file"], ["predict", "file", "file"], ["predict", "nope", "nope"], ["compare", "-", "y ~ x"],
            ["series", "file"], ["outliers", "file", "y ~ x", "--out", "nope/x"], ["fit", "file", "y ~ x", "--save", "file"], ["fit", "file", "y ~ x", "--report", "."],
            ["fit", "file", "y ~ x", "--workers", "0"], ["fit", "file", "y ~ x", "--scheduler", "nope"], ["fit", "*.parquet", "y ~ x"],
        )
    )  # fmt: skip
    content = random.choice((b"y,x\n1,2\n2,3\n3,5\n", b"", b"\x00", b"PK\x03\x04"))

    def args(home: Path) -> list[str]:
        (home / "file").write_bytes(content)
        return words

    return f"{words} {content!r}", lambda: in_folder(args)


COMMANDS: dict[str, Callable[[Random], Call]] = {
    "robustly fit": regression_command("fit"),
    "robustly outliers": regression_command("outliers"),
    "robustly compare": regression_command("compare"),
    "robustly predict": predict_command,
    "robustly series": series_command,
    "robustly topics": topics_command,
    "robustly other": other_command,
}
