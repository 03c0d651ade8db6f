"""Does ``localize`` take the models people write? The corpus of ``tests/models``, each model fitted, asked and checked.

    python benchmarks/models.py [name …] [--search] [--nuts] [--again]

Every model is fitted cold, in a process of its own, then asked for its summary, posterior, predictive and outliers, saved and
loaded; its evidence is compared with brute-force integration. With ``--search`` its estimates are compared with scipy's on the
brute-force objective, with ``--nuts`` its program is sampled by NUTS, 500 + 500 draws. Times are CPU seconds of the model's process,
good as ratios within one run. What is found goes to ``results/models.json`` as it comes, so that a run can be continued (``--again`` begins
anew); a summary goes to ``results/models.md``. ``--told`` only makes the summary.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "models.json"
MODELS = HERE.parent / "tests" / "models"
HEAD = "# Models as people write them\n\nMade by `benchmarks/models.py` from `models.json`.\n\n"
sys.path.insert(0, str(MODELS))

import jax  # noqa: E402
from brute_force import BruteForce  # noqa: E402
from corpus import Case  # noqa: E402

import robustly as rb  # noqa: E402


def corpus() -> dict[str, Case]:
    """All cases by name."""
    found: dict[str, Case] = {}
    for path in sorted(MODELS.glob("models_*.py")):
        found.update(importlib.import_module(path.stem).CORPUS)
    return found


def timed(record: dict[str, Any], name: str, act: Callable[[], Any]) -> Any:
    """Do it, and note its CPU time or by which error it ended."""
    start = time.process_time()
    try:
        return act()
    except Exception as error:
        kind = "refused" if isinstance(error, rb.RobustlyError) else "raw error"
        record.setdefault("ended", {})[name] = f"{kind}: {type(error).__name__}: {str(error)[:300]}"
        return None
    finally:
        record.setdefault("seconds", {})[name] = round(time.process_time() - start, 3)


def look_at(case: Case, search: bool) -> dict[str, Any]:
    """Fit a model and ask it everything."""
    record: dict[str, Any] = {"tags": sorted(case.tags)}
    robust = rb.localize(case.model, case.site, **case.options)
    fit = timed(record, "fit", lambda: robust.fit(*case.args))
    if fit is None:
        record["as expected"] = case.refused is not None and case.refused in record["ended"]["fit"]
        return record
    record.update(
        outcome=fit.outcome.kind,
        approximation=fit.approximation,
        whole=any("all rows at once" in note for note in fit.notes),
        log_likelihood=float(fit.log_likelihood),
    )
    record["as expected"] = case.refused is None
    site = case.site if isinstance(case.site, str) else case.site[0]
    timed(record, "summary", lambda: str(fit.summary()))
    if fit.outcome.kind != "boundary":
        posterior = timed(record, "posterior", lambda: fit.posterior(site).mean)
        record["finite posterior"] = posterior is not None and bool(np.all(np.isfinite(posterior)))
    new = case.new if case.new is not None else tuple(np.asarray(a)[:3] for a in case.args[:-1])
    if new:
        mean = timed(record, "predictive", lambda: (fit.predictive(*new).mean, fit.predictive(*new).quantile(0.9))[0])
        record["finite predictive"] = mean is not None and bool(np.all(np.isfinite(mean)))
    timed(record, "outliers", lambda: fit.outliers())
    asked = () if "predictive" in record.get("ended", {}) else new
    timed(record, "save and load", lambda: _kept(fit, robust, asked))
    timed(record, "brute force", lambda: _compare(record, case, fit, search))
    return record


def _kept(fit: Any, robust: Any, new: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        fit.save(Path(folder) / "fit.rb")
        again = rb.load(Path(folder) / "fit.rb", model=robust)
        assert np.allclose(again.vector, fit.vector)
        if new:
            assert np.allclose(again.predictive(*new).mean, fit.predictive(*new).mean, equal_nan=True)


def _compare(record: dict[str, Any], case: Case, fit: Any, search: bool) -> None:
    with jax.enable_x64(True):
        at_boundary = fit.outcome.kind == "boundary"
        brute = BruteForce(case, len(fit.evidence), common=at_boundary)
        theta = {name: np.asarray(value, dtype=float) for name, value in fit.parameters.items()}
        evidence, log_prior = brute.value(theta)
        record["dimensions"] = int(fit.source.passes.model.dim)
        record["evidence gap"] = float(np.max(np.abs(np.asarray(evidence) - fit.evidence)))
        record["objective gap"] = float(fit.objective - np.sum(evidence) - log_prior)
        if not search:
            return
        parameters = fit.source.passes.model.parameters
        try:
            best, where = brute.maximum(theta, parameters.limits)
            if at_boundary:
                inside = BruteForce(case, len(fit.evidence))
                record["inside"] = inside.highest_inside(theta, fit.limits, parameters.limits) - float(fit.objective)
        except TimeoutError as late:
            record["search"] = str(late)
            return
        record["below scipy"] = best - float(fit.objective)
        off = [np.max(np.abs(where[n] - theta[n]) / (1e-3 + np.abs(theta[n]))) for n in theta]
        record["estimates off"] = float(max(off))
        moved = parameters.vector(where) - fit.vector
        record["standard errors off"] = float(np.sqrt(max(0.0, -moved @ fit.curve @ moved)))


def sample(case: Case) -> dict[str, Any]:
    """NUTS on the localized program, 500 + 500."""
    from numpyro.infer import MCMC, NUTS

    record: dict[str, Any] = {}
    program = rb.localize(case.model, case.site, **case.options).program

    def run() -> Any:
        with jax.enable_x64(True):
            chain = MCMC(NUTS(program), num_warmup=500, num_samples=500, progress_bar=False)
            chain.run(jax.random.key(0), *case.args)
            return jax.tree.map(np.asarray, chain.get_samples())

    draws = timed(record, "nuts", run)
    record["finite draws"] = draws is not None and bool(all(np.all(np.isfinite(v)) for v in draws.values()))
    return record


def told(found: dict[str, Any]) -> str:
    """The figures of all models looked at."""
    done = [r for r in found.values() if "as expected" in r]
    fitted = [r for r in done if "outcome" in r]
    raw = [n for n, r in found.items() if any("raw error" in text for text in r.get("ended", {}).values())]
    asked = ("fit", "summary", "posterior", "predictive", "outliers")
    ratios = [
        sum(r["seconds"].get(k, 0.0) for k in asked) / r["seconds"]["fit"]
        for r in fitted
        if "posterior" in r["seconds"]
    ]
    against = [
        sum(r["seconds"].get(k, 0.0) for k in asked) / r["seconds"]["nuts"] for r in fitted if r["seconds"].get("nuts")
    ]
    asked_for = {n: 1e-6 if r.get("dimensions", 1) <= 1 else 1e-3 for n, r in found.items()}
    gaps = {n: r["evidence gap"] for n, r in found.items() if "outcome" in r and "evidence gap" in r}
    wide = {n: f"{gap:.1g}" for n, gap in gaps.items() if gap > asked_for[n]}
    lines = [
        f"{len(done)} models: {sum(r['as expected'] for r in done)} as expected, {len(fitted)} fitted, "
        f"{sum(r['whole'] for r in fitted)} of them run whole",
        f"evidence checked by brute force, {len(gaps)} models: within 1e-6 {sum(g <= 1e-6 for g in gaps.values())}; not within 1e-6 "
        f"where the local has one dimension, or 1e-3 where it has more: {wide or 'none'}",
        f"raw errors: {raw or 'none'}",
    ]
    searched = {n: r for n, r in found.items() if "below scipy" in r}
    if searched:
        off = {
            n: f"{r['estimates off']:.1g} ({r['standard errors off']:.1g} standard errors, {r['below scipy']:.1g} nats)"
            for n, r in searched.items()
            if r["estimates off"] > 1e-3
        }
        flat = {n: r["inside"] for n, r in searched.items() if "inside" in r}
        late = [n for n, r in found.items() if "search" in r]
        lines += [
            f"scipy's BFGS on the brute-force objective, {len(searched)} models, {sum(r['seconds']['brute force'] for r in searched.values()):.0f} s: "
            f"higher by more than 1e-4 in {[n for n, r in searched.items() if r['below scipy'] > 1e-4] or 'none'}; not ended: {late or 'none'}",
            f"estimates apart by more than 1e-3 of their size: {off or 'none'}",
            f"rows do not differ in {len(flat)} models: an optimum with differing rows is higher by more than 1e-4 in "
            f"{ {n: f'{v:.1g}' for n, v in flat.items() if v > 1e-4} or 'none' }",
        ]
    drawn = {n: r["finite draws"] for n, r in found.items() if "finite draws" in r}
    if drawn:
        lines.append(
            f"NUTS on the program, {len(drawn)} models: without finite draws {[n for n, ok in drawn.items() if not ok] or 'none'}"
        )
    refused = {f"{n}, {what}": text for n, r in found.items() for what, text in r.get("ended", {}).items()}
    lines += [f"refused: {what}: {text.partition(': ')[2]}" for what, text in refused.items()]
    if ratios:
        lines.append(f"fit and questions / fit: median {np.median(ratios):.2f} over {len(ratios)}")
    if against:
        lines.append(f"fit and questions / NUTS: median {np.median(against):.2f} over {len(against)}")
    return "\n".join(lines)


def one(name: str, record: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """What is known of a model, and what is asked for besides."""
    jax.config.update("jax_enable_compilation_cache", False)
    warnings.simplefilter("ignore")
    case = corpus()[name]
    if "as expected" not in record or "--again" in words:
        record = look_at(case, "--search" in words)
    if "--nuts" in words and "outcome" in record and "nuts" not in record["seconds"]:
        more = sample(case)
        record = {**record, **more, "seconds": {**record["seconds"], **more["seconds"]}}
    return record


def main(words: list[str]) -> None:
    chosen = [word for word in words if not word.startswith("-")]
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    # Nothing has been computed yet, so that what is forked here has compiled nothing.
    context = multiprocessing.get_context("fork")
    for name in () if "--told" in words else chosen or corpus():
        with context.Pool(1) as apart:
            record = found[name] = apart.apply(one, (name, found.get(name, {}), words))
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        print(name, {k: v for k, v in record.items() if k != "tags"}, flush=True)
    text = told(found)
    RESULTS.with_suffix(".md").write_text(HEAD + "".join(f"- {line}\n" for line in text.splitlines()))
    print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
