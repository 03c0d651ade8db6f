"""Figures and pages without a browser: what they hold, what they escape, what they leave alone."""

import re

import matplotlib as mpl
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from scipy.special import ndtr
from scipy.stats import chi2

import robustly as rb
from robustly.errors import FitError, ModelError
from robustly.report import html, plots
from robustly.report.findings import Findings, shortened

RNG = np.random.default_rng(11)
N = 120
DATA = pd.DataFrame({"x": RNG.normal(size=N), "z": RNG.normal(size=N)})
DATA["count"] = RNG.poisson(np.exp(1 + 0.5 * DATA.x + 0.6 * RNG.normal(size=N)))
DATA["size"] = 1 + DATA.x + RNG.standard_t(2, N)
DATA["sure"] = (RNG.random(N) < 1 / (1 + np.exp(-3 * DATA.x))).astype(int)
DATA.loc[DATA.x.nlargest(12).index, "sure"] = 0
DATA["gamma"] = RNG.gamma(np.exp(0.8 * RNG.normal(size=N)) * 2, np.exp(0.3 * DATA.x))

LAWS = {
    "own log rate": ("count ~ x + z", {"family": "poisson"}),
    "Laplace": ("count ~ x + z", {"family": "poisson", "prior": "laplace"}),
    "precision": ("size ~ x", {"family": "normal", "dof": None}),
    "label": ("sure ~ x", {"family": "bernoulli", "local": "label"}),
    "shape": ("gamma ~ x", {"family": "gamma", "local": "dispersion"}),
    "boundary": ("calm ~ x", {"family": "poisson"}),
}
DATA["calm"] = RNG.binomial(6, 0.6, N)  # less scattered than a Poisson


@pytest.fixture(scope="module", params=LAWS)
def found(request):
    formula, options = LAWS[request.param]
    made = Findings(
        rb.glm(formula, DATA, **options), rb.glm(formula, DATA, family=options["family"], local=None), frame=DATA
    )
    assert (made.robust.outcome.kind == "boundary") == (request.param == "boundary")
    return made


def test_every_kind_of_fit_has_its_page(found, tmp_path):
    settings = dict(mpl.rcParams)
    found.robust.report(tmp_path / "page.html", data=DATA)
    assert dict(mpl.rcParams) == settings
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    differs = found.robust.outcome.kind != "boundary"
    assert page.count("data:image/png;base64,") == 3 + differs
    assert len(re.findall(r'<img alt="[^"]{20,}"', page)) == 3 + differs
    assert "http://" not in page
    assert "https://" not in page
    for term in found.robust.terms:
        assert f"<td class=words>{term}</td>" in page
    for sentence in found.sentences():
        assert html.text(sentence) in page


def test_sentences_tell_what_the_fits_say(found):
    text = " ".join(found.sentences())
    shared = found.robust.shared
    if found.robust.outcome.kind == "boundary":
        assert "Rows do not differ" in text
    elif "flip" in shared:
        assert f"{shared['flip']:.1%}" in text
    elif "spread" in shared:
        assert f"{shared['spread']:.3g}" in text
    else:
        assert f"{shared['dof']:.3g} degrees of freedom" in text
    count = len(found.outliers)
    assert (f"{count} of {N} row" in text) if count else ("No row stands out" in text)


def test_figures_are_drawn_from_a_fit(found):
    assert len(found.robust.plot_coefficients(classical=found.classical).axes) == 1
    assert found.robust.plot_rows().axes[0].get_xlabel() == "row"
    assert len(found.robust.plot_pit().axes) == 1
    if found.robust.outcome.kind == "boundary":
        with pytest.raises(ModelError, match="nothing of their own"):
            found.robust.plot_prior()
    else:
        assert found.robust.plot_prior().axes


class Geometric(rb.Family):
    """Failures before the first success."""

    def distribution(self, predictor):
        return dist.GeometricLogits(predictor)


def test_a_family_without_a_distribution_function_is_not_said_to_have_no_outliers(tmp_path):
    fit = rb.glm("count ~ x", DATA, family=Geometric())
    fit.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "has no distribution function" in page
    assert "stands out" not in page


def test_sparse_shifts_are_drawn_row_by_row(tmp_path):
    fit = rb.glm("count ~ x", DATA, family="poisson", prior="laplace", solver="map")
    moved = int((fit.shifts != 0).sum())
    assert 0 < moved < N
    assert fit.plot_prior().axes[0].get_title(loc="left") == f"{moved} of {N} rows are shifted"


