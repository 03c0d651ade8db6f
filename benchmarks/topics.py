"""Does robust LDA keep its promises? Against plain LDA here, scikit-learn's and tomotopy's, on five corpora.

    python benchmarks/topics.py                 # every stage
    python benchmarks/topics.py --stage nll --corpus ap cora --topics 20 50 --models robust plain

Words that no training document has are left out for all models alike: a rival that never saw them can give them no
probability, and one made up for it would decide the comparison. Each rival's best is set against robust LDA, plain LDA
with a fitted cache (``document_completion(cache=True)``) among them.

Stages: ``nll`` (document completion, coherence and diversity on splits and starts that no setting was chosen on), ``before``
(predictions beside those of 0.1), ``cost`` (CPU seconds of whole fits, one thread), ``hca`` (every fourth word of NIPS papers
from the rest), ``many`` (100 000 simulated documents), ``speed`` (same passes, interleaved), ``reach`` (time to a rival's
quality), ``memory`` (peak, each fit in a process of its own), ``linear`` (cost against tokens and topics), ``table``. Results are
kept in benchmarks/results/topics.json cell by cell, so a run that was cut short goes on where it stopped; delete the
file to measure afresh. ``table`` writes benchmarks/results/topics.md from it. The corpora are not part of the project:
set ROBUSTLY_CORPORA to their folder, or keep them as shared/corpora beside the repository.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy import sparse

from robustly.topics import LDA, Corpus, RobustLDA, coherence, diversity, document_completion, split_documents
from robustly.topics.evaluate import Split
from robustly.topics.reading import RELEVANCE

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CORPORA = Path(os.environ.get("ROBUSTLY_CORPORA", ROOT.parent / "shared" / "corpora"))
NAMES = ("ap", "ohsumed", "20news", "cora", "nips")
# Of NIPS, few papers: the hard case, in which topics once fell together.
NIPS_PAPERS = 450
# Splits and starts that no setting was chosen on.
FRESH = (6, 7, 8)
TOPICS = (20, 50, 100)
MARGIN = {"ap": 0.15, "ohsumed": 0.15, "20news": 0.04, "cora": 0.01, "nips": 0.01}
# The best of .01, .05 and .2 for scikit-learn in nearly all cells of 0.1's table.
SKLEARN_PRIOR = 0.2
MODELS = ("robust", "plain", "tomotopy", "sklearn")
SKLEARN_PASSES = 30
# Words of NIPS papers that are topical and bursty.
TOPICAL = ("kernel", "policy", "spike")
# How words are ranked: by probability, and as top_words does.
RANKINGS = {"probability": None, "relevance": RELEVANCE}
TOMOTOPY_SWEEPS = 1000
THREADS = 2


def load(name, seed=0, unseen=False):
    """Four fifths of the documents to fit, and the others cut in two, and the words; with `unseen`, those that only the others have too."""
    corpus = Corpus.read(CORPORA / name / "docword.ldac.gz", CORPORA / name / "vocab.txt.gz")
    counts = corpus.counts
    order = np.random.default_rng(20260801 + seed if name == "nips" else seed).permutation(counts.shape[0])
    if name == "nips":
        order = order[:NIPS_PAPERS][::-1]
    held = len(order) // 5 + (name == "nips")
    train, test = counts[order[held:]], counts[order[:held]]
    seen = np.arange(train.shape[1]) if unseen else np.flatnonzero(train.getnnz(axis=0))
    return train[:, seen], split_documents(test[:, seen], seed), np.array(corpus.vocabulary)[seen]


def nll(model, halves, cache=False):
    return -document_completion(model, observed=halves.observed, held_out=halves.held_out, cache=cache)


def fit_ours(kind, train, size, seed=0, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(size, random_state=seed, n_jobs=THREADS, **options).fit(train)


def fit_sklearn(train, size, prior, passes=SKLEARN_PASSES, jobs=THREADS):
    from sklearn.decomposition import LatentDirichletAllocation

    model = LatentDirichletAllocation(
        size,
        doc_topic_prior=0.1,
        topic_word_prior=prior,
        max_iter=passes,
        learning_method="batch",
        n_jobs=jobs,
        random_state=0,
    )
    return model.fit(train)


def tokens(row):
    return np.repeat(row.indices, row.data.astype(int)).astype(str).tolist()


def tomotopy_model(train, size):
    import tomotopy

    model = tomotopy.LDAModel(k=size, alpha=0.1, eta=0.01, seed=1)
    model.burn_in, model.optim_interval = 50, 10
    for d in range(train.shape[0]):
        if train.indptr[d + 1] > train.indptr[d]:
            model.add_doc(tokens(train[d]))
    return model


def tomotopy_topics(model, words):
    known = [int(word) for word in model.used_vocabs]
    topics = np.zeros((model.k, words))
    for k in range(model.k):
        topics[k, known] = model.get_topic_word_dist(k)
    return topics


def nll_tomotopy(model, halves):
    known = [int(word) for word in model.used_vocabs]
    words = halves.observed.shape[1]
    topics = tomotopy_topics(model, words)
    present = np.zeros(words, bool)
    present[known] = True
    shares = np.tile(model.alpha / np.sum(model.alpha), (halves.observed.shape[0], 1))
    usable = [d for d in range(len(shares)) if present[halves.observed[d].indices].any()]
    found, _ = model.infer([model.make_doc(tokens(halves.observed[d])) for d in usable], iterations=100)
    shares[usable] = found
    held, total = halves.held_out, 0.0
    for d, (a, b) in enumerate(zip(held.indptr[:-1], held.indptr[1:])):
        total += held.data[a:b] @ np.log(shares[d] @ topics[:, held.indices[a:b]])
    return -total / held.sum()


def clock(act):
    begin = time.perf_counter()
    result = act()
    return time.perf_counter() - begin, result


def attempt(act):
    """A rival that fails is reported as failed."""
    try:
        return act()
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def told(model, train):
    """Coherence (NPMI of ten words in the training documents) and diversity (of 25), words ranked two ways for all alike."""
    return {
        label: {
            "npmi": float(coherence(model, train, relevance=by).mean()),
            "diversity": diversity(model, relevance=by),
        }
        for label, by in RANKINGS.items()
    }


def cell_nll(name, size, seed, label):
    """One model on one split: its predictions, and how its topics read."""
    train, halves, words = load(name, seed)
    if label == "tomotopy":
        model = tomotopy_model(train, size)
        model.train(TOMOTOPY_SWEEPS, workers=THREADS)
        sizes = np.array(model.get_count_by_topics(), dtype=float)[:, None]
        topics = argparse.Namespace(components_=tomotopy_topics(model, train.shape[1]) * np.maximum(sizes, 1.0))
        return {"nll": float(nll_tomotopy(model, halves)), **told(topics, train)}
    if label == "sklearn":
        model = fit_sklearn(train, size, SKLEARN_PRIOR)
    else:
        model = fit_ours(RobustLDA if label == "robust" else LDA, train, size, seed)
    found = {"nll": float(nll(model, halves)), **told(model, train)}
    if (name, label) == ("nips", "robust"):
        found["shown"] = sorted(set(TOPICAL) & set(np.ravel(model.top_words(words, 25))))
    return found | ({"cache": nll(model, halves, cache=True)} if label == "plain" else {})


def cell_before(name, size, was):
    """Predictions on the split of 0.1's table, words that no training document has among them, as they were then."""
    train, halves, _ = load(name, unseen=True)
    return {"robust": nll(fit_ours(RobustLDA, train, size), halves), "0.1": was}


