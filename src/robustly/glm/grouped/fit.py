"""From what a user asks of rows in groups to a fitted mixed model."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from robustly._runtime.settings import check_real, check_whole
from robustly.errors import ModelError, names
from robustly.fit.checkpoint import CheckpointedRows, checkpointed
from robustly.fit.outcome import Stop, warn_unless_converged
from robustly.fit.search import search
from robustly.glm.asked import LocalChoice, law_of
from robustly.glm.families import Family, Normal, Poisson
from robustly.glm.fit import ResponseLook
from robustly.glm.grouped.design import MOST_EFFECTS, EffectColumns
from robustly.glm.grouped.effects import effect_law
from robustly.glm.grouped.plan import GroupDesign, GroupPlan
from robustly.glm.grouped.problem import grouped_regression
from robustly.glm.grouped.result import grouped_fit
from robustly.result.fit import Fit
from robustly.rows.labels import RowLabels

OPTIONS = ("local", "group_law", "group_dof", "dof", "tol", "max_iter")
# Squares of variances are taken.
MOST = 1e70
# Laws of effects with closed forms for normal responses.
CLOSED = ("normal", "precision")
NOISE = 1e-5


def fit_grouped(
    given: GroupDesign,
    family: Family,
    *,
    local: LocalChoice = "auto",
    group_law: str = "normal",
    group_dof: float | None = None,
    dof: float | str | None = None,
    tol: float = 1e-10,
    max_iter: int = 200,
    formula: Any = None,
    effects: EffectColumns | None = None,
    labels: RowLabels = RowLabels(),  # noqa: B008
    checkpoint: Any = None,
    **others: Any,
) -> Fit:
    """Fit a regression with effects of groups and say how it went.

    Args:
        local: what rows have of their own within their groups: nothing (``"auto"`` or None), ``"dispersion"`` of a normal
            response (Student-t errors), ``"label"`` of 0/1 responses.
        group_law: how effects are spread: ``"normal"``, ``"student_t"`` or ``"laplace"``; of Poisson counts also ``"gamma"``,
            a factor of the group's rates; of a normal response also
            ``"precision"``: every group has a precision of its own, of its effects and its noise, so that its rows together
            have a multivariate Student t (Pinheiro, Liu & Wu 2001).
        group_dof: degrees of freedom of Student-t effects or of groups' precisions; None fits them.
        dof: degrees of freedom of Student-t errors; None fits them.
        checkpoint: a folder for what passes over the groups found, from which the same call goes on.
    """
    if others:
        raise ModelError(
            f"a regression with groups takes {names(OPTIONS)}; got {names(sorted(others))}. Leave that out."
        )
    check_real("tol", tol, "a number above 0", 0.0, ends=False)
    check_whole("max_iter", max_iter, 1)
    looked = given.design.rows.each_piece(ResponseLook(family, MOST))
    notes = tuple(dict.fromkeys(note for said, _ in looked for note in said))
    chosen = None if local == "auto" else local
    if chosen == "contaminated" and given.design.rows.here is None:
        raise ModelError(
            'local="contaminated" needs rows in memory or in files. Take local="dispersion" or "label", or fit a sample.'
        )
    law = law_of(family, chosen, "normal")
    if not law.closed:
        raise ModelError(
            f"rows in groups may have a law that is closed in the row; got local={local!r}, which has another integral in every "
            'row. Take family="negative_binomial" for overdispersed counts, local="dispersion" for a normal response, '
            'local="label" for wrong labels, or local=None.'
        )
    laws = effect_law(group_law)
    held = _held(dof, "dof", law.names, 'local="dispersion" of a normal response')
    held |= {
        f"group {name}": value
        for name, value in _held(group_dof, "dof", laws.names, 'group_law="student_t" or "precision"').items()
    }
    _refuse_too_many(given, family, chosen, group_law)
    _refuse_confounded(given, family)
    # Rows that are integrated themselves have values with a little noise, which no step can climb.
    plan = GroupPlan(law, laws, held, Stop(tol if law.rule is None else max(tol, NOISE), max_iter))
    with checkpointed(given.design.rows, checkpoint, _told_of(given, plan)) as rows:
        kept = given.logged(rows) if isinstance(rows, CheckpointedRows) else given
        found = search(grouped_regression(kept, plan), plan.stop)
    fit = grouped_fit(
        found, plan, chosen, group_law, (*given.design.notes, *labels.note(), *notes), formula, effects, labels
    )
    warn_unless_converged(fit.outcome)
    return fit


def _told_of(given: GroupDesign, plan: GroupPlan) -> str:
    """What is fitted and how, in words that differ where the answer would."""
    groups = hashlib.sha256(repr(given.grouping.labels).encode() + np.asarray(given.grouping.starts).tobytes())
    inner = None if given.inner is None else (given.inner.name, given.inner.sizes.tolist())
    shown = {
        "terms": given.design.terms,
        "ridge": given.design.ridge,
        "family": repr(plan.law.family),
        "law": f"{type(plan.law).__qualname__}{plan.law.names}",
        "effects": f"{type(plan.effects).__qualname__} of {list(zip(given.names, given.terms, given.sizes.tolist()))}",
        "entries": given.entries,
        "groups": groups.hexdigest()[:16],
        "inner groups": inner if inner is None else hashlib.sha256(repr(inner).encode()).hexdigest()[:16],
        "held": plan.held,
        "tol": plan.stop.rtol,
        "max_iter": plan.stop.max_steps,
    }
    return ", ".join(f"{name}: {value}" for name, value in shown.items())


def _held(value: float | str | None, name: str, there: tuple[str, ...], who: str) -> dict[str, float]:
    if value is None or value == "auto":
        return {}
    if name not in there:
        raise ModelError(f"{name}={value} came, but only {who} has degrees of freedom. Leave it out.")
    if isinstance(value, str) or not value > 0:
        raise ModelError(f"{name}, the degrees of freedom, is above 0, or None to fit it; got {value!r}.")
    return {name: float(value)}


def _refuse_too_many(given: GroupDesign, family: Family, chosen: LocalChoice, group_law: str) -> None:
    if given.inner is not None and group_law not in CLOSED:
        raise ModelError(
            f'with groups "{given.inner.name}" within "{given.grouping.name}" effects are normal; got group_law="{group_law}". '
            f'Take group_law="normal", of a normal response "precision", or leave one level out.'
        )
    if isinstance(family, Normal) and chosen is None and group_law in CLOSED:
        return
    if group_law == "precision":
        raise ModelError(
            'group_law="precision" gives every group a precision of its own, which normal responses with classical rows have '
            '(family="normal", local=None). Take group_law="student_t" here.'
        )
    if group_law == "gamma" and (not isinstance(family, Poisson) or given.terms != ("Intercept",)):
        raise ModelError(
            'group_law="gamma" multiplies the rates of Poisson counts by a factor a group: family="poisson" and (1 | '
            f'{given.grouping.name}). Take group_law="normal" or "student_t" here.'
        )
    if group_law == "laplace" and len(given.terms) > 1:
        raise ModelError(
            f'group_law="laplace" is a law of one effect; "{given.grouping.name}" has {names(given.terms)}. Laplace laws of correlated '
            'effects depend on the order of the terms: take group_law="student_t", or (1 | g).'
        )
    most = MOST_EFFECTS
    if len(given.terms) > most:
        raise ModelError(
            f'a group of "{given.grouping.name}" has {len(given.terms)} effects ({names(given.terms)}); with group_law='
            f'"{group_law}" up to {most} are integrated exactly. Leave some out of the bar, or add them to the formula.'
        )


def _refuse_confounded(given: GroupDesign, family: Family) -> None:
    levels = {given.grouping.name: given.grouping.sizes}
    if given.inner is not None:
        levels[given.inner.name] = given.inner.sizes
    single = next((name for name, sizes in levels.items() if np.all(sizes <= 1)), None)
    if isinstance(family, Normal) and single is not None:
        raise ModelError(
            f'every group of "{single}" has one row, so effects of groups and the noise of a normal response are '
            "the same thing. Use groups of several rows, or leave the bar out."
        )
