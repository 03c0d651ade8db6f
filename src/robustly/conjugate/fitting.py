"""How is a pair fitted? By Newton steps on the evidence or by EM, with the classical model at the edge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from robustly._runtime.precision import in_double_precision
from robustly.conjugate.base import PairDefinition
from robustly.conjugate.problem import PairProblem, Penalty, SharedValue, model_of
from robustly.conjugate.result import boundary_fit, interior_fit
from robustly.errors import DataError, FitError, ModelError, did_you_mean, names
from robustly.fit.em import em
from robustly.fit.objective import Optimum
from robustly.fit.outcome import Outcome, Stop, warn_unless_converged
from robustly.fit.problem import Found
from robustly.fit.search import search
from robustly.result.fit import Fit
from robustly.rows.anywhere import in_memory_if_stored
from robustly.rows.distinct import Table, make_table, stored_table

METHODS = ("direct", "em")
EM_STOP = Stop(1e-10, 10_000)


class ConjugatePair(PairDefinition):
    """A prior and a likelihood that are conjugate; every row draws its own local value from the prior.

    To make a pair, write a frozen dataclass with :meth:`coordinates`, :meth:`natural`, :meth:`log_normalizer`,
    :meth:`statistic` and :meth:`log_base`, each for one row and in ``jax.numpy``, and look at it with
    ``rb.testing.check_pair``. A field called like a coordinate fixes it when it is not None. Everything else has a
    default; :meth:`law` and :meth:`likelihood` give posteriors in the local's own units and let the check compare
    posterior with prior × likelihood, :meth:`predictive_law` replaces a numerical predictive by a closed form.
    """

    def fit(
        self,
        x: ArrayLike,
        *,
        method: str = "direct",
        weights: ArrayLike | None = None,
        hyperprior: Mapping[str, Any] | None = None,
    ) -> Fit:
        """Fit the prior to rows `x`; see :func:`fit_pair` for what the options mean."""
        return self._fit_to((x,), method, weights, hyperprior)

    @in_double_precision
    def _fit_to(self, given: Sequence[Any], method: str, weights: Any, hyperprior: Mapping[str, Any] | None) -> Fit:
        """Fit to what :meth:`read` takes; whole numbers elsewhere stay there, and only how often each one is comes here."""
        if given[0] is None:
            raise DataError(f"{type(self).__name__} has nothing to fit: the data are None. Give one value a row.")
        table = stored_table(self.read, given, weights)
        if table is not None:
            return fit_pair(self, table, method, hyperprior)
        return self._fit(self.read(*given), method, weights, hyperprior)

    @in_double_precision
    def _fit(
        self,
        columns: dict[str, np.ndarray],
        method: str,
        weights: ArrayLike | None,
        hyperprior: Mapping[str, Any] | None,
    ) -> Fit:
        return fit_pair(self, make_table(columns, in_memory_if_stored(weights)), method, hyperprior)


def fit_pair(pair: PairDefinition, table: Table, method: str, hyperprior: Mapping[str, Any] | None) -> Fit:
    """Fit `pair` to the rows of `table`.

    Args:
        method: ``"direct"`` climbs the evidence by Newton steps; ``"em"`` alternates exact E-steps with M-steps, as the
            paper does, and takes more passes to the same answer.
        hyperprior: NumPyro distributions by name of a hyperparameter; the fit is then the joint mode (MAP).
    """
    if method not in METHODS:
        raise ModelError(f'method is {names(METHODS)}; got "{method}".' + did_you_mean(str(method), METHODS))
    model = model_of(pair, table.columns)
    penalty = Penalty(model, hyperprior)
    problem = PairProblem(model, table, penalty)
    if not model.parameters.size:
        return interior_fit(problem, _nothing_to_fit(problem))
    first = next(iter(pair.coordinates(table.columns)))
    if first in model.parameters.names and not penalty.given:
        classical = pair.classical(table)
        problem.shared_value = None if classical is None else SharedValue(problem, classical)
    try:
        found = search(problem, Stop()) if method == "direct" else _by_em(problem)
    except FitError:
        raise FitError(
            f"{type(pair).__name__} has no finite evidence at its start values. Look at the data for extreme values."
        ) from None
    if found.outcome.kind == "boundary":
        assert problem.shared_value is not None
        return boundary_fit(problem, problem.shared_value.classical, found.outcome.text, found.outcome.steps)
    fit = interior_fit(problem, found.optimum)
    warn_unless_converged(fit.outcome)
    return fit


def _by_em(problem: PairProblem) -> Found:
    limits = problem.limits(None)
    for limit in limits:
        if limit.rules_out():
            return limit.answer(None)
    found = em(problem, EM_STOP)
    for limit in limits:
        if limit.answers(found):
            return limit.answer(found)
    return found


def _nothing_to_fit(problem: PairProblem) -> Optimum:
    value = problem.expect(np.zeros(0))[0]
    outcome = Outcome("converged", "everything was fixed, so nothing was fitted.", 1)
    history = [{"pass": 1, "value": value, "expected_gain": 0.0, "step": 0.0, "seconds": 0.0}]
    return Optimum(np.zeros(0), value, np.zeros(0), np.zeros((0, 0)), history, outcome)
