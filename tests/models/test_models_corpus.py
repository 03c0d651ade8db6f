"""Models as people write them go through ``localize`` unmodified: a dozen here, all of them by ``python benchmarks/models.py``.

A fit's evidence must be the brute-force integral of the program as NumPyro runs it, to 1e-6 where the local has one dimension,
and its objective the highest that scipy finds on that integral; the rows' own questions must be answered.
"""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest
from brute_force import BruteForce

import robustly as rb

CORPUS = {
    name: case
    for path in sorted(Path(__file__).parent.glob("models_*.py"))
    for name, case in importlib.import_module(path.stem).CORPUS.items()
}
FITTED = ["centred_line", "globe_tosses", "ordered_logistic", "counts_by_largest_code"]
REFUSED = [name for name, case in CORPUS.items() if case.refused]


def test_the_corpus_holds_what_it_should():
    count = lambda tag: sum(tag in case.tags for case in CORPUS.values())
    assert len(CORPUS) >= 60
    assert len(CORPUS) - count("plate") >= 30
    assert count("groups") >= 8
    assert count("sizes") >= 5
    assert count("outcome") >= 5


@pytest.mark.parametrize("name", FITTED)
def test_a_model_fits_as_it_is_written(name):
    case = CORPUS[name]
    fit = rb.localize(case.model, case.site, **case.options).fit(*case.args)
    assert fit.outcome.converged
    with jax.enable_x64(True):
        brute = BruteForce(case, len(fit.evidence))
        own = fit.outcome.kind != "boundary"
        brute.sites = brute.sites if own else []
        evidence, log_prior = brute.value({k: np.asarray(v, dtype=float) for k, v in fit.parameters.items()})
    np.testing.assert_allclose(fit.evidence, evidence, atol=1e-6)
    assert not own or fit.objective == pytest.approx(float(np.sum(evidence) + log_prior), abs=1e-5)
    assert not own or np.all(np.isfinite(fit.posterior(case.site).mean))
    new = fit.predictive(*(np.asarray(a)[:3] for a in case.args[:-1]))
    assert np.all(np.isfinite(new.mean))
    if name == "ordered_logistic":
        np.testing.assert_allclose(new.probabilities.sum(-1), 1.0, atol=1e-9)
        np.testing.assert_allclose(new.probabilities @ np.arange(5), new.mean, atol=1e-9)
        np.testing.assert_allclose(new.cdf(2.0), new.probabilities[:, :3].sum(-1), atol=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_for_its_reason(name):
    case = CORPUS[name]
    with pytest.raises(rb.LocalizeError) as caught:
        rb.localize(case.model, case.site, **case.options).fit(*case.args)
    assert case.refused in str(caught.value)
