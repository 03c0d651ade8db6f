"""``robustly topics``: fit, show, score topic models and write their page from the shell."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from robustly.errors import DataError, PersistError, RobustlyError

app = typer.Typer(help="Topic models whose topics bend from document to document.", no_args_is_help=True)

MODEL = "model.robustly"


class Kind(StrEnum):
    robust = "robust"
    plain = "plain"


class Inference(StrEnum):
    collapsed = "collapsed"
    meanfield = "meanfield"


def _told(command: Callable[..., None]) -> Callable[..., None]:
    """An error of ours is one line on stderr and exit code 2, not a traceback."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except RobustlyError as error:
            _say_plainly(f"robustly: {error}", err=True)
            raise typer.Exit(2) from None

    return run


def _load(folder: Path) -> Any:
    from robustly.result.persist import load
    from robustly.topics.fitted import FittedTopics

    path = folder / MODEL if folder.is_dir() else folder
    model = load(path)
    if not isinstance(model, FittedTopics):
        raise PersistError(f"{path} holds a {type(model).__name__}, not a topic model.")
    return model


CorpusPath = Annotated[Path, typer.Argument(help="Word counts: lda-c, UCI docword or Matrix Market, gzipped or not.")]
Sources = Annotated[
    list[Path],
    typer.Argument(
        help="Text files or folders of them, a CSV or TSV file with --text, or word counts (lda-c, UCI, .mtx)."
    ),
]
Folder = Annotated[Path, typer.Argument(help="Folder written by fit.")]
Vocabulary = Annotated[Path | None, typer.Option("--vocab", help="Text file with one word per line.")]
Column = Annotated[str | None, typer.Option("--text", help="Column of a CSV or TSV file that has the texts.")]
Label = Annotated[str | None, typer.Option("--label", help="Column that names the documents.")]
Encoding = Annotated[str | None, typer.Option(help="Of the texts; UTF-8 by default.")]
Lines = Annotated[bool, typer.Option("--lines", help="Each line of a text file is a document.")]


def _texts(paths: list[Path], column: str | None, label: str | None, encoding: str | None, lines: bool) -> Any:
    """The documents as texts, or None where a single file holds word counts."""
    from robustly.topics import texts

    if len(paths) == 1 and paths[0].name.lower().endswith(texts.TABLES):
        return texts.read_column(paths[0], column, encoding, label)
    if column is not None or label is not None:
        raise DataError(f"--text and --label are for one CSV or TSV file; got {', '.join(map(str, paths[:3]))}.")
    if len(paths) == 1 and paths[0].is_file() and not lines and texts.holds_counts(paths[0]):
        return None
    if len(paths) == 1 and not paths[0].exists():
        raise DataError(f"there is no file or folder {paths[0]}. Check the path.")
    found = texts.read_files(paths, encoding, lines)
    if len(found.texts) < 2:
        raise DataError(
            f"{paths[0]} is one document, and topics need several. Give more files, a folder, or --lines for a document "
            "on each line."
        )
    return found


def _say_empty(found: Any) -> None:
    if found.empty:
        shown = ", ".join(found.empty[:5]) + (", …" if len(found.empty) > 5 else "")
        _say_plainly(f"{len(found.empty)} of {len(found.texts)} documents have no words: {shown}", err=True)


def _say_plainly(line: str, err: bool = False) -> None:
    """One line in which nothing can command a terminal."""
    from robustly.topics.summary import plain_text

    typer.echo(plain_text(line), err=err)


