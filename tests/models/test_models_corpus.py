"""Models as people write them go through ``localize`` unmodified: a few here, all of them with ROBUSTLY_CORPUS=all.

A fit's evidence must be the brute-force integral of the program as NumPyro runs it, to 1e-6 where the local has one dimension
and to 1e-3 where it has more, what is asked of the rows must be answered, or refused by name, and its program sampled. (``python
benchmarks/models.py`` also compares estimates with scipy's on the brute-force objective, samples longer, and times all this.)
"""

import importlib
import json
import os
from contextlib import nullcontext
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from brute_force import BruteForce
from numpyro.infer import MCMC, NUTS

import robustly as rb

CORPUS = {
    name: case
    for path in sorted(Path(__file__).parent.glob("models_*.py"))
    for name, case in importlib.import_module(path.stem).CORPUS.items()
}
FITTED = [name for name, case in CORPUS.items() if not case.refused]
REFUSED = [name for name, case in CORPUS.items() if case.refused]
CHOSEN = {
    "": ["reads_from_outside", "globe_tosses", "imputed_predictor"],
    "all": FITTED,
}
# What cannot be asked of a model, by the words of its reason; everything else must be answered.
NOT_ANSWERED = {
    ("censored_by_factor", "outliers"): "drawn rows cannot be scored",
    ("survival", "outliers"): "drawn rows cannot be scored",
    ("mediation", "outliers"): "drawn rows cannot be scored",
    ("mediation", "predictive"): 'observes "y" and "z" together',
    ("counts_of_groups_weigh", "predictive"): "What it takes from its data, such as the number of groups",
}
CHOSEN_NOW = CHOSEN.get(os.environ.get("ROBUSTLY_CORPUS", ""), os.environ.get("ROBUSTLY_CORPUS", "").split(","))


def test_the_corpus_holds_what_it_should():
    count = lambda tag: sum(tag in case.tags for case in CORPUS.values())
    assert len(CORPUS) >= 60
    assert len(CORPUS) - count("plate") >= 30
    assert count("groups") >= 8
    assert count("sizes") >= 5
    assert count("outcome") >= 5


@pytest.mark.filterwarnings("ignore::robustly.errors.ConvergenceWarning", "ignore::robustly.errors.HeavyTailsWarning")
@pytest.mark.parametrize("name", CHOSEN_NOW)
def test_a_model_fits_as_it_is_written(name, tmp_path):
    case = CORPUS[name]
    robust = rb.localize(case.model, case.site, **case.options)
    fit = robust.fit(*case.args)
    assert fit.outcome.kind in ("converged", "boundary", "limit"), fit.outcome
    own = fit.outcome.kind != "boundary"
    with jax.enable_x64(True):
        brute = BruteForce(case, len(fit.evidence), common=not own)
        found = brute.value({k: np.asarray(v, dtype=float) for k, v in fit.parameters.items()})
        evidence, log_prior = (np.asarray(a) for a in found)
    within = 1e-6 if fit.source.passes.model.dim <= 1 else 1e-3
    np.testing.assert_allclose(fit.evidence, evidence, atol=within)
    assert fit.objective == pytest.approx(float(np.sum(evidence) + log_prior), abs=30 * within)

    site = case.site if isinstance(case.site, str) else case.site[0]
    assert not own or np.all(np.isfinite(fit.posterior(site).mean))
    new = case.new if case.new is not None else tuple(np.asarray(a)[:3] for a in case.args[:-1])
    with _refused(name, "predictive"):
        assert not new or np.all(np.isfinite(fit.predictive(*new).mean))
    with _refused(name, "outliers"):
        assert fit.outliers() is not None
    fit.save(tmp_path / "fit.rb")
    np.testing.assert_array_equal(rb.load(tmp_path / "fit.rb", model=robust).vector, fit.vector)


def _refused(name, question):
    """By name, where it is known that it cannot be answered."""
    reason = NOT_ANSWERED.get((name, question))
    return nullcontext() if reason is None else pytest.raises(rb.RobustlyError, match=reason)