def test_the_page_of_a_classical_fit_compares_it_with_nothing():
    fit = rb.glm("count ~ x", DATA, family="poisson", local=None)
    text = " ".join(Findings(fit, fit).sentences())
    assert text.startswith("The model is the classical one")
    assert "Left out" not in text


def test_a_fit_read_from_a_file_says_that_it_has_no_rows_to_report_on(tmp_path):
    fit = rb.glm("count ~ x", DATA, family="poisson")
    fit.save(tmp_path / "fit.rb")
    with pytest.raises(FitError, match="keep the fit in memory"):
        rb.load(tmp_path / "fit.rb").report(tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_transform_of_a_normal_row_is_its_distribution_function():
    fit = rb.glm("size ~ x", DATA, family="normal", local=None)
    below, upto = fit.pit
    np.testing.assert_array_equal(below, upto)
    expected = ndtr((DATA["size"] - fit.predictive(DATA).m) / fit.scale)
    np.testing.assert_allclose(below, expected, rtol=1e-12)


def test_counts_have_the_mass_of_the_count_between_both_ends():
    fit = rb.glm("count ~ x", DATA, family="poisson")
    below, upto = fit.pit
    np.testing.assert_allclose(upto - below, np.exp(fit.evidence), rtol=1e-5)


def test_the_histogram_of_a_true_model_is_flat_and_always_has_mean_one():
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"x": rng.normal(size=4000)})
    frame["y"] = rng.poisson(np.exp(0.5 + 0.5 * frame.x))
    fit = rb.glm("y ~ x", frame, family="poisson", local=None)
    heights = plots.pit_heights(fit)
    assert heights.mean() == pytest.approx(1.0, abs=1e-12)
    # Pearson's statistic is at most that of ten free bins, for the mass of a count is spread over several: false alarms are
    # rarer than one in a million.
    assert 4000 / 10 * ((heights - 1) ** 2).sum() < chi2.isf(1e-6, 9)
    skewed = rb.glm("count ~ x", DATA, family="poisson", local=None)
    assert plots.pit_heights(skewed).mean() == pytest.approx(1.0, abs=1e-12)
    assert plots.pit_heights(skewed)[0] > 1.5  # rows that differ give the classical model full ends


def test_text_of_any_kind_is_escaped_and_kept():
    assert html.text('<a href="x">&\'') == "&lt;a href=&quot;x&quot;&gt;&amp;&#x27;"
    assert html.text("a\x00\x1b\u202eb\n") == "a���b\n"
    assert html.text("👩‍🔬") == "👩‍🔬"
    assert "L" * 10_000 in html.table(pd.DataFrame({"name": ["L" * 10_000]}))
    assert len(shortened("L" * 10_000)) == 40
    assert shortened("a\nb\x1b") == "a�b�"


def test_labels_in_pictures_are_short_and_never_markup():
    from matplotlib.figure import Figure

    assert plots.label("$x^{2$\n🙂" + "y" * 50) == "$x^{2$▯▯" + "y" * 17 + "…"
    terms = ["$\\frac{", "🙂", "y" * 10_000]
    frame = pd.DataFrame(RNG.normal(size=(50, 3)), columns=terms).assign(r=RNG.poisson(3, 50))
    fit = rb.glm("r ~ " + " + ".join(f"`{name}`" for name in terms), frame, family="poisson", local=None)
    figure = fit.plot_coefficients()
    assert isinstance(figure, Figure)
    assert plots.as_png(figure).startswith(b"\x89PNG")


def test_tables_mark_what_is_not_a_number():
    made = html.table(pd.DataFrame({"a": [1.5, np.nan, np.inf], "b": ["x", None, "<i>"], "n": [1, 2, 3]}))
    assert made.count('data-value=""') == 2
    assert "&lt;i&gt;" in made
    assert '<td data-value="1.0">1</td>' in made


def test_many_terms_and_many_rows_are_drawn_in_part():
    rng = np.random.default_rng(8)
    frame = pd.DataFrame(rng.normal(size=(9000, 40)), columns=[f"x{j}" for j in range(40)]).assign(
        y=rng.poisson(2, 9000)
    )
    fit = rb.glm("y ~ .", frame, family="poisson", local=None)
    assert len(fit.plot_coefficients().axes[0].get_yticks()) == plots.MOST_TERMS
    drawn = fit.plot_rows().axes[0].lines[0].get_xdata()
    assert len(drawn) <= plots.MOST_POINTS