def cpu(act):
    begin = time.process_time()
    act()
    return time.process_time() - begin


def cell_cost(name, size, rounds=3):
    """CPU seconds of a default fit and of scikit-learn's 20 passes in turns, and of tomotopy's sweeps once; one thread each."""
    train, *_ = load(name)
    RobustLDA(size, random_state=0, n_jobs=1, draws=4).fit(train[:50])
    fit_sklearn(train[:20], size, 0.05, 1, jobs=1)
    ours, theirs = [], []
    for _ in range(rounds if size == 20 else 1):
        ours.append(cpu(lambda: RobustLDA(size, random_state=0, n_jobs=1).fit(train)))
        if size == 20:
            theirs.append(cpu(lambda: fit_sklearn(train, size, 0.05, 20, jobs=1)))
    rival = tomotopy_model(train, size)
    rival.train(0)
    swept = cpu(lambda: rival.train(TOMOTOPY_SWEEPS, workers=1))
    return {"robust": ours, "tomotopy": swept, "sklearn": theirs}


def cell_hca(name, size):
    """The protocol published for hca: every fourth word of a test paper from the three before; all 1500 NIPS papers."""
    counts = Corpus.read(CORPORA / name / "docword.ldac.gz").counts
    train, test = counts[:1350], counts[1350:].tocsr()
    taken = test.copy()
    for d in range(test.shape[0]):
        begin, end = test.indptr[d], test.indptr[d + 1]
        pairs = np.repeat(np.arange(begin, end), test.data[begin:end].astype(int))
        np.random.default_rng(d).shuffle(pairs)
        taken.data[begin:end] = np.bincount(pairs[3::4] - begin, minlength=end - begin)
    rest = test.copy()
    rest.data = test.data - taken.data
    for half in (taken, rest):
        half.eliminate_zeros()
    model = fit_ours(RobustLDA, train, size)
    found = nll(model, Split(rest, taken, 0))
    return {"nll": found, "perplexity": float(np.exp(found))}