@pytest.mark.parametrize("name", CHOSEN_NOW if "ROBUSTLY_CORPUS" in os.environ else CHOSEN_NOW[:1])
def test_its_program_is_sampled_by_nuts(name):
    case = CORPUS[name]
    program = rb.localize(case.model, case.site, **case.options).program
    with jax.enable_x64(True):
        chain = MCMC(NUTS(program), num_warmup=5, num_samples=5, progress_bar=False)
        chain.run(jax.random.key(0), *case.args)
        assert all(np.all(np.isfinite(draws)) for draws in chain.get_samples().values())


def test_all_models_were_measured_and_end_as_they_should():
    """What ``benchmarks/models.py --search --nuts`` stored, of every model."""
    measured = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "models.json").read_text())
    assert measured.keys() == CORPUS.keys()
    for name, record in measured.items():
        assert record["as expected"], name
        ended = record.get("ended", {})
        assert not any("raw error" in text for text in ended.values()), name
        if CORPUS[name].refused:
            continue
        loaded = {"save and load"} if name == "data_in_a_dictionary" else set()
        assert ended.keys() - loaded == {question for of, question in NOT_ANSWERED if of == name}, name
        assert record["evidence gap"] <= (1e-6 if record.get("dimensions", 1) <= 1 else 1e-3), name
        assert max(record["below scipy"], record.get("inside", 0.0)) <= 1e-4, name
        # By their size or, in directions that are flat, by standard errors.
        assert min(record["estimates off"], record.get("standard errors off", np.inf)) <= 1e-3, name
        assert record["finite draws"], name


def test_an_ordinal_outcome_has_probabilities():
    def grades(x, y=None):
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.OrderedLogistic(slope * x, jnp.array([-1.0, 0.0, 1.5])), obs=y)

    x = np.linspace(-1.0, 1.0, 12)
    fit = rb.classical(grades).fit(x, np.array([0, 0, 1, 0, 2, 1, 3, 2, 3, 2, 3, 3]))
    new = fit.predictive(x[:4])
    below = 1.0 / (1.0 + np.exp(-(np.array([-1.0, 0.0, 1.5]) - float(fit.shared["slope"]) * x[:4, None])))
    np.testing.assert_allclose(new.probabilities, np.diff(below, axis=1, prepend=0.0, append=1.0), atol=1e-9)
    np.testing.assert_allclose(new.probabilities @ np.arange(4), new.mean, atol=1e-9)
    np.testing.assert_allclose(new.cdf(1.0), below[:, 1], atol=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_for_its_reason(name):
    case = CORPUS[name]
    with pytest.raises((rb.LocalizeError, rb.FitError)) as caught:
        rb.localize(case.model, case.site, **case.options).fit(*case.args)
    assert case.refused in str(caught.value)


def effects_by_group(g, x, y=None):
    """Shared effects under a scale that is estimated with them, whose prior does not keep it from 0."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
    chol = numpyro.sample("chol", dist.LKJCholesky(2, 1.0))
    with numpyro.plate("groups", 4):
        ab = numpyro.sample("ab", dist.MultivariateNormal(mu * jnp.ones(2), scale_tril=tau[:, None] * chol))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(ab[g, 0] + ab[g, 1] * x, precision**-0.5), obs=y)


def test_an_objective_without_a_top_is_named_wherever_rounding_breaks_it_off(rng):
    """Effects that do not differ make a scale of 0 infinitely likely: the search stops where differences are rounding."""
    robust, g = rb.localize(effects_by_group, "precision"), np.arange(32) % 4
    for _ in range(4):
        x = rng.normal(size=32)
        with pytest.raises(rb.FitError, match="no finite top: it keeps rising as far as"):
            robust.fit(g, x, 1.0 + x + 0.5 * rng.standard_t(3, size=32))


def far_line(x, y=None):
    b = numpyro.sample("b", dist.ImproperUniform(dist.constraints.real, (), ()))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(b * x, precision**-0.5), obs=y)


def test_a_top_that_is_far_away_is_a_top(rng):
    x, noise = rng.normal(size=20), rng.standard_t(3, size=20)
    robust = rb.localize(far_line, "precision")
    near = robust.fit(x, x + noise)
    for unit in (1e-12, 1e12):
        far = robust.fit(x, unit * (x + noise))
        assert far.outcome.kind == near.outcome.kind
        assert far.shared["b"] / unit == pytest.approx(float(near.shared["b"]), rel=1e-5)
    with pytest.warns(rb.ConvergenceWarning, match="max_steps"):
        robust.fit(x, 1e12 * (x + noise), max_steps=12)
