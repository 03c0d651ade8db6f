# Numbers of lme4 for tests/glm/test_groups.py: Rscript tests/references/groups.R > tests/references/groups.json
# Written out digit by digit; no package but lme4, MASS, nlme (for its data) and glmmTMB is used.
suppressMessages({library(lme4); library(MASS); library(glmmTMB)})
number <- function(x) sprintf("%.10g", x)
listed <- function(x) paste0("{", paste0('"', names(x), '": ', number(x), collapse = ", "), "}")
told <- function(fit, sd) {
  se <- sqrt(diag(as.matrix(vcov(fit))))
  names(se) <- names(fixef(fit))
  paste0('{"coefficients": ', listed(fixef(fit)), ', "errors": ', listed(se), ', "sd": ', listed(sd),
         ', "log likelihood": ', number(as.numeric(logLik(fit))), "}")
}
sharp <- glmerControl(optimizer = "bobyqa", tolPwrss = 1e-12, optCtrl = list(rhoend = 1e-10, maxfun = 1e5))
sharp_lmer <- lmerControl(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-10, maxfun = 1e5))
data(grouseticks); data(bacteria); data(cbpp); data(sleepstudy)
grouse <- glmer(TICKS ~ YEAR + cHEIGHT + (1 | BROOD), grouseticks, poisson, nAGQ = 25, control = sharp)
bact <- glmer(I(y == "y") ~ trt + I(week > 2) + (1 | ID), bacteria, binomial, nAGQ = 25, control = sharp)
herd <- glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial, nAGQ = 25, control = sharp)
sleep <- lmer(Reaction ~ Days + (Days | Subject), sleepstudy, REML = FALSE, control = sharp_lmer)
apart <- lmer(Reaction ~ Days + (Days || Subject), sleepstudy, REML = FALSE, control = sharp_lmer)
data(Pastes)
paste_fit <- lmer(strength ~ 1 + (1 | batch/cask), Pastes, REML = FALSE, control = sharp_lmer)
data(Oats, package = "nlme")
oats <- lmer(yield ~ nitro + (1 | Block/Variety), as.data.frame(Oats), REML = FALSE, control = sharp_lmer)
# Laplace's approximation, which is all that R has for nested counts.
ticks <- glmmTMB(TICKS ~ YEAR + cHEIGHT + (1 | LOCATION/BROOD), grouseticks, family = poisson)
profiled <- suppressMessages(confint(sleep, method = "profile", parm = "theta_", oldNames = FALSE))
sds <- function(fit) { v <- as.data.frame(VarCorr(fit)); x <- v$sdcor; names(x) <- ifelse(is.na(v$var2), paste(v$grp, v$var1), "corr"); x }
cat("{\n")
cat('"versions": {"R": "', as.character(getRversion()), '", "lme4": "', as.character(packageVersion("lme4")), '", "glmmTMB": "',
    as.character(packageVersion("glmmTMB")), '"},\n', sep = "")
cat('"grouseticks": ', told(grouse, sds(grouse)), ",\n", sep = "")
cat('"bacteria": ', told(bact, sds(bact)), ",\n", sep = "")
cat('"cbpp": ', told(herd, sds(herd)), ",\n", sep = "")
cat('"sleepstudy": ', told(sleep, sds(sleep)), ",\n", sep = "")
cat('"sleepstudy apart": ', told(apart, sds(apart)), ",\n", sep = "")
cat('"Pastes": ', told(paste_fit, sds(paste_fit)), ",\n", sep = "")
cat('"Oats": ', told(oats, sds(oats)), ",\n", sep = "")
cat('"grouseticks nested, Laplace": {"coefficients": ', listed(fixef(ticks)$cond), ', "sd": {"BROOD:LOCATION": ',
    number(attr(VarCorr(ticks)$cond[["BROOD:LOCATION"]], "stddev")), ', "LOCATION": ',
    number(attr(VarCorr(ticks)$cond[["LOCATION"]], "stddev")), '}, "log likelihood": ', number(as.numeric(logLik(ticks))),
    "},\n", sep = "")
cat('"sleepstudy profile": {"low": [', paste(number(profiled[, 1]), collapse = ", "), '], "high": [',
    paste(number(profiled[, 2]), collapse = ", "), "]}\n", sep = "")
cat("}\n")
