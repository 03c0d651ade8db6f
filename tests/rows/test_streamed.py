"""Rows in Parquet files give the answers of the same rows in memory, however the files are cut."""

from __future__ import annotations

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import robustly as rb
from robustly.conjugate import GammaPoisson
from robustly.errors import DataError, ModelError
from robustly.fit.checkpoint import checkpointed
from robustly.glm import judging as judging_module
from robustly.glm import source as source_module
from robustly.localized import rows as localized_module
from robustly.localized.stored import RowRecipe
from robustly.rows import parquet as parquet_module
from robustly.rows import streamed
from robustly.rows.anywhere import rows_from
from robustly.rows.arrays import ArrayRows
from robustly.rows.stored import Layout
from robustly.testing import check_rows

N = 1500
COLUMNS = ["a", "b"]


def make_frame():
    rng = np.random.default_rng(7)
    frame = pd.DataFrame(
        {"a": rng.normal(size=N), "b": rng.normal(50.0, 2.0, N), "kind": rng.choice(["u", "v", "w"], N)}
    )
    predictor = 0.4 * frame["a"] - 0.2 * (frame["b"] - 50.0)
    frame["years"] = rng.uniform(1.0, 2.0, N)
    frame["count"] = rng.poisson(frame["years"] * np.exp(predictor + 0.6 * rng.normal(size=N)))
    frame["size"] = predictor + rng.standard_t(3, N)
    frame["yes"] = (rng.random(N) < 1.0 / (1.0 + np.exp(-3.0 * predictor))).astype(int)
    frame["word"] = np.where(frame["yes"] == 1, "yes", "no")
    frame["often"] = rng.integers(0, 3, N)
    return frame


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module", params=[(37, 50, 400), (5000, 1 << 16, 1400)])
def files(request, frame, tmp_path_factory):
    """The same rows with small and with large row groups, batches and files."""
    group, batch, first = request.param
    folder = tmp_path_factory.mktemp("rows")
    frame[:first].to_parquet(folder / "1.parquet", row_group_size=group)
    frame[first:].to_parquet(folder / "2.parquet", row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_module, "BATCH", batch)
        patch.setattr(streamed, "SMALLEST_BLOCK", 1)
        patch.setattr(streamed, "THREADS", 1)
        yield folder


def columns_as_rows(folder, chunk=64):
    all_columns = rb.parquet(folder)
    asked = [all_columns.pick(("a", "b")), all_columns.pick("count")]
    return rows_from(asked, Layout(RowRecipe(2), ("X", "count"), chunk))


def test_files_keep_the_contract_of_a_store(files, frame):
    known = (frame[COLUMNS].to_numpy(), frame["count"].to_numpy())
    check_rows(columns_as_rows(files), known)
    weight = np.random.default_rng(0).random(N)
    check_rows(columns_as_rows(files).weighed(weight), ArrayRows(known, weight))


def test_a_checkpoint_keeps_the_contract_of_a_store(frame, tmp_path):
    known = ArrayRows((frame[COLUMNS].to_numpy(),), np.ones(N), 64)
    with checkpointed(known, tmp_path / "kept", "a model") as rows:
        rows.log.open = False  # the contract asks for one pass at one place twice, with other states
        check_rows(rows, known)


