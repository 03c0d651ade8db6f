"""Everything that ever ended with a traceback, a silent NaN or no end, held to a named error or a finite answer."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from fuzz_commands import in_folder
from fuzz_programs import line_program
from saved_files import rows, scales
from scipy import sparse, stats

import robustly as rb
from robustly.conjugate import (
    BetaGeometric,
    DirichletMultinomial,
    GammaGamma,
    GammaPoisson,
    NormalInverseGamma,
    NormalNormal,
    NormalWishart,
)
from robustly.topics.evaluate import LONGEST_UNROLLED, split_documents

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 2))
Y = RNG.poisson(2.0, 24).astype(float)
RAGGED = [[1.0] * (k % 3) for k in range(24)]
HUGE = 10**400


def with_value(array, value, dtype=float):
    found = array.astype(dtype)
    found[(3,) * array.ndim if array.ndim == 1 else (3, 1)] = value
    return found


def linear(X=X, y=Y, **options):
    made = {name: options.pop(name) for name in ("alpha", "tol", "max_iter", "dof") if name in options}
    return rb.RobustLinearRegression(**made).fit(X, y, **options)


REFUSED = {
    "list of unlike rows": (lambda: linear(y=RAGGED), "unlike length"),
    "labels in a list of unlike rows": (lambda: rb.RobustLogisticRegression().fit(X, RAGGED), "unlike length"),
    "pair of a list of unlike rows": (lambda: NormalNormal().fit(Y, RAGGED), "unlike length"),
    "400 digits": (lambda: linear(with_value(X, HUGE, object)), "401 digits in row 3"),
    "400 digits in a pair": (lambda: GammaPoisson().fit(with_value(Y, HUGE, object)), "401 digits"),
    "400 digits in a frame": (
        lambda: rb.glm("y ~ x", pd.DataFrame({"y": Y, "x": with_value(Y, HUGE, object)})),
        "401 digits in row 3|row 3 holds",
    ),
    "400 digits in a chain": (lambda: rb.RobustGaussianHMM(2).fit(with_value(X, HUGE, object)), "401 digits"),
    "400 digits in a mixture": (lambda: rb.RobustGaussianMixture(2).fit(with_value(X, HUGE, object)), "401 digits"),
    "missing weight": (
        lambda: NormalNormal().fit(Y, 1.0, weights=with_value(Y, pd.NA, object)),
        "weights: row 3 holds",
    ),
    "weights of complex numbers": (lambda: GammaPoisson().fit(Y, weights=Y + 1j), "complex"),
    "sparse weights": (lambda: GammaGamma().fit(Y + 1, weights=sparse.coo_matrix(Y)), "weights"),
    "weights of 1e300": (lambda: linear(sample_weight=np.full(24, 1e300)), "at most 1e"),
    "weights of 1e16": (lambda: GammaPoisson().fit(Y, weights=np.full(24, 1e16)), "at most 1e"),
    "denormal weights": (lambda: linear(sample_weight=np.full(24, 5e-324)), "lost in rounding"),
    "column of 1e200": (lambda: linear(X * 1e200), "squares of"),
    "column of 1.7e308": (lambda: linear(np.full((24, 2), 1.7e308)), "squares of"),
    "response of 1e290": (lambda: linear(y=Y * 1e290), "y holds .* whose square"),
    "pair of 1e200": (lambda: NormalInverseGamma().fit(with_value(Y, 1e200)), "in row 3.*between 1e-100 and 1e"),
    "no data": (lambda: NormalInverseGamma().fit(None), "nothing to fit"),
    "no counts": (lambda: DirichletMultinomial().fit(None), "nothing to fit"),
    "no columns": (lambda: NormalWishart().fit(X[:, :0]), "no columns"),
    "counts beyond 2**53": (lambda: DirichletMultinomial().fit(with_value(np.abs(X) // 1, 2.0**63)), r"2\*\*53"),
    "alpha in words": (lambda: linear(alpha="nan"), "alpha, the ridge penalty"),
    "tol below 0": (lambda: linear(tol=-1.0), "tol is a number above 0; got -1.0"),
    "max_iter in words": (lambda: linear(max_iter="a"), "max_iter is a whole number of 1 or more; got 'a'"),
    "dof of 0": (lambda: linear(dof=0.0), "dof is a number above 0"),
    "components in days": (lambda: rb.RobustGaussianMixture(np.timedelta64(3, "D")).fit(X), "whole number"),
    "a number for a site": (lambda: rb.localize(line_program, 1e7), "sites are named"),
    "chunks of no rows": (lambda: rb.localize(line_program, "precision").fit(X, Y, chunk=0), "chunk is a whole number"),
    "no steps": (lambda: rb.localize(line_program, "precision").fit(X, Y, max_steps=-1), "max_steps"),
    "rows of 1e100 for a program": (
        lambda: rb.localize(line_program, "precision").fit(X, np.full(24, 1e100)),
        "has no finite evidence",
    ),
    "counts of 1e18": (lambda: rb.LDA(2).fit(with_value(np.abs(X) // 1, 1e18)), "more than 1e"),
    "alpha of 1e300": (lambda: rb.LDA(2, alpha=1e300).fit(np.abs(X) // 0.1), "alpha is 1e[+]300"),
    "alpha of 1e-300": (lambda: rb.RobustLDA(2, alpha=1e-300).fit(np.abs(X) // 0.1), "lets no document use any topic"),
    "fraction in words": (lambda: rb.LDA(2, validation_fraction="1").fit(np.abs(X) // 0.1), "a number was expected"),
    "bar on the left": (lambda: rb.glm("y|t ~ x", pd.DataFrame({"y": Y, "t": Y, "x": Y})), r"\|"),
    "bar without a bracket": (lambda: rb.glm("y ~ x | g", pd.DataFrame({"y": Y, "g": Y, "x": Y})), r"\|"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name(name):
    call, words = REFUSED[name]
    with pytest.raises(rb.RobustlyError, match=words):
        call()


@pytest.mark.parametrize(
    "options",
    [
        ("--encoding", "utf-16"),
        ("--encoding", "nope"),
        ("--delimiter", ""),
        ("--delimiter", "\n"),
        ("--delimiter", '"'),
        ("--max-iter", "1"),
        ("--fdr", "nan"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_command_ends_with_an_exit_code(options):
    def args(home):
        (home / "data.csv").write_text("y,x\n" + "".join(f"{k % 4},{k}\n" for k in range(24)))
        return ["fit", "data.csv", "y ~ x", "--local", "none", *options]

    in_folder(args)  # Raises where it does not.


def test_rows_that_a_count_of_1e7_is_among_are_judged_without_its_range_in_memory():
    fit = BetaGeometric().fit(with_value(Y, 10_000_000))
    BetaGeometric().fit(Y).outliers()  # what compiles does so before memory is watched, which makes it ten times slower
    tracemalloc.start()
    found = fit.outliers(fdr=0.05)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.tolist() == [3]
    assert peak < 50e6


@pytest.mark.filterwarnings("ignore")
def test_one_row_has_no_silent_nan():
    fit = GammaGamma(shape=2.0).fit([2.5])
    assert np.isfinite(fit.evidence).all()
    with pytest.raises(rb.FitError, match="need 3 rows or more; got 1"):
        fit.row_intervals(0.9)


def test_documents_of_any_length_are_cut_in_two_without_their_tokens_in_memory():
    counts = np.array([[10**8, 5 * 10**7, 3], [2, 3, 4]])
    tracemalloc.start()
    halves = split_documents(counts, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts[0].sum() > LONGEST_UNROLLED
    assert peak < 20e6
    assert np.array_equal(halves.observed.toarray() + halves.held_out.toarray(), counts)
    # Half of each document, the odd token observed; a word's share is hypergeometric, five deviations are 1 in 2e6.
    assert halves.observed.sum(axis=1).A1.tolist() == [(150_000_003 + 1) // 2, 5]
    deviation = 0.5 * np.sqrt(10**8 * (5 * 10**7) / 1.5e8)
    assert abs(halves.observed[0, 0] - 5 * 10**7) < 5 * deviation


def test_scores_of_a_fitted_frame_do_not_complain_of_its_names():
    frame = pd.DataFrame(RNG.poisson(3.0, (20, 4)), columns=list("abcd"))
    assert np.isfinite(rb.LDA(2, random_state=0, max_iter=2, tol=0, draws=1).fit(frame).score(frame))


@pytest.mark.parametrize("far", [1e6, 1e9])
def test_a_row_far_out_has_the_evidence_of_its_law(far):
    """Its density where other rows are is 1e17 nats down, and rounding there had left nothing of its other coefficients."""
    values = np.random.default_rng(2).standard_t(2, 40)
    values[7] = far
    fit = rb.localize(scales, "precision").fit(values)
    shape, rate = (float(fit.hyperparameters["precision"][name]) for name in ("concentration", "rate"))
    expected = stats.t(2.0 * shape, scale=np.sqrt(rate / shape)).logpdf(values)
    assert fit.outcome.converged
    assert fit.evidence == pytest.approx(expected, abs=1e-9)


def test_no_rows_have_no_predictions():
    frame = rows()
    fit = rb.glm("y ~ x + g", frame, family="poisson", local=None)
    assert len(fit.predictive(frame.iloc[:0]).mean) == 0
