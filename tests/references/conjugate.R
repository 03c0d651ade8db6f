# Reference numbers for tests/conjugate: MASS::glm.nb and VGAM::vglm(betabinomial).
# Run from this folder: Rscript conjugate.R > conjugate.json
suppressPackageStartupMessages({
  library(MASS)
  library(VGAM)
  library(jsonlite)
})

tight <- glm.control(epsilon = 1e-14, maxit = 500)
negative_binomial <- function(formula, data) {
  fit <- glm.nb(formula, data = data, control = tight)
  list(coef = unname(coef(fit)), theta = fit$theta, se_theta = fit$SE.theta, log_likelihood = as.numeric(logLik(fit)))
}

beta_binomial <- function(successes, trials) {
  fit <- vglm(cbind(successes, trials - successes) ~ 1, betabinomial(irho = 0.2),
    control = vglm.control(epsilon = 1e-10, maxit = 500), trace = FALSE
  )
  list(
    successes = successes, trials = trials, mean = plogis(coef(fit)[[1]]), rho = plogis(coef(fit)[[2]]),
    log_likelihood = logLik(fit)
  )
}

rats <- VGAM::lirat # Shepard, Mackler & Finch 1980: dead foetuses in litters of rats on a low-iron diet
pups <- VGAM::prats # Weil 1970: pups that survived the lactation period in litters of rats

result <- list(
  made_with = list(
    R = R.version.string, MASS = as.character(packageVersion("MASS")), VGAM = as.character(packageVersion("VGAM"))
  ),
  quine_intercept = c(list(counts = quine$Days), negative_binomial(Days ~ 1, quine)),
  quine_covariates = c(
    list(design = unname(model.matrix(Days ~ Eth + Sex + Lrn, quine))), negative_binomial(Days ~ Eth + Sex + Lrn, quine)
  ),
  ships = local({
    kept <- ships[ships$service > 0, ]
    c(
      list(counts = kept$incidents, exposure = kept$service / 1000),
      negative_binomial(incidents ~ 1 + offset(log(service / 1000)), kept)
    )
  }),
  low_iron_litters = beta_binomial(rats$R, rats$N),
  lactation_litters = beta_binomial(pups$litter.size - pups$alive, pups$litter.size)
)
cat(toJSON(result, digits = NA, auto_unbox = TRUE, pretty = FALSE, matrix = "rowmajor"), "\n")