def same(one, two, *, evidence=True):
    """Estimates, standard errors, evidence and outliers."""
    assert one.outcome.kind == two.outcome.kind
    np.testing.assert_allclose(two.estimates, one.estimates, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(np.asarray(two.standard_errors), np.asarray(one.standard_errors), rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(two.covariance("sandwich"), one.covariance("sandwich"), rtol=1e-7, atol=1e-9)
    assert two.log_likelihood == pytest.approx(one.log_likelihood, abs=1e-8 * abs(one.log_likelihood))
    np.testing.assert_allclose(np.asarray(two.evidence), one.evidence, rtol=1e-8, atol=1e-8)
    np.testing.assert_array_equal(two.outliers(), one.outliers())


REGRESSIONS = {
    "linear": (rb.RobustLinearRegression(), "size", {}),
    "poisson": (rb.RobustPoissonRegression(), "count", {"exposure": "years"}),
    "weighed": (rb.RobustPoissonRegression(), "count", {"sample_weight": "often"}),
    "logit": (rb.RobustLogisticRegression(local="logit", hyperprior=dist.Gamma(2.0, 1.0)), "word", {}),
    "label": (rb.RobustLogisticRegression(local="label"), "yes", {}),
}


@pytest.mark.filterwarnings("ignore::robustly.errors.IdentifiabilityWarning")
@pytest.mark.parametrize("which", REGRESSIONS)
def test_regressions_from_files_are_those_from_memory(which, files, frame):
    model, y, along = REGRESSIONS[which]
    in_memory = {name: frame[column].to_numpy() for name, column in along.items()}
    known = type(model)(**model.get_params()).fit(frame[COLUMNS], frame[y], **in_memory)
    found = model.fit(rb.parquet(files, columns=COLUMNS), y, **along)
    same(known.result_, found.result_)
    offset = {"exposure": "years"} if "exposure" in along else {}
    known_offset = {"exposure": frame["years"].to_numpy()} if offset else {}
    np.testing.assert_array_equal(
        np.round(np.asarray(found.predict(rb.parquet(files, columns=COLUMNS), **offset), dtype=float), 8),
        np.round(np.asarray(known.predict(frame[COLUMNS], **known_offset), dtype=float), 8),
    ) if which != "logit" else None


def test_a_formula_learns_from_all_files(files, frame):
    text = "count ~ center(a) + bs(b, df=5) + C(kind) + offset(log(years))"
    known, found = rb.glm(text, frame), rb.glm(text, rb.parquet(files))
    assert list(known.coefficients.index) == list(found.coefficients.index)
    same(known, found)
    np.testing.assert_allclose(found.predictive(frame[:5]).mean, known.predictive(frame[:5]).mean, rtol=1e-10)


def test_words_of_a_response_are_classes(files, frame):
    known = rb.glm("word ~ a + kind", frame, family="bernoulli", local=None)
    found = rb.glm("word ~ a + kind", rb.parquet(files), family="bernoulli", local=None)
    same(known, found)
    assert known.notes == found.notes


def test_a_pair_from_files(files, frame):
    known = GammaPoisson().fit(frame["count"].to_numpy(), frame["years"].to_numpy())
    found = GammaPoisson().fit(rb.parquet(files, columns="count"), rb.parquet(files, columns="years"))
    same(known, found)


def scaled(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([x.shape[1]]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, precision**-0.5), obs=y)


def test_a_program_from_files_whose_rows_are_judged_where_they_are(files, frame, monkeypatch):
    model = rb.localize(scaled, "precision")
    known = model.fit(frame[COLUMNS].to_numpy(), frame["size"].to_numpy())
    monkeypatch.setattr(localized_module, "JUDGED", 0)
    found = model.fit(rb.parquet(files, columns=COLUMNS), rb.parquet(files, columns="size"))
    same(known, found)
    np.testing.assert_allclose(found.outlier_probability, known.outlier_probability, atol=1e-8)


def test_a_mixture_from_files(files, frame):
    known = rb.RobustGaussianMixture(2, random_state=0).fit(frame[COLUMNS])
    found = rb.RobustGaussianMixture(2, random_state=0).fit(rb.parquet(files, columns=COLUMNS))
    np.testing.assert_allclose(found.means_, known.means_, rtol=1e-10)
    np.testing.assert_allclose(found.covariances_, known.covariances_, rtol=1e-9)
    np.testing.assert_allclose(found.surprise_, known.surprise_, rtol=1e-9)
    np.testing.assert_array_equal(found.outliers(), known.outliers())
    np.testing.assert_array_equal(found.predict(rb.parquet(files)), known.predict(frame[COLUMNS]))


def test_a_mapped_array_is_not_copied(frame, tmp_path):
    np.save(tmp_path / "x.npy", frame[COLUMNS].to_numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = rb.RobustLinearRegression().fit(mapped, frame["size"].to_numpy())
    assert np.shares_memory(found.result_.source.design.matrix, mapped)
    same(rb.RobustLinearRegression().fit(frame[COLUMNS].to_numpy(), frame["size"].to_numpy()).result_, found.result_)


def test_what_needs_memory_says_so(files):
    found = rb.glm("size ~ a", rb.parquet(files), family="normal")
    with pytest.raises(ModelError, match="needs rows in memory"):
        _ = found.loo
    with pytest.raises(ModelError, match="need them in memory"):
        rb.glm("count ~ a", rb.parquet(files), solver="em", approx="laplace")
    with pytest.raises(ModelError, match='"robust" and means_init'):
        rb.RobustGaussianMixture(2, init_params="kmeans").fit(rb.parquet(files, columns=COLUMNS))
    with pytest.raises(DataError, match="Give the name of a column"):
        rb.RobustLinearRegression().fit(rb.parquet(files, columns=COLUMNS), np.zeros(N))


def test_many_rows_are_judged_where_they_are(files, frame, monkeypatch):
    monkeypatch.setattr(judging_module, "MANY_ROWS", 1000)
    known = rb.RobustLinearRegression().fit(frame[COLUMNS], frame["size"]).result_
    monkeypatch.setattr(source_module, "JUDGED", 0)
    found = rb.RobustLinearRegression().fit(rb.parquet(files, columns=COLUMNS), "size").result_
    assert known.judgement.weights.keys() == found.judgement.weights.keys()
    np.testing.assert_allclose(found.outlier_probability, known.outlier_probability, atol=1e-8)
    np.testing.assert_array_equal(found.outliers(), known.outliers())


def test_a_pair_sees_how_often_whole_numbers_are_and_not_the_rows(files, frame):
    known = GammaPoisson().fit(frame["count"].to_numpy(), weights=frame["often"].to_numpy())
    found = GammaPoisson().fit(rb.parquet(files, columns="count"), weights="often")
    assert found.evidence_by_row is None
    assert len(found.source.table.weight) == len(np.unique(frame["count"]))
    np.testing.assert_allclose(found.estimates, known.estimates, rtol=1e-8)
    np.testing.assert_allclose(found.evidence, known.evidence, rtol=1e-8)
