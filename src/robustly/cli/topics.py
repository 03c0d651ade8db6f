"""``robustly topics``: fit, show and score topic models from the shell."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from robustly.errors import PersistError, RobustlyError

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
            typer.echo(f"{type(error).__name__}: {error}", err=True)
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
Folder = Annotated[Path, typer.Argument(help="Folder written by fit.")]
Vocabulary = Annotated[Path | None, typer.Option("--vocab", help="Text file with one word per line.")]


@app.command()
@_told
def fit(
    corpus: CorpusPath,
    out: Annotated[Path, typer.Option("--out", help="Folder for the fitted model; made if it is not there.")],
    topics: Annotated[int, typer.Option("-k", "--topics", min=1, help="Number of topics.")] = 20,
    vocabulary: Vocabulary = None,
    kind: Annotated[Kind, typer.Option(help="Topics that bend, or the same everywhere.")] = Kind.robust,
    inference: Annotated[Inference, typer.Option(help="How documents are read.")] = Inference.collapsed,
    max_iter: Annotated[int, typer.Option(min=1, help="Passes at most.")] = 100,
    tol: Annotated[float, typer.Option(min=0.0, help="Change of evidence per word that ends the fit.")] = 5e-4,
    seed: Annotated[int, typer.Option(help="Seed of the start.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; all cores by default.")] = None,
    plots: Annotated[bool, typer.Option(help="Write topics.png and burstiness.png too.")] = True,
) -> None:
    """Fit topics to CORPUS and keep them in a folder."""
    import warnings

    from robustly.errors import ConvergenceWarning
    from robustly.topics import LDA, Corpus, RobustLDA

    documents = Corpus.read(corpus, vocabulary)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PersistError(f"cannot make the folder {out}: {error.strerror}. Choose another --out.") from error
    model = (RobustLDA if kind is Kind.robust else LDA)(
        topics, inference=inference.value, max_iter=max_iter, tol=tol, random_state=seed, n_jobs=threads
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(documents)
    path = model.save(out / MODEL)
    for warning in caught:
        typer.echo(f"{warning.category.__name__}: {warning.message}", err=True)
    typer.echo(f"{documents}: {topics} topics in {model.n_iter_} passes, evidence {model.evidence_:.4f} per word")
    typer.echo(f"wrote {path}")
    if plots and documents.vocabulary is not None:
        for name in _draw(model, out):
            typer.echo(f"wrote {name}")


def _draw(model: Any, out: Path) -> list[Path]:
    from robustly.topics.plots import plot_burstiness, plot_topics

    written = [out / "topics.png"]
    plot_topics(model).savefig(written[0], dpi=120)
    if model._bursty:
        written.append(out / "burstiness.png")
        plot_burstiness(model).savefig(written[1], dpi=120)
    return written


@app.command()
@_told
def show(
    folder: Folder,
    words: Annotated[int, typer.Option("-n", "--words", min=1, help="Words per topic.")] = 10,
    vocabulary: Vocabulary = None,
) -> None:
    """Print the topics, the most used first."""
    from robustly.topics.corpus import read_vocabulary

    model = _load(folder)
    names = read_vocabulary(vocabulary) if vocabulary is not None else None
    if names is None and model.vocabulary_ is None and not hasattr(model, "feature_names_in_"):
        names = tuple(f"#{i}" for i in range(model.n_features_in_))
    best = model.top_words(names, words)
    shares = model.alpha_ / model.alpha_.sum()
    table = Table(box=None, pad_edge=False)
    table.add_column("topic", justify="right")
    table.add_column("share", justify="right")
    if model._bursty:
        table.add_column("Σ η", justify="right")
    table.add_column("words")
    for k in sorted(range(len(best)), key=lambda k: -shares[k]):
        bend = [f"{model.burstiness_[k]:.4g}"] if model._bursty else []
        table.add_row(str(k), f"{shares[k]:.1%}", *bend, " ".join(best[k]))
    Console().print(table)


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
    typer.echo(f"{found.per_word:.6f} per word over {found.words:.0f} held-out words{skipped}")
