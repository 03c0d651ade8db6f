"""A formula comes back from disk: the same columns for the same rows, and no code in between."""

import json
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest

import robustly as rb
from robustly.errors import DataError, ModelError, PersistError
from robustly.glm.formula_saved import formula_from_json


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    n = 150
    frame = pd.DataFrame(
        {
            "x": rng.uniform(1, 2, n),
            "z.dot": rng.normal(size=n),
            "two words": rng.normal(size=n),
            "g": rng.choice(["a", "b", "c"], n),
            "k": rng.integers(1, 5, n),
            "flag": rng.random(n) > 0.5,
            "t": rng.uniform(1, 3, n),
        }
    )
    frame["y"] = rng.poisson(frame.t * np.exp(frame.x - 1 + 0.4 * rng.normal(size=n)))
    return frame


FORMULAS = [
    "y ~ x",
    "y ~ 0 + g",
    "y ~ bs(x, df=5) + offset(log(t))",
    "y ~ cr(t, df=4) + C(k, contr.sum)",
    "y ~ poly(x, 3) + flag",
    "y ~ scale(x) * C(g, contr.treatment('b')) + center(t)",
    "y ~ np.sqrt(x) + I(t ** 2) + {x * t} + log(`two words` ** 2)",
    "y ~ `two words` + z.dot + Q('z.dot')",
    "y ~ .",
    "y ~ standardize(x) + np.where(x > 1.5, 1, 0)",
    "y ~ C(g, Treatment(reference='c')):C(k, Sum) + hashed(g, levels=4)",
    "y ~ bs(x, df=6, include_intercept=True):g + cc(t, df=4, constraints='center')",
    "y ~ C(g, contr.helmert) + C(k, contr.poly) + C(k > 2) + I((x > 1.2) & (t < 2))",
    "y ~ C(g, {'ab': [1, -1, 0], 'c': [0, 0.5, -0.5]}) + I(g == 'a'):x + log(z.dot ** 2)",
]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_reloaded_fit_predicts_what_the_fit_did(formula, data, tmp_path):
    fit = rb.glm(formula, data, family="poisson", local=None)
    np.testing.assert_allclose(fit.predictive(data).m, fit.source.predictor, rtol=1e-9, atol=1e-9)
    new = data.iloc[20:60].drop(columns="y")
    expected = fit.predictive(new)
    for turn in range(2):  # what was read can be kept again
        fit.save(tmp_path / f"{turn}.rb")
        fit = rb.load(tmp_path / f"{turn}.rb")
        np.testing.assert_array_equal(fit.predictive(new).m, expected.m)
        np.testing.assert_allclose(fit.predictive(new.iloc[:1]).m, expected.m[:1], rtol=1e-12)
        np.testing.assert_array_equal(fit.predictive(new).mean, expected.mean)


def test_predictions_do_not_depend_on_what_else_is_predicted(data):
    fit = rb.glm("y ~ bs(x, df=5) + scale(t) + g", data, family="poisson")
    one_by_one = [fit.predictive(data.iloc[[i]]).m[0] for i in range(10)]
    np.testing.assert_allclose(one_by_one, fit.predictive(data.iloc[:10]).m, rtol=1e-13)


def test_columns_named_for_exposure_are_read_from_new_rows(data, tmp_path):
    fit = rb.glm("y ~ x", data, family="poisson", exposure="t")
    same = rb.glm("y ~ x + offset(log(t))", data, family="poisson")
    fit.save(tmp_path / "fit.rb")
    for one in (fit, rb.load(tmp_path / "fit.rb")):
        np.testing.assert_allclose(one.predictive(data).m, same.predictive(data).m, rtol=1e-12)
        np.testing.assert_allclose(
            one.predictive(data, exposure=1.0).m, one.predictive(data.assign(t=1.0)).m, rtol=1e-12
        )
        with pytest.raises(DataError, match='column "t" as exposure'):
            one.predictive(data[["x"]])


def test_unseen_levels_and_texts_are_named_after_reloading(data, tmp_path):
    rb.glm("y ~ C(g) + x", data, family="poisson").save(tmp_path / "fit.rb")
    fit = rb.load(tmp_path / "fit.rb")
    new = data.head(5).copy()
    new.loc[3, "g"] = "zz"
    with pytest.raises(DataError, match=r'"g" holds "zz" in row 3.*"a", "b" and "c"'):
        fit.predictive(new)
    with pytest.raises(DataError, match=r'"x" holds "what" in row 0'):
        fit.predictive(data.head(2).assign(x="what"))
    with pytest.raises(DataError, match='speaks of "x"'):
        fit.predictive(data[["g"]])


