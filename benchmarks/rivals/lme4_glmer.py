"""R's lme4: `glmer` with one random intercept a row, by Laplace (its default)."""

from benchmarks.rivals._r import prepare_r

SOLVES = ("poisson_lognormal",)
R_PACKAGES = ("lme4", "jsonlite")

SCRIPT = """
suppressMessages(library(lme4))
rows$row <- factor(seq_len(nrow(rows)))
form <- reformulate(c(covariates, "(1 | row)"), "y")
fit_once <- function() glmer(form, data = rows, family = poisson)
estimates <- function(m) list(loc = unname(fixef(m)[1]), w = unname(fixef(m)[-1]), scale = sqrt(VarCorr(m)$row[1]))
"""


def prepare(problem):
    return prepare_r(SCRIPT, problem)


def fit(problem):
    return prepare(problem)()
