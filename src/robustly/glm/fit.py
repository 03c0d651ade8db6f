"""From what a user asks for to a fitted regression: the one road that estimators and formulas share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robustly._runtime.settings import check_real, check_whole, is_real_number
from robustly.errors import DataError, IdentifiabilityWarning, ModelError
from robustly.fit.checkpoint import checkpointed
from robustly.fit.outcome import Stop, warn_unless_converged
from robustly.fit.problem import Found
from robustly.glm.asked import LocalChoice, law_of
from robustly.glm.classical import fit_classical
from robustly.glm.edges import NARROWEST, WIDEST, fit_law
from robustly.glm.families import Binomial, Family, Normal
from robustly.glm.hyperprior import WeakSpread, as_hyperprior
from robustly.glm.judging import fit_contaminated
from robustly.glm.label_judging import STEEPEST
from robustly.glm.leverage import weighed_by_columns
from robustly.glm.local import Classical, Law, LocalPredictor
from robustly.glm.ordered import Ordinal
from robustly.glm.profile import near_profile
from robustly.glm.regression import Plan, Regression, plan_of
from robustly.glm.result import regression_fit
from robustly.glm.solvers import by_em, by_map
from robustly.model.linear import Design
from robustly.result.fit import Fit
from robustly.rows.labels import RowLabels
from robustly.rows.store import Data


def by_newton(design: Design, plan: Plan) -> Found:
    """Newton on the integrated likelihood."""
    return fit_classical(design, plan) if isinstance(plan.law, Classical) else fit_law(design, plan)


SOLVERS = {"newton": by_newton, "em": by_em, "map": by_map}


def fit_glm(
    design: Design,
    family: Family,
    *,
    local: LocalChoice = "auto",
    prior: str = "normal",
    approx: Any = "quadrature",
    solver: str = "newton",
    hyperprior: Any = "auto",
    dof: float | str | None = "auto",
    spread: float | None = None,
    tol: float = 1e-8,
    max_iter: int = 100,
    x_weights: Any = None,
    formula: Any = None,
    classical: Fit | None = None,
    needs: Sequence[str] = (),
    labels: RowLabels | None = None,
    checkpoint: Any = None,
) -> Fit:
    """Fit one regression and say how it went. A `classical` fit of the same design is not made a second time.

    `needs` names what came by row and has to come with new rows too: ``"offset"``, ``"exposure"``, ``"trials"``;
    `labels` says what the rows are called. With a folder for `checkpoint`, what passes over the rows found is kept there,
    and the same call goes on from it.
    """
    design, told = weighed_by_columns(design, x_weights)
    looked = design.responses_by_row.each_piece(ResponseLook(family))
    if design.rows.here is not None:
        family.check_whole(design.y)
    notes = (*dict.fromkeys(note for said, _ in looked for note in said), *told)
    single = isinstance(family, Binomial) and all(ones for _, ones in looked)
    if local == "auto":
        local = "dispersion" if isinstance(family, Normal) else "label" if isinstance(family, Ordinal) else "predictor"
    law = law_of(family, local, prior)
    if solver not in SOLVERS:
        raise ModelError(f'solver takes "newton", "em" or "map"; got {solver!r}.')
    if design.rows.here is None and (solver != "newton" or local == "contaminated" or x_weights is not None):
        raise ModelError(
            'solver="newton" takes rows anywhere; "em", "map", local="contaminated" and x_weights need them in memory.'
        )
    if local == "label" and not (single or isinstance(family, Ordinal)):
        raise ModelError('local="label" is for rows of one trial each; this response counts several.')
    unidentified = single and isinstance(law, LocalPredictor) and spread is None
    given = hyperprior
    if isinstance(hyperprior, str):
        if hyperprior != "auto":
            raise ModelError(f'hyperprior is None, "auto" or a NumPyro distribution of the spread; got {hyperprior!r}.')
        hyperprior = WeakSpread() if unidentified else None
    held = {}
    if isinstance(dof, str):
        if dof != "auto":
            raise ModelError(f'dof is a number above 0, None to fit it, or "auto"; got {dof!r}.')
        # Four degrees of freedom are for priors of the predictor; Student-t errors have theirs fitted.
        dof = None if local == "dispersion" else 4.0
    if "dof" in law.names and dof is not None:
        held["dof"] = check_real("dof", dof, "a number above 0, or None to fit it", 0.0, ends=False)
    if spread is not None:
        held["spread"] = _held_spread(spread, law)
    check_real("tol", tol, "a number above 0", 0.0, ends=False)
    check_whole("max_iter", max_iter, 1)
    plan = Plan(
        law, _nodes_of(approx), held, as_hyperprior(hyperprior) if "spread" in law.names else None, Stop(tol, max_iter)
    )
    if local == "label" and given is not None and design.ridge == 0:
        # Without it a steep enough slope explains every row on the wrong side as a wrong label.
        plan = replace(plan, extra_ridge=STEEPEST**-2)
        notes = (
            *notes,
            f"coefficients of standardised columns have a weak prior N(0, {STEEPEST:g}²); hyperprior=None for none.",
        )
    if classical is not None and classical.source is not None:
        plan = replace(plan, known=classical.source.found)  # type: ignore[attr-defined]
    if checkpoint is not None and solver == "em":
        raise ModelError('checkpoint= goes with solver="newton" and "map"; EM keeps what it needs beside the rows.')
    if local == "contaminated":
        if single or solver != "newton" or spread is not None:
            raise ModelError(
                'local="contaminated" takes counts and measurements, solver="newton" and no spread; for 0/1 rows choose '
                'local="label".'
            )
        found: Found = fit_contaminated(design, plan)
    else:
        with checkpointed(design.rows, checkpoint, _description(design, plan, solver)) as rows:
            there = design if rows is design.rows else design.with_rows(rows)
            found = SOLVERS[solver](there, plan)
    if unidentified and found.outcome.converged and isinstance(plan_of(found).law, LocalPredictor):
        notes = (*notes, _warn_unidentified(found, plan))
    notes = (*(labels.note() if labels is not None else ()), *notes)
    fit = regression_fit(found, plan, local, prior, notes, formula, needs, labels)
    warn_unless_converged(fit.outcome)
    return fit


@dataclass(frozen=True)
class ResponseLook:
    """Whether responses have a probability at all, with notes on unusual ones, and whether all rows are single trials."""

    family: Family
    most: float = np.inf
    """Larger responses are refused: groups of rows take their fourth powers."""

    def __call__(self, data: Data) -> tuple[tuple[str, ...], bool]:
        row = int(np.argmax(np.abs(data[2])))
        if abs(data[2][row]) > self.most:
            raise DataError(
                f"y holds {data[2][row]} in row {row}, whose fourth power is beyond what a computer's numbers can hold. Divide y by a "
                "common scale."
            )
        return self.family.check_response(data[2], data[3]), bool(np.all(data[3] == 1))


def _description(design: Design, plan: Plan, solver: str) -> str:
    """What is fitted and how, in words that differ where the answer would."""
    law = plan.law
    shown = {
        "terms": design.terms,
        "ridge": design.ridge,
        "family": repr(law.family),
        "law": f"{type(law).__module__}.{type(law).__qualname__}{law.names}",
        "prior": getattr(law, "prior", None),
        "held": dict(plan.held),
        "nodes": plan.nodes,
        "hyperprior": None if plan.hyperprior is None else type(plan.hyperprior).__name__,
        "tol": plan.stop.rtol,
        "max_iter": plan.stop.max_steps,
        "extra ridge": plan.extra_ridge,
        "solver": solver,
    }
    return ", ".join(f"{name}: {value}" for name, value in shown.items())


def _held_spread(spread: float, law: Law) -> float:
    if "spread" not in law.names:
        raise ModelError(
            f"spread={spread} came, but rows of this model have no value with a spread. Leave spread out, or localize "
            'the predictor (local="predictor").'
        )
    if isinstance(law.family, Normal) and is_real_number(spread) and 0 < spread < np.inf:
        return float(spread)  # In the units of the response.
    if not (is_real_number(spread) and NARROWEST < spread < WIDEST):
        raise ModelError(
            f"spread, held at a value, lies between {NARROWEST:g} and {WIDEST:g}; got {spread}. None fits it; "
            "local=None is a spread of 0."
        )
    return float(spread)


def _nodes_of(approx: Any) -> int | None:
    """Points a row: None to choose, 0 for Laplace."""
    if approx is None or approx == "quadrature":
        return None
    if approx == "laplace" or type(approx).__name__ == "Laplace":
        return 0
    if hasattr(approx, "nodes"):
        return int(approx.nodes)
    raise ModelError(f'approx takes "quadrature", "laplace", rb.Quadrature(nodes) or rb.Laplace(); got {approx!r}.')


def _warn_unidentified(found: Found, plan: Plan) -> str:
    """0/1 rows: the spread and the size of the coefficients say nearly the same."""
    problem = found.problem
    assert isinstance(problem, Regression)
    spread = float(np.exp(problem.split(found.vector)[1][0]))
    flat = "; result_.profile_spread() shows how little"
    plain = problem.classical_value
    if plain is not None:
        gains = [(value, near_profile(found, value) - plain) for value in (0.5, 1.0, 2.0, 4.0)]
        shown = ", ".join(f"{gain:+.2f} at {value:g}" for value, gain in gains)
        flat = f": beside no spread the best log likelihood is {shown} (result_.profile_spread() has more)"
    held = "held by the hyperprior" if plan.hyperprior is not None else "by the likelihood alone"
    text = (
        f"0/1 responses hardly tell the spread of log odds ({spread:.3g} here, {held}) from larger coefficients{flat}. "
        'Read attenuated_coef_, which both agree on. To resist wrong labels choose local="label".'
    )
    warnings.warn(text, IdentifiabilityWarning, stacklevel=4)
    return text
