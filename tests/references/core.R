# Observation-level Poisson mixed models by lme4, adaptive quadrature with 25 points: the reference for robust Poisson
# regression through localize(). Run from the folder of this file: Rscript core.R
library(lme4); library(jsonlite)
fit <- function(formula, data) {
  control <- glmerControl(optimizer = "bobyqa", optCtrl = list(maxfun = 2e5, rhoend = 1e-10), tolPwrss = 1e-12)
  m <- glmer(formula, data, family = poisson, nAGQ = 25, control = control)
  list(coefficients = as.list(fixef(m)), variance = as.numeric(VarCorr(m)[[1]]), loglik = as.numeric(logLik(m)))
}
quine <- MASS::quine; quine$id <- factor(seq_len(nrow(quine)))
epil <- subset(MASS::epil, period == 4); epil$id <- factor(seq_len(nrow(epil)))
epil$lb <- log(epil$base / 4)
out <- list(
  lme4 = as.character(packageVersion("lme4")),
  quine = list(data = list(y = quine$Days, aboriginal = as.numeric(quine$Eth == "A"), male = as.numeric(quine$Sex == "M")),
               fit = fit(Days ~ I(Eth == "A") + I(Sex == "M") + (1 | id), quine)),
  epil = list(data = list(y = epil$y, lb = epil$lb, treated = as.numeric(epil$trt == "progabide")),
              fit = fit(y ~ lb + I(trt == "progabide") + (1 | id), epil))
)
write(toJSON(out, digits = 12, auto_unbox = TRUE, pretty = TRUE), "core.json")