def measure_many(documents=100_000, length=100, size=100, words=10_000):
    """CPU seconds and peak megabytes of a default fit to many simulated documents, in a process of its own."""
    random = np.random.default_rng(0)
    topics = random.dirichlet(np.full(words, 0.02), size).cumsum(axis=1)
    shares = random.dirichlet(np.full(size, 0.05), documents).cumsum(axis=1)
    indptr, indices, data = np.zeros(documents + 1, np.int64), [], []
    for d in range(documents):
        of = np.minimum(np.searchsorted(shares[d], random.random(length)), size - 1)
        drawn = [
            np.minimum(np.searchsorted(topics[k], random.random(n)), words - 1)
            for k, n in enumerate(np.bincount(of))
            if n
        ]
        # A word of a document is its own third of the time again, so that there are bursts.
        found = np.concatenate(drawn)
        again = random.random(length) < 1 / 3
        found[again] = random.choice(found, int(again.sum()))
        ids, counts = np.unique(found, return_counts=True)
        indices.append(ids.astype(np.int32))
        data.append(counts.astype(float))
        indptr[d + 1] = indptr[d] + len(ids)
    counts = sparse.csr_matrix((np.concatenate(data), np.concatenate(indices), indptr), shape=(documents, words))
    del indices, data, shares, topics
    RobustLDA(size, random_state=0, n_jobs=1, draws=4).fit(counts[:200])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    begin = time.process_time()
    RobustLDA(size, random_state=0, n_jobs=THREADS).fit(counts)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps({"cpu": time.process_time() - begin, "peak": peak, "before": before, "pairs": int(counts.nnz)}))


def cell_many():
    child = subprocess.run([sys.executable, __file__, "--many"], capture_output=True, text=True, check=True)
    return json.loads(child.stdout.splitlines()[-1])