@app.command()
@_told
def fit(
    sources: Sources,
    out: Annotated[Path, typer.Option("--out", help="Folder for the fitted model; made if it is not there.")],
    topics: Annotated[str, typer.Option("-k", "--topics", help='Number of topics, or "auto".')] = "20",
    vocabulary: Vocabulary = None,
    text: Column = None,
    label: Label = None,
    encoding: Encoding = None,
    lines: Lines = False,
    stop_words: Annotated[bool, typer.Option(help="Leave out common English words.")] = True,
    min_df: Annotated[int, typer.Option(min=1, help="Leave out words in fewer texts than this.")] = 2,
    max_df: Annotated[float, typer.Option(min=0.0, max=1.0, help="Leave out words in more than this share.")] = 0.5,
    bigrams: Annotated[bool, typer.Option("--bigrams", help="Count pairs of neighbouring words too.")] = False,
    kind: Annotated[Kind, typer.Option(help="Topics that bend, or the same everywhere.")] = Kind.robust,
    inference: Annotated[Inference, typer.Option(help="How documents are read.")] = Inference.collapsed,
    max_iter: Annotated[int, typer.Option(min=1, help="Passes with expected counts at most.")] = 100,
    tol: Annotated[float, typer.Option(min=0.0, help="Change of evidence per word that ends these.")] = 5e-4,
    draws: Annotated[int | None, typer.Option(min=0, help="Passes with draws after them.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the start and the draws.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores by default.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="File to keep passes in, to go on from if stopped.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Write a line of progress now and then.")] = False,
    plots: Annotated[bool, typer.Option(help="Write topics.png and burstiness.png too.")] = True,
    page: Annotated[bool, typer.Option(help="Write page.html too, if there are words to show.")] = True,
) -> None:
    """Fit topics to texts, or to word counts, and keep them in a folder with a page to read them on."""
    import warnings

    from robustly.errors import ConvergenceWarning, OverlapWarning
    from robustly.topics import LDA, Corpus, RobustLDA

    found = _texts(sources, text, label, encoding, lines)
    if found is None:
        documents = Corpus.read(sources[0], vocabulary)
    else:
        _say_empty(found)
        stops = "english" if stop_words else None
        cuts = {"stop_words": stops, "min_df": min_df, "max_df": max_df, "bigrams": bigrams}
        documents = Corpus.from_texts(found.texts, found.names, **cuts)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PersistError(f"cannot make the folder {out}: {error.strerror}. Choose another --out.") from error
    size = topics if topics == "auto" else _topics_number(topics)
    model = (RobustLDA if kind is Kind.robust else LDA)(
        size, inference=inference.value, max_iter=max_iter, tol=tol, draws=draws, random_state=seed, n_jobs=threads,
        checkpoint=None if checkpoint is None else str(checkpoint), verbose=1 if verbose else None,
    )  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        for warning_kind in (ConvergenceWarning, OverlapWarning):
            warnings.simplefilter("always", warning_kind)
        model.fit(documents)
    path = model.save(out / MODEL)
    for warning in caught:
        _say_plainly(f"{warning.category.__name__}: {warning.message}", err=True)
    many = len(model.alpha_)
    _say_plainly(f"{documents}: {many} topics in {model.n_iter_} passes, evidence {model.evidence_:.4f} per word")
    _say_plainly(f"coherence {model.coherence_.mean():.3f}, diversity {model.diversity_:.2f}")
    _say_plainly(f"wrote {path}")
    if documents.vocabulary is not None:
        written = _draw(model, out) if plots else []
        for name in [*written, _write_page(model, documents, out / "page.html")] if page else written:
            _say_plainly(f"wrote {name}")


def _topics_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise DataError(f'--topics takes a whole number or "auto"; got "{text}".') from None


def _write_page(model: Any, documents: Any, path: Path, title: str = "Topics") -> Path:
    from robustly.topics.page import write_page

    return write_page(model, documents, path, title=title)


def _draw(model: Any, out: Path) -> list[Path]:
    import warnings

    from robustly.topics.plots import plot_burstiness, plot_topics

    written = [out / "topics.png"]
    with warnings.catch_warnings():
        # Letters that the plots' font does not have are drawn as boxes; the page shows them.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        plot_topics(model).savefig(written[0], dpi=120)
        if model.bursty:
            written.append(out / "burstiness.png")
            plot_burstiness(model).savefig(written[1], dpi=120)
    return written


@app.command("page")
@_told
def page_command(
    folder: Folder,
    sources: Sources,
    out: Annotated[Path | None, typer.Option("--out", help="The page; page.html in the folder by default.")] = None,
    title: Annotated[str, typer.Option(help="Its heading.")] = "Topics",
    vocabulary: Vocabulary = None,
    text: Column = None,
    label: Label = None,
    encoding: Encoding = None,
    lines: Lines = False,
    stop_words: Annotated[bool, typer.Option(help="As in fit.")] = True,
) -> None:
    """Write one HTML page of a fitted model: its topics, and examples among the documents given."""
    from robustly.topics import Corpus
    from robustly.topics.corpus_files import read_vocabulary
    from robustly.topics.page import write_page

    model = _load(folder)
    found = _texts(sources, text, label, encoding, lines)
    words = read_vocabulary(vocabulary) if vocabulary is not None else None
    if found is None:
        documents = Corpus.read(sources[0], n_words=model.n_features_in_)
    elif model.vocabulary_ is None:
        raise DataError(f"the model in {folder} was fitted to counts without words, so texts cannot be counted for it.")
    else:
        _say_empty(found)
        stops = "english" if stop_words else None
        documents = Corpus.from_texts(found.texts, found.names, vocabulary=model.vocabulary_, stop_words=stops)
    target = out or (folder if folder.is_dir() else folder.parent) / "page.html"
    _say_plainly(f"wrote {write_page(model, documents, target, title=title, vocabulary=words)}")


@app.command()
@_told
def show(
    folder: Folder,
    words: Annotated[int, typer.Option("-n", "--words", min=1, help="Words per topic.")] = 10,
    vocabulary: Vocabulary = None,
) -> None:
    """Print the topics, the most used first."""
    from rich.table import Table
    from rich.text import Text

    from robustly.topics.corpus_files import read_vocabulary
    from robustly.topics.summary import plain_text

    model = _load(folder)
    names = read_vocabulary(vocabulary) if vocabulary is not None else None
    if names is None and model.vocabulary_ is None and not hasattr(model, "feature_names_in_"):
        names = tuple(f"#{i}" for i in range(model.n_features_in_))
    best = model.top_words(names, words)
    shares = model.alpha_ / model.alpha_.sum()
    table = Table(box=None, pad_edge=False)
    table.add_column("topic", justify="right")
    table.add_column("share", justify="right")
    if model.bursty:
        table.add_column("Σ η", justify="right")
    table.add_column("words")
    for k in sorted(range(len(best)), key=lambda k: -shares[k]):
        bend = [f"{model.burstiness_[k]:.4g}"] if model.bursty else []
        # As plain text: a word is never markup, and never a command to the terminal.
        table.add_row(str(k), f"{shares[k]:.1%}", *bend, Text(" ".join(plain_text(word) for word in best[k])))
    Console().print(table)
    if hasattr(model, "coherence_"):
        _say_plainly(f"coherence {model.coherence_.mean():.3f}, diversity {model.diversity_:.2f}")


@app.command()
@_told
def score(
    folder: Folder,
    corpus: CorpusPath,
    seed: Annotated[int, typer.Option(help="Seed of the cut.")] = 0,
) -> None:
    """Predict one half of each document of CORPUS from the other: mean log-likelihood per word, higher is better."""
    from robustly.topics import Corpus, complete_documents

    model = _load(folder)
    documents = Corpus.read(corpus, n_words=model.n_features_in_)
    found = complete_documents(model, documents, seed)
    skipped = f" ({found.skipped} documents too short to cut were skipped)" if found.skipped else ""
    _say_plainly(f"{found.per_word:.6f} per word over {found.words:.0f} held-out words{skipped}")
