"""R's glmmTMB: one random intercept a row, by Laplace."""

from benchmarks.rivals._r import prepare_r

SOLVES = ("poisson_lognormal",)
R_PACKAGES = ("glmmTMB", "jsonlite")

SCRIPT = """
suppressMessages(suppressWarnings(library(glmmTMB)))
rows$row <- factor(seq_len(nrow(rows)))
form <- reformulate(c(covariates, "(1 | row)"), "y")
fit_once <- function() glmmTMB(form, data = rows, family = poisson)
estimates <- function(m) {
  b <- fixef(m)$cond
  list(loc = unname(b[1]), w = unname(b[-1]), scale = sqrt(VarCorr(m)$cond$row[1]))
}
"""


def prepare(problem):
    return prepare_r(SCRIPT, problem)


def fit(problem):
    return prepare(problem)()