def cell_speed(name, size, passes=5, rounds=3):
    """The same number of passes, ours and scikit-learn's in turns; the ratio of medians and of each round."""
    train, *_ = load(name)
    fit_ours(RobustLDA, train[:20], size, max_iter=1, tol=0)
    fit_sklearn(train[:20], size, 0.05, 1)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(clock(lambda: fit_ours(RobustLDA, train, size, max_iter=passes, tol=0, draws=0))[0] / passes)
        theirs.append(clock(lambda: fit_sklearn(train, size, 0.05, passes))[0] / passes)
    return {
        "robust": float(np.median(ours)),
        "sklearn": float(np.median(theirs)),
        "ratio": float(np.median(ours) / np.median(theirs)),
        "ratios": [a / b for a, b in zip(ours, theirs)],
        "passes": passes,
    }


def cell_reach(name, size):
    """Seconds to reach a rival's final NLL against the rival's seconds, fitted one after the other."""
    train, halves, _ = load(name)
    fit_ours(RobustLDA, train[:20], size, max_iter=1, tol=0)
    fit_sklearn(train[:20], size, 0.05, 1)
    result = {}

    def reach(goal):
        for passes in (1, 2, 3, 5, 8, 12, 20, 40, 80):
            seconds, model = clock(
                lambda passes=passes: fit_ours(RobustLDA, train, size, max_iter=passes, tol=0, draws=0)
            )
            found = nll(model, halves)
            if found <= goal:
                return {"seconds": seconds, "passes": passes, "nll": found}
        return {"failed": f"{found:.4f} after 80 passes"}

    def against(seconds, goal):
        ours = reach(goal)
        ratio = ours["seconds"] / seconds if "seconds" in ours else None
        return {"rival seconds": seconds, "rival nll": goal, "robust": ours, "ratio": ratio}

    def sklearn_cell():
        seconds, model = clock(lambda: fit_sklearn(train, size, 0.2))
        return against(seconds, float(nll(model, halves)))

    def tomotopy_cell():
        model = tomotopy_model(train, size)
        model.train(0)
        seconds, _ = clock(lambda: model.train(TOMOTOPY_SWEEPS, workers=THREADS))
        return against(seconds, float(nll_tomotopy(model, halves)))

    result["sklearn"] = attempt(sklearn_cell)
    result["tomotopy"] = attempt(tomotopy_cell)
    return result


def peak(what, name, size):
    """Megabytes above the imports and the corpus, at the peak of a fit in a process of its own, children included."""
    code = subprocess.run(
        [sys.executable, __file__, "--peak", what, name, str(size)], capture_output=True, text=True, check=True
    )
    return json.loads(code.stdout.splitlines()[-1])


def measure_peak(what, name, size):
    import threading

    import psutil

    train, *_ = load(name)
    import sklearn.decomposition  # noqa: F401  part of the imports, for both

    fit_ours(RobustLDA, train[:20], 2, max_iter=1, tol=0)
    me = psutil.Process()
    before = me.memory_info().rss
    highest, done = [before], threading.Event()

    def watch():
        while not done.wait(0.02):
            total = me.memory_info().rss
            for child in me.children(recursive=True):
                try:
                    total += child.memory_info().rss
                except psutil.Error:
                    continue
            highest[0] = max(highest[0], total)

    thread = threading.Thread(target=watch)
    thread.start()
    jobs = 1 if what == "sklearn 1" else THREADS
    if what == "robust":
        fit_ours(RobustLDA, train, size, max_iter=4, tol=0, draws=2)
    else:
        fit_sklearn(train, size, 0.05, 4, jobs)
    done.set()
    thread.join()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"above": (highest[0] - before) / 1e6, "whole": max(highest[0], own) / 1e6}))


def cell_memory(name, size):
    found = {what: peak(what, name, size) for what in ("robust", "sklearn 1", "sklearn 2")}
    return {**found, "ratio": found["robust"]["whole"] / found["sklearn 1"]["whole"]}