# What a formula in a file may try. {path} is a file that must not come to be; `contr`, `np` and `log` are columns there.
HOSTILE = [
    "__import__('os').system('touch {path}')",
    "open('{path}', 'w')",
    "np.savetxt('{path}', x)",
    "np.load('{path}')",
    "np.lib.format.open_memmap('{path}', mode='w+', shape=(3,))",
    "np.testing._private.utils.os.system('touch {path}')",
    "x.to_csv('{path}')",
    "contr.to_csv('{path}')",
    "I(contr.to_csv('{path}') or contr.plot(backend='m'))",
    "np.to_csv('{path}')",
    "log.to_csv('{path}')",
    "C(x, contr.to_csv('{path}'))",
    "C(x, contr.treatment(contr.to_csv('{path}')))",
    "C(x, levels=contr.to_csv('{path}'))",
    "C(x, contr.__class__)",
    "bs(x, df=contr.to_csv('{path}'))",
    "bs(contr.to_csv('{path}'), df=4)",
    "poly(x, degree=[open('{path}', 'w')][0])",
    'scale(x, center=\'"]+open("{path}", "w")+["\')',
    "Q(contr.to_csv('{path}'))",
    "`open`('{path}', 'w')",
    "(lambda: open('{path}', 'w'))()",
    "[open('{path}', 'w') for one in x]",
    "(open('{path}', 'w') for one in x)",
    "center.__globals__['__builtins__']",
    "contr.treatment.__init__.__globals__",
    "contr.sum.mro()",
    "x.__class__.__base__.__subclasses__()",
    "log(x if open('{path}', 'w') else x)",
    "x[open('{path}', 'w')]",
    "log(*open('{path}', 'w'))",
    "log(x, out=open('{path}', 'w'))",
    "(x := open('{path}', 'w'))",
    'I(f\'{{open("{path}", "w")}}\')',
    'eval(\'open("{path}", "w")\')',
    'exec(\'open("{path}", "w")\')',
    "getattr(x, 'to_csv')('{path}')",
    "np.frompyfunc(open, 2, 1)('{path}', 'w')",
    "np.vectorize(open)('{path}', 'w')",
    "np.fromfile('{path}')",
    "np.exp.__call__(x)",
    "hashed(x, levels=3, hash_func=open)",
    "lag(open('{path}', 'w'))",
    "yield_(open('{path}', 'w'))",
]


