"""What does the study show that the paper does not say? Where its text is loose, what its design hides; all computed."""

from __future__ import annotations

import numpy as np
import pandas as pd

from robustly.study.claims import Finding
from robustly.study.comparisons import (
    LOSSES,
    MISDIRECTION,
    MSE,
    R2,
    Lines,
    Loss,
    contrast,
    corrupted,
    method_in_words,
    some,
    trend,
)
from robustly.study.regressions import SETTLED, methods_of
from robustly.study.simulate import variant_of

WITHOUT_B = Loss("pR2 without b", "pR2_without_b", False, True)


def beyond(lines: Lines) -> list[Finding]:
    """Findings beyond the paper, each with a conclusion chosen by rule."""
    found: list[Finding] = []
    if len(lines.get("linear", ())):
        found += _linear_beyond(lines["linear"])
    if len(lines.get("logistic", ())):
        found += _logistic_beyond(lines["logistic"])
    if len(lines.get("poisson", ())):
        found += _poisson_beyond(lines["poisson"])
    return found


def _linear_beyond(lines: pd.DataFrame) -> list[Finding]:
    found = []
    readings = {"sd": "a standard deviation", "variance": "a variance"}
    for variant, words in readings.items():
        levels = corrupted(lines, variant)
        if not levels:
            continue
        each = [contrast(lines, variant, level, MSE, "robust", "classical") for level in levels]
        best = levels[int(np.argmin([one.mean for one in each]))]
        side = trend(lines, variant, MSE, "robust", "classical").side
        text = f"The MSE is smallest beside that of least squares at k = {best:g}."
        if side > 0:
            text += " Relative to its mean a Gamma(k, 1) noise is more even the larger k is: fewer outliers, not more."
        table = (
            ("noise level k", *(f"{k:g}" for k in levels)),
            ("ratio of MSEs", *map(str, each)),
            ("wins", *(f"{one.wins} of {len(one.differences)}" for one in each)),
        )
        verdict = {-1: "the gain grows with k", 0: "no clear trend", 1: "the gain fades with k"}[side]
        claim = f"N(·, σᵢ + 0.02) with the second argument {words}."
        found.append(Finding("5.1, linear", claim, text, verdict, table))
    levels = corrupted(lines, "sd")
    if levels:
        level = levels[len(levels) // 2]
        whole, cut = (contrast(lines, "sd", level, loss, "robust", "classical") for loss in (R2, WITHOUT_B))
        loss_of_b = some(lines, "sd", level, "robust")
        drop = float((loss_of_b["pR2"] - loss_of_b["pR2_without_b"]).mean())
        text = (
            f"At k = {level:g}, robust less classical 1 − pR2: {whole} with b in the prediction, {cut} without it; leaving b "
            f"out costs the robust fit {drop:.3g} of pR2."
        )
        verdict = "without b the effect drowns" if drop > 10.0 * abs(whole.mean) else "b makes little difference"
        found.append(Finding("5.1, linear", "Predictions are printed as ŵ·x, without the intercept b.", text, verdict))
    return found


def _logistic_beyond(lines: pd.DataFrame) -> list[Finding]:
    found = []
    for variant, words in (
        ("near", "nearest the boundary"),
        ("random", "chosen at random"),
        ("far", "farthest from it"),
    ):
        levels = [level for level in corrupted(lines, variant) if level >= 0.1]
        if not levels:
            continue
        level, rows, helped = levels[0], [], []
        for method in [one.name for one in methods_of("logistic", variant) if one.name != "classical"]:
            error = contrast(lines, variant, level, LOSSES["logistic"][0], method, "classical")
            turn = contrast(lines, variant, level, MISDIRECTION, method, "classical")
            points = f"{100 * error.mean:+.2f} ± {100 * error.error:.2f}"
            rows.append((method_in_words("logistic", method), points, str(turn)))
            # A tenth of the angle is worth a name; less is seen by no user.
            if turn.side < 0 and turn.ratio < 0.9:
                helped.append(method_in_words("logistic", method))
        text = f"Nearer the true direction by a tenth or more: {', '.join(helped) or 'none'}."
        verdict = f"{len(helped)} of {len(rows)} help" if helped else "none helps"
        claim = f"{100 * level:g} % of labels flipped, {words}: each method against the classical one."
        head = ("method", "class error, points", MISDIRECTION.words + ", ratio")
        found.append(Finding("5.1, logistic", claim, text, verdict, (head, *rows)))
    if len(corrupted(lines, "near")):
        level = corrupted(lines, "near")[-1]
        robust, plain = (some(lines, "near", level, name) for name in ("robust", "classical"))
        text = (
            f"At {100 * level:g} % flips near the boundary the fitted spread is {robust['spread'].mean():.2f} on average, held "
            f"by a weak hyperprior. MSE of ŵ: classical {plain['mse'].mean():.3g}, robust {robust['mse'].mean():.3g}; of "
            f"the attenuated coefficients, which 0/1 rows identify: robust {robust['mse_attenuated'].mean():.3g}."
        )
        gain = contrast(lines, "near", level, Loss("", "nll_integrated", False), "robust", "classical")
        found.append(
            Finding(
                "3.2",
                "0/1 rows hardly tell the spread from the size of the coefficients: larger of both fits as well.",
                f"{text} Integrated NLL, robust less classical: {gain}.",
                "a ridge: the fits predict alike" if abs(gain.mean) < 0.02 else "the fits predict differently",
            )
        )
    return found


def _poisson_beyond(lines: pd.DataFrame) -> list[Finding]:
    found = []
    clean = some(lines, "lognormal", 0.0, "robust", True)
    if len(clean):
        share = float((clean["spread"] == 0).mean())
        error = float(np.sqrt(share * (1 - share) / len(clean)))
        cost = contrast(lines, "lognormal", 0.0, MSE, "robust", "classical", True)
        text = f"Spread exactly 0 in {100 * share:.0f} ± {100 * error:.0f} % of repetitions; MSE ratio to classical {cost}."
        verdict = "nearly always" if share >= 0.9 else f"in {100 * share:.0f} %"
        found.append(Finding("3.2", "On clean counts the robust model gives the classical one back.", text, verdict))
    for variant, claim in (
        ("gamma", "Gamma noise on the rate, for which the negative binomial is the true model."),
        ("gross", "Some counts grossly wrong (log rate off by ±5)."),
    ):
        levels = corrupted(lines, variant)
        if not levels:
            continue
        rows, sides = [], []
        for intercept in (True, False):
            each = [contrast(lines, variant, level, MSE, "robust", "nb", intercept) for level in levels]
            sides += [one.side for one in each]
            kind = "with" if intercept else "without"
            rows.append((f"robust to negative binomial, {kind} intercept", *map(str, each)))
        if variant == "gross":
            each = [contrast(lines, variant, level, MSE, "t4", "robust", True) for level in levels]
            rows.append(("Student-t log rates (4 dof) to normal ones", *map(str, each)))
        robust, rival = sum(side < 0 for side in sides), sum(side > 0 for side in sides)
        winner = "robust better" if robust > rival else "negative binomial better" if rival > robust else "no winner"
        text = f"By MSE robust is better in {robust} and the negative binomial in {rival} of {len(sides)} comparisons."
        head = (f"ratio of MSEs at {variant_of('poisson', variant).axis}", *(f"{level:g}" for level in levels))
        found.append(Finding("5.1, Poisson", claim, text, winner, (head, *rows)))
    return found


def endings(lines: Lines) -> pd.DataFrame:
    """How the fits ended, by experiment and method: failed ones and those that had not come to rest, apart."""
    rows = []
    for experiment, frame in lines.items():
        if not len(frame):
            continue
        for method in frame["method"].unique():
            mine = frame[frame["method"] == method]
            failed = mine[mine["outcome"] == "failed"]
            restless = mine[~mine["outcome"].isin([*SETTLED, "failed"])]
            kinds = ", ".join(f"{kind} {count}" for kind, count in restless["outcome"].value_counts().items())
            said = "; ".join(failed["failure"].unique()[:3])
            rows.append(
                (experiment, method_in_words(experiment, method), len(mine), len(failed), len(restless), kinds or said)
            )
    return pd.DataFrame(rows, columns=["experiment", "method", "fits", "failed", "not at rest", "how"])


ERRATA = (
    (
        "a_x(η) = ∫ exp{η·t(x)} dx, and evidences without h(x)",
        "a_x(η) = log ∫ h(x) exp{η·t(x)} dx, and h(xᵢ) belongs to the evidence of a row",
    ),
    ("mean and variance of a classical Poisson response are w·x", "they are exp(w·x); the robust moments are right"),
    (
        "a gamma dispersion gives a Student-t response",
        "when it is a precision, with shape a and scale b; a gamma variance gives a variance-gamma law",
    ),
    ("the bound of models with local variables holds E[p(β | α)]", "E[log p(β | α)]"),
    ("robust logistic regression is given by the Poisson equations", "ηᵢ ~ N(w·xᵢ, λ²), yᵢ ~ Bernoulli(σ(ηᵢ))"),
    (
        "as k gets larger, there are more outliers",
        "relative to its mean Gamma(k, 1) gets more even; see the table above",
    ),
    (
        "not stated",
        "number of training rows, noise levels, numbers of topics, cut of documents, starts, tolerances, whether N(·, v) has "
        "a variance or a standard deviation, whether rivals had an intercept",
    ),
)
"""What the text says, and what is right or was assumed here."""