def cell_linear(name):
    """Seconds a pass against topics, and against tokens by fitting halves and quarters of the corpus."""
    train, *_ = load(name)
    fit_ours(RobustLDA, train[:20], 20, max_iter=1, tol=0)
    sizes = {
        size: min(
            clock(lambda size=size: fit_ours(RobustLDA, train, size, max_iter=4, tol=0, draws=0))[0] / 4
            for _ in range(3)
        )
        for size in (25, 50, 100, 200)
    }
    parts = {}
    for part in (4, 2, 1):
        some = train[: train.shape[0] // part]
        seconds = min(
            clock(lambda some=some: fit_ours(RobustLDA, some, 50, max_iter=4, tol=0, draws=0))[0] / 4 for _ in range(3)
        )
        parts[int(some.sum())] = seconds
    return {"topics": sizes, "tokens": parts}


def rows(head, body):
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return [f"| {' | '.join(str(value) for value in line)} |" for line in lines]


def spread(values):
    """Mean ± standard deviation over the seeds, and how many where it is not all."""
    if not values:
        return "not run"
    few = "" if len(values) == len(FRESH) else f" ({len(values)})"
    return (f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else f"{values[0]:.3f}") + few


def in_order(found):
    return (
        (f"{name} {size}".split(), found[f"{name} {size}"])
        for size in TOPICS
        for name in NAMES
        if f"{name} {size}" in found
    )


def nll_rows(found):
    for key, cells in in_order(found):
        columns = [[c[label]["nll"] for c in cells.values() if label in c] for label in MODELS]
        columns.insert(2, [c["plain"]["cache"] for c in cells.values() if "plain" in c])
        beyond_cache, beyond_others = [], []
        for c in cells.values():
            if {"robust", "plain"} <= set(c):
                others = min(c[label]["nll"] for label in MODELS[1:] if label in c)
                beyond_others.append(others - c["robust"]["nll"])
                beyond_cache.append(min(others, c["plain"]["cache"]) - c["robust"]["nll"])
        yield [*key, *map(spread, columns), spread(beyond_cache), spread(beyond_others), f"≥ {MARGIN[key[0]]}"]


def more_rows(found):
    for name in NAMES:
        cells = [found.get(f"{name} {size}", {}) for size in TOPICS]
        nlls = [{seed: c["robust"]["nll"] for seed, c in cell.items() if "robust" in c} for cell in cells]
        if nlls[0] and any(nlls[1:]):
            yield [
                name,
                *(spread([value - nlls[0][s] for s, value in other.items() if s in nlls[0]]) for other in nlls[1:]),
            ]


def reading_rows(found):
    for key, cells in in_order(found):
        for ranking in RANKINGS:
            shown = []
            for label in MODELS[:3]:
                known = [c[label][ranking] for c in cells.values() if label in c]
                apart = f", {np.mean([one['diversity'] for one in known]):.2f}" if known else ""
                shown.append(spread([one["npmi"] for one in known]) + apart)
            yield [*key, ranking, *shown]


def before_rows(found):
    for key, c in in_order(found):
        if "robust" in c:
            yield [*key, f"{c['0.1']:.3f}", f"{c['robust']:.3f}", f"{c['robust'] - c['0.1']:+.3f}"]


def cost_rows(found):
    for key, c in in_order(found):
        ours = float(np.median(c["robust"]))
        others = [c["tomotopy"], float(np.median(c["sklearn"])) if c["sklearn"] else None]
        shown = [f"{other:.1f} ({ours / other:.2f})" if other else "" for other in others]
        rounds = ", ".join(f"{a / b:.2f}" for a, b in zip(c["robust"], c["sklearn"]))
        yield [*key, f"{ours:.1f}", *shown, rounds]


def hca_rows(found):
    for key, c in found.items():
        yield [*key.split(), f"{c['nll']:.3f}", f"{c['perplexity']:.0f}"]


def speed_rows(found):
    for key, c in found.items():
        rounds = ", ".join(f"{ratio:.2f}" for ratio in c["ratios"])
        yield [*key.split(), f"{c['robust']:.2f}", f"{c['sklearn']:.2f}", f"{c['ratio']:.2f}", rounds]


def reach_rows(found):
    for key, cell in found.items():
        for rival, c in cell.items():
            if "failed" in c or "failed" in c["robust"]:
                yield [*key.split(), rival, "failed", "", "", ""]
                continue
            ours = f"{c['robust']['seconds']:.1f} ({c['robust']['passes']})"
            yield [*key.split(), rival, f"{c['rival nll']:.3f}", f"{c['rival seconds']:.1f}", ours, f"{c['ratio']:.3f}"]


def memory_rows(found):
    for key, c in found.items():
        cells = (f"{c[what]['whole']:.0f} ({c[what]['above']:.0f})" for what in ("robust", "sklearn 1", "sklearn 2"))
        yield [*key.split(), *cells, f"{c['ratio']:.2f}"]


SECTIONS = (
    (
        "nll",
        "Document-completion NLL per word, lower is better, on splits and starts on which nothing was chosen (seeds "
        f"{', '.join(map(str, FRESH))}; mean ± standard deviation, in brackets how many where not all). tomotopy: "
        f"{TOMOTOPY_SWEEPS} sweeps, hyperparameters optimised; scikit-learn: batch, {SKLEARN_PASSES} passes, topic prior "
        f"{SKLEARN_PRIOR}",
        (
            "corpus",
            "K",
            "robust",
            "plain here",
            "with cache",
            "tomotopy",
            "scikit-learn",
            "margin over the best, a cache among them",
            "without one",
            "target of the latter",
        ),
        nll_rows,
    ),
    (
        "nll",
        "More topics must not hurt: NLL at K minus NLL at 20, same seeds (target ≤ .01)",
        ("corpus", "50", "100"),
        more_rows,
    ),
    (
        "nll",
        "Reading, same fits: coherence (NPMI of 10 words) mean ± standard deviation, diversity (of 25)",
        ("corpus", "K", "words by", "robust", "plain here", "tomotopy"),
        reading_rows,
    ),
    (
        "before",
        "NLL beside that of 0.1, on 0.1's split with words that no training document has (target: ≤ +.005)",
        ("corpus", "K", "0.1", "now", "change"),
        before_rows,
    ),
    (
        "cost",
        f"CPU seconds of a whole fit, one thread; rivals' with the ratio to them (targets: ≤ 1 of {TOMOTOPY_SWEEPS} sweeps, "
        "≤ 1 of 20 passes at K = 20)",
        ("corpus", "K", "robust", "tomotopy", "scikit-learn, 20 passes", "each round"),
        cost_rows,
    ),
    (
        "hca",
        "Every fourth word of 150 NIPS papers from the rest, 1350 to learn from (hca's protocol; lower is better)",
        ("corpus", "K", "NLL", "perplexity"),
        hca_rows,
    ),
    (
        "speed",
        "Seconds a pass, in turns with scikit-learn batch n_jobs=2 (target: ratio ≤ 1)",
        ("corpus", "K", "robust", "scikit-learn", "ratio of medians", "each round"),
        speed_rows,
    ),
    (
        "reach",
        "Seconds to a rival's final NLL without any draws, as a share of the rival's (targets: scikit-learn ≤ .25, "
        "tomotopy ≤ .5)",
        ("corpus", "K", "rival", "its NLL", "its seconds", "robust seconds (passes)", "ratio"),
        reach_rows,
    ),
    (
        "memory",
        "Peak memory of a process that fits, MB, and of that above imports and corpus (target: ratio ≤ 3)",
        ("corpus", "K", "robust", "scikit-learn n_jobs=1", "n_jobs=2 with its children", "ratio to n_jobs=1"),
        memory_rows,
    ),
)


def table(found):
    lines = ["# Topic models: targets and what was found", ""]
    lines.append(
        f"{found.get('machine', '')}; {THREADS} threads. Seconds come from a shared machine: trust the ratios."
    )
    for stage, title, head, body in SECTIONS:
        if found.get(stage):
            note = found.get("notes", {}).get(stage)
            lines += ["", f"## {title}", "", *([note, ""] if note else []), *rows(head, body(found[stage]))]
    shown = [
        c["robust"]["shown"]
        for cell in found.get("nll", {}).values()
        for c in cell.values()
        if "shown" in c.get("robust", {})
    ]
    if shown:
        lines += [
            "",
            f"{', '.join(TOPICAL)}, words of NIPS papers that are topical and bursty: all among the 25 words shown",
        ]
        lines[-1] += f" of some topic in {sum(len(one) == len(TOPICAL) for one in shown)} of {len(shown)} fits."
    for c in found.get("many", {}).values():
        lines += ["", "## 100 000 documents of 100 tokens, K = 100 (targets: ≤ 10 CPU minutes, ≤ 1000 MB)", ""]
        lines.append(f"{c['cpu'] / 60:.1f} CPU minutes, peak {c['peak']:.0f} MB ({c['before']:.0f} before the fit).")
    if found.get("linear"):
        lines += ["", "## Cost against topics and tokens (seconds a pass)", ""]
        for name, c in found["linear"].items():
            lines.append(f"- {name}, by K: " + ", ".join(f"{k}: {v:.3f}" for k, v in c["topics"].items()))
            lines.append(f"- {name}, K = 50, by tokens: " + ", ".join(f"{k}: {v:.3f}" for k, v in c["tokens"].items()))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    stages = ("nll", "before", "cost", "hca", "many", "speed", "reach", "memory", "linear", "table")
    parser.add_argument("--stage", nargs="*", default=stages, choices=stages)
    parser.add_argument("--corpus", nargs="*", default=NAMES)
    parser.add_argument("--topics", nargs="*", type=int, default=TOPICS)
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS, help="of the nll stage")
    parser.add_argument("--seeds", nargs="*", type=int, default=FRESH, help="of the nll stage")
    parser.add_argument("--many", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.many:
        measure_many()
        return
    if options.peak:
        measure_peak(options.peak[0], options.peak[1], int(options.peak[2]))
        return
    if not CORPORA.is_dir():
        print(f"No corpora at {CORPORA}: set ROBUSTLY_CORPORA to their folder. Nothing measured.")
        return
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "topics.json"
    cells_of = {
        "cost": cell_cost,
        "hca": cell_hca,
        "speed": cell_speed,
        "reach": cell_reach,
        "memory": cell_memory,
    }

    def read():
        return json.loads(path.read_text()) if path.exists() else {}

    def keep(stage, key, value):
        found = read()
        found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        found.setdefault(stage, {})[key] = value
        path.write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "topics.md").write_text(table(found))
        print(stage, key, json.dumps(value), flush=True)

    for stage in options.stage:
        if stage == "linear":
            if "ap" not in read().get("linear", {}):
                keep("linear", "ap", cell_linear("ap"))
        elif stage == "many":
            if "simulated" not in read().get("many", {}):
                keep("many", "simulated", cell_many())
        elif stage == "nll":
            asked = itertools.product(options.seeds, options.topics, options.corpus, options.models)
            for seed, size, name, label in asked:
                cells = read().get(stage, {}).get(f"{name} {size}", {})
                if label not in cells.get(str(seed), {}):
                    found = cell_nll(name, size, seed, label)
                    cells = read().get(stage, {}).get(f"{name} {size}", {})
                    cells.setdefault(str(seed), {})[label] = found
                    keep(stage, f"{name} {size}", cells)
        elif stage != "table":
            for size, name in itertools.product(options.topics, ["nips"] if stage == "hca" else options.corpus):
                key = f"{name} {size}"
                known = read().get(stage, {}).get(key, {})
                if stage == "before":
                    if known and "robust" not in known:
                        keep(stage, key, cell_before(name, size, known["0.1"]))
                elif not known:
                    keep(stage, key, cells_of[stage](name, size))
    (RESULTS / "topics.md").write_text(table(read()))


if __name__ == "__main__":
    main()