@pytest.fixture(scope="module")
def saved(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "fit.rb"
    rb.glm("y ~ x + I(x)", data, family="poisson", local=None).save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(saved, path, formula):
    """The file with another formula in it, as version 1 kept it or as a tree; sums of members are left out as there."""
    head = json.loads(saved["meta.json"])
    head["meta"]["formula"] = formula
    head["version"] = 1
    head.pop("sums", None)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in saved.items():
            archive.writestr(name, json.dumps(head) if name == "meta.json" else content)
    return path


def as_text(text, terms=("Intercept", "x", "I(x)"), **more):
    """A formula as 0.1 kept it."""
    state = {"transforms": {"map": []}, "encoders": {"map": []}}
    columns = {"x": 1.5, "contr": 1.0, "np": 2.0, "log": 3.0, "open": 4.0}
    kept = {"text": text, "offset_texts": [], "states": [state], "first": columns, "terms": list(terms)}
    return kept | {"classes": [], "given": {}} | more


@pytest.mark.parametrize("code", HOSTILE)
def test_a_file_from_elsewhere_cannot_run_code(code, saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = code.format(path=tmp_path / "ran")
    offset = {"map": []}
    for kept in (
        as_text("y ~ x + {" + said + "}"),
        as_text(f"y ~ x + I({said})"),
        as_text("y ~ x", offset_texts=[said], states=[{"transforms": offset, "encoders": offset}] * 2),
    ):
        with pytest.raises(PersistError, match="formula kept in this file is damaged"):
            rb.load(rewritten(saved, tmp_path / "bad.rb", kept))
    assert [one.name for one in tmp_path.iterdir()] == ["bad.rb"]


@pytest.mark.parametrize("code", HOSTILE)
def test_a_typed_formula_computes_and_does_nothing_else(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = code.format(path=tmp_path / "ran")
    frame = pd.DataFrame({"y": [1.0, 2.0, 4.0], "x": [1.0, 3.0, 2.0], "contr": 1.0, "np": 2.0, "log": 3.0, "open": 4.0})
    for formula in ("y ~ x + {" + said + "}", f"y ~ I({said})", f"y ~ x + offset({said})", "{" + said + "} ~ x"):
        with pytest.raises((ModelError, DataError)):  # names with dots may be those of columns that are not there
            rb.glm(formula, frame, family="normal")
    assert not list(tmp_path.iterdir())


def test_columns_may_have_the_names_of_functions():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.uniform(1, 2, (30, 5)), columns=["y", "log", "np", "contr", "C"])
    fit = rb.glm("y ~ log + np.log(np) + log(contr) + C", frame, family="normal", local=None)
    plain = frame.assign(a=frame["log"], b=np.log(frame["np"]), c=np.log(frame["contr"]), d=frame["C"])
    same = rb.glm("y ~ a + b + c + d", plain, family="normal", local=None)
    np.testing.assert_allclose(fit.coefficients, same.coefficients, rtol=1e-12)


def test_formulas_of_0_1_kept_as_text_are_read_and_predict_the_same(data, saved, tmp_path):
    kept = as_text(
        "y ~ 0 + scale(x) + C(g, contr.treatment('b'))",
        terms=["scale(x)", *(f"C(g, contr.treatment('b'))[{level}]" for level in "abc")],
        first={"x": 1.5, "g": "a"},
        states=[
            {
                "transforms": {"map": [["scale(x)", {"map": [["ddof", 1], ["center", 1.5], ["scale", 0.25]]}]]},
                "encoders": {
                    "map": [
                        ["scale(x)", ["numerical", {"map": []}]],
                        ["C(g, contr.treatment('b'))", ["categorical", {"map": [["categories", ["a", "b", "c"]]]}]],
                    ]
                },
            }
        ],
    )
    matrix, offset = formula_from_json(kept).matrix_of(data)
    levels = data["g"].to_numpy()[:, None] == np.array(["a", "b", "c"])
    np.testing.assert_allclose(matrix, np.column_stack([(data["x"] - 1.5) / 0.25, levels]), rtol=1e-14)
    assert not offset.any()
    old = rb.load(rewritten(saved, tmp_path / "old.rb", as_text("y ~ x + I(x)")))
    new = rb.load(rewritten(saved, tmp_path / "new.rb", json.loads(saved["meta.json"])["meta"]["formula"]))
    np.testing.assert_array_equal(old.predictive(data).m, new.predictive(data).m)


def test_levels_that_files_cannot_keep_are_told_when_saving(data, tmp_path):
    days = pd.Series(pd.date_range("2024-01-01", periods=3)).iloc[np.arange(len(data)) % 3].to_numpy()
    fit = rb.glm("y ~ C(day)", data.assign(day=days), family="poisson", local=None)
    assert len(fit.predictive(data.assign(day=days))) == len(data)
    with pytest.raises(PersistError, match=r"C\(day\) has levels of the type Timestamp.*astype\(str\)"):
        fit.save(tmp_path / "fit.rb")
    assert not (tmp_path / "fit.rb").exists()


def test_rows_that_a_function_cannot_take_are_named_on_every_side(data):
    wild = data.assign(x=data["x"].where(data.index != 17, -1.0), z=1.0)
    for formula in ("y ~ log(x)", "log(x) ~ t", "y ~ bs(log(x), df=4)", "y ~ t + offset(log(x))", "y ~ C(log(x))"):
        with pytest.raises(DataError, match=r"log\(x\).* not a finite number in row 17, where x = -1"):
            rb.glm(formula, wild, family="normal")
    with pytest.raises(DataError, match=r"1 / \(z - 1\).*row 0 \(and in 149 more rows\)"):
        rb.glm("y ~ I(1 / (z - 1))", wild, family="normal")
    fit = rb.glm("y ~ log(x) + offset(log(t))", data, family="poisson", local=None)
    with pytest.raises(DataError, match=r"log\(x\) is not a finite number in row 17"):
        fit.predictive(wild)
    with pytest.raises(DataError, match=r"log\(t\) is not a finite number in row 3"):
        fit.predictive(data.assign(t=data["t"].where(data.index != 3, -2.0)))


@pytest.mark.parametrize("label", ["weights", "offset", "exposure", "trials"])
def test_what_goes_along_with_rows_has_as_many(label, data):
    with pytest.raises(DataError, match=f"{label} has 149 values, but the data have 150 rows"):
        rb.glm("y ~ x", data, family="poisson", **{label: np.ones(149)})
    if label != "weights":
        fit = rb.glm("y ~ x", data, family="poisson", local=None)
        for rows, given in ((3, 4), (1, 4), (3, 1)):
            with pytest.raises(DataError, match=f"{label} has {given} values, but the data have {rows} rows"):
                fit.predictive(data.head(rows), **{label: np.ones(given)})


def test_a_response_in_words_is_that_of_zeros_and_ones():
    rng = np.random.default_rng(5)
    x = rng.normal(size=200)
    ill = rng.random(200) < 1 / (1 + np.exp(-x))
    frame = pd.DataFrame({"x": x, "number": ill.astype(int), "word": np.where(ill, "yes", "no")})
    words, numbers = (rb.glm(f"{name} ~ x", frame, family="bernoulli", local=None) for name in ("word", "number"))
    np.testing.assert_array_equal(words.coefficients, numbers.coefficients)
    assert words.formula.classes == ("no", "yes")
    assert words.notes[0] == '"yes" counts as 1 and "no" as 0.'
    with pytest.raises(DataError, match=r'"word" holds "(no|yes)" in row 0.*Normal\(\) needs numbers'):
        rb.glm("word ~ x", frame, family="normal")
    with pytest.raises(ModelError, match="3 classes"):
        rb.glm("town ~ x", frame.assign(town=np.arange(200) % 3).astype({"town": str}), family="bernoulli")


def test_names_with_dots_are_names():
    frame = pd.DataFrame({"stack.loss": [1.0, 2.0, 4.0, 3.0, 6.0], "Air.Flow": [1.0, 2.0, 3.0, 4.0, 5.0]})
    fit = rb.glm("stack.loss ~ Air.Flow", frame, family="normal", local=None)
    assert fit.coefficients["Air.Flow"] == pytest.approx(1.1, rel=1e-10)  # (Σ xy − 5 x̄ȳ) / (Σ x² − 5 x̄²) = 11/10
    with pytest.raises(DataError, match=r'"Air.Flou".*Did you mean "Air.Flow"'):
        rb.glm("stack.loss ~ Air.Flou", frame, family="normal")


def test_a_row_that_alone_holds_a_coefficient_does_not_break_leaving_out():
    frame = pd.DataFrame({"y": [1, 2, 3, 4, 0, 2], "g": ["a", "b", "c", "d", "a", "a"]})
    fit = rb.glm("y ~ C(g)", frame, family="poisson", local=None)
    assert np.isfinite(fit.influence[[0, 4, 5]]).all()
    assert not np.isnan(fit.loo)


def test_arviz_gets_draws_of_coefficients_and_the_evidence_of_rows(data):
    arviz = pytest.importorskip("arviz", reason="to_arviz() needs the arviz extra")
    fit = rb.glm("y ~ x + g", data, family="poisson")
    draws = fit.sample_posterior(250, 1, num_chains=4)
    assert repr(draws).startswith("<4 chains of 250 draws of Intercept, x")
    table = draws.summary()
    assert table.loc["x", "r_hat"] < 1.05
    found = fit.to_arviz(draws, seed=1)
    drawn = found.posterior["x"].to_numpy().ravel()
    # Five standard errors of a chain's mean: one false alarm in 1.7 million.
    assert abs(drawn.mean() - fit.coefficients["x"]) < 0.2 * fit.standard_errors["x"] + 5 * table.loc[
        "x", "sd"
    ] / np.sqrt(table.loc["x", "effective"])
    assert drawn.std() == pytest.approx(fit.standard_errors["x"], rel=0.2)
    assert found.log_likelihood["y"].shape == found.posterior_predictive["y"].shape == (4, 250, len(data))
    np.testing.assert_array_equal(found.observed_data["y"].to_numpy(), data["y"])
    # Replicated responses have the mean of the fitted rows: five standard errors, one false alarm in 1.7 million.
    replicated = found.posterior_predictive["y"].to_numpy().reshape(1000, -1).mean(axis=1)
    assert abs(replicated.mean() - fit.fittedvalues.mean()) < 5 * replicated.std() / 10
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loo = arviz.loo(found)
        assert arviz.summary(found)["r_hat"].max() < 1.05
        if hasattr(arviz, "plot_ppc_dist"):  # ArviZ 1
            arviz.plot_ppc_dist(found, num_samples=10, backend="matplotlib")
            arviz.plot_loo_pit(found, backend="matplotlib")
        else:
            arviz.plot_ppc(found, num_pp_samples=10)
            arviz.plot_loo_pit(found, y="y")
    elpd = loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo  # ArviZ 1, and before it
    assert elpd == pytest.approx(fit.loo, abs=1.0)
